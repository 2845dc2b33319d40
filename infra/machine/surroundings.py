"""What an ordinary machine may be like that keeps processes of ours from each other: a proxy, a long TMPDIR, few files.

Only what is set for our own processes lives here; what the user set for others is left as it is.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping

from regrow.tasks.errors import UserError

LOOPBACK = ("127.0.0.1", "127.0.0.2", "localhost", "::1")
"""Where embedded servers listen; 127.0.0.2 is Ray's, on Linux."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
"""Bytes of a Unix socket's path at most."""
_BELOW_TMP = len("/ray/session_2026-11-22_13-43-00_123456_1234567/sockets/plasma_store.9")
"""What Ray appends to the folder for temporary files (2.60)."""
FILES = 65536
"""Open files that are asked for; Ray's own processes ask for as many."""


def direct(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with which requests to this machine itself go to no proxy; none where there is no proxy.

    Corporate machines have one set, often without an exception for loopback: it would be asked for our own servers.
    """
    if not any(environment.get(name) or environment.get(name.upper()) for name in _PROXIES):
        return {}
    before = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [host for host in (part.strip() for part in before.split(",")) if host]
    if "*" in hosts:
        return {}
    hosts += [host for host in LOOPBACK if host not in hosts]
    return {"no_proxy": ",".join(hosts), "NO_PROXY": ",".join(hosts)}


def short_tmp(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables with which a local Ray has room for the paths of its sockets; none where it has.

    Schedulers of clusters give each job a TMPDIR of its own, with a long name. Raises UserError if RAY_TMPDIR is too long.
    """
    room = _LONGEST_SOCKET - _BELOW_TMP
    if (given := environment.get("RAY_TMPDIR")) is not None:
        if len(os.fsencode(given)) > room:
            raise UserError(f"RAY_TMPDIR is {given!r}: Ray's sockets need a folder of at most {room} bytes; name a shorter one")
        return {}
    return {"RAY_TMPDIR": "/tmp"} if len(os.fsencode(environment.get("TMPDIR", ""))) > room else {}  # noqa: S108 - Ray's default


def raise_file_limit() -> None:
    """Lets this process, and those that it starts, open as many files as the system allows: macOS begins with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
