"""Turns what pip and venv print when they fail into one sentence: what was wrong, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

AGAIN = "run the same command again"

# The first that matches tells the cause: rare and certain signs stand before common and vague ones.
SIGNS = (
    (
        r"No space left on device|Errno 28|not enough space on the disk|WinError 112|Disk quota exceeded",
        f"the disk is full: free at least 5 GB, then {AGAIN}",
    ),
    (
        r"ensurepip is not available|No module named ['\"]?ensurepip|No module named ['\"]?venv\b",
        "this Python comes without its venv module: install it (on Debian and Ubuntu: apt install python3-venv), "
        f"then {AGAIN}",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSLError",
        "the package index was not trusted (a wrong clock, or a proxy that pip does not know): put that right, "
        f"then {AGAIN}",
    ),
    (
        r"DO NOT MATCH THE HASHES|IncompleteRead|Connection broken|ProtocolError|BadZipFile|not a zip file"
        r"|has an invalid wheel|invalid wheel|is not a valid wheel|Wheel .* is invalid|ChunkedEncodingError"
        r"|IncompleteDownload|incomplete-download|Bad CRC|Error -3 while decompressing",
        f"a download came broken and was thrown away: {AGAIN}",
    ),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|Read timed out|timed out"
        r"|Temporary failure in name resolution|Name or service not known|getaddrinfo failed|nodename nor servname"
        r"|Network is unreachable|No route to host|Connection refused|Connection reset|RemoteDisconnected|ProxyError"
        r"|Connection aborted",
        "the package index cannot be reached: connect to the internet (or tell pip about your proxy or mirror), "
        f"then {AGAIN}",
    ),
    (
        r"Permission denied|Access is denied|Errno 13|WinError 5\b|Read-only file system",
        f"a file could not be written: close programs that use the course's folder and check that it is yours, "
        f"then {AGAIN}",
    ),
)

MISSING = re.compile(r"(?:No matching distribution found for|find a version that satisfies the requirement) (\S+)")


def explain(lines: Sequence[str], doing: str) -> str:
    """Say in one sentence why a step failed.

    Parameters
    ----------
    lines : sequence of str
        What the command printed.
    doing : str
        What the step was for, for example ``"installing the packages"``.

    Returns
    -------
    str
        The sentence, without a full stop.
    """
    text = "\n".join(lines)
    for sign, sentence in SIGNS:
        if re.search(sign, text):
            return f"{doing} failed: {sentence}"
    missing = MISSING.search(text)
    if missing:
        return (
            f"{doing} failed: the package index has no {missing[1]} for this Python and system: try another Python of "
            "3.11 to 3.14, on Linux, Windows (64-bit Intel or AMD) or macOS 14 and later (Apple silicon)"
        )
    errors = [line.strip() for line in lines if re.match(r"\s*(ERROR|error|Error)\b", line)]
    last = (errors or [line.strip() for line in lines if line.strip()] or ["no message"])[-1]
    return f"{doing} failed: {last.removeprefix('ERROR: ')} (add --verbose to see everything)"
