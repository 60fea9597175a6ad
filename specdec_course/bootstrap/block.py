"""Runs a command with every network but loopback blocked, by the operating system where it can be done.

    python -m specdec_course.bootstrap.block COMMAND [ARGUMENT ...]

Linux: a network namespace of its own, in a user namespace where this user is not root. macOS: a sandbox profile.
Elsewhere, and where the system refuses (some containers do), the tests' own guard in Python is what is left, and a line
says so. The command finds how it went in the environment variable `SPECDEC_NETWORK_BLOCKED`: ``os`` or ``python``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1

# Later rules win: nothing goes out by IP, except to this machine.
MAC_PROFILE = (
    '(version 1)(allow default)(deny network-outbound (remote ip "*:*"))'
    '(allow network-outbound (remote ip "localhost:*"))'
)

PROBE = "--probe"


def main(arguments: list[str]) -> int:
    """Block the network and run the command; a probe only tells by its exit code whether blocking works here."""
    if arguments == [PROBE]:
        enter_empty_network()
        return 0
    how, prefix = "python", list[str]()
    if sys.platform == "linux" and _works([sys.executable, "-m", "specdec_course.bootstrap.block", PROBE]):
        enter_empty_network()
        how = "os"
    elif sys.platform == "darwin" and _works(mac_sandbox("true")):
        how, prefix = "os", mac_sandbox()
    else:
        print("note: this system cannot block the network here, so only a guard in Python does.", file=sys.stderr)
    environment = {**os.environ, "SPECDEC_NETWORK_BLOCKED": how, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return subprocess.call([*prefix, *arguments], env=environment)


def mac_sandbox(*command: str) -> list[str]:
    """Return the command line that runs a command in macOS's sandbox with only loopback."""
    return [shutil.which("sandbox-exec") or "/usr/bin/sandbox-exec", "-p", MAC_PROFILE, *command]


def enter_empty_network() -> None:
    """Move this process into a new network namespace that holds nothing but a loopback interface, and bring that up.

    Raises
    ------
    OSError
        The system does not allow it; this process may then be in a namespace without any network.
    """
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):  # root may do so at once; anybody else needs a user namespace, where they are root
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare was refused")
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _bring_up_loopback()


def _bring_up_loopback() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def _works(command: list[str]) -> bool:
    """Tell whether a command ends well."""
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
