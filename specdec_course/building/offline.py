"""Keeps the cells of a notebook from the network while it is built: an extension of IPython.

The operating system blocks the network too, where it can (`specdec_course.bootstrap.block`). This guard is for the
rest, and it says in words what happened.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Let sockets connect to this machine only."""
    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))


def _guarded(original: Any) -> Any:
    def guard(self: socket.socket, address: Any) -> Any:
        if not _is_local(address):
            raise OSError(f"a notebook is built offline and may not connect to {address!r}")
        return original(self, address)

    return guard


def _is_local(address: Any) -> bool:
    if not isinstance(address, tuple) or address[0] in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback
    except ValueError:
        return False
