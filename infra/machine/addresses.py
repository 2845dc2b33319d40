"""Where services of this machine listen, under which host names they are requested, and what an
address that a user gives consists of.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from regrow.tasks.errors import UserError
from regrow.tasks.process.addresses import redacted

ANY = ("0.0.0.0", "::")  # noqa: S104 - what a user may choose
HOSTS = "REGROW_PAGE_HOSTS"
"""Variable with further names of a station's servers, as through a proxy."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names under which the loopback is requested."""
_LOOPBACK = "127.0.0.1"
_ATTACH_FILTER, _RETURN = 26, 6
"""Linux's SO_ATTACH_FILTER, and BPF_RET: a program of this one instruction, with 0, drops every
packet that arrives at a socket.
"""


def parts_of(url: str, name: str = "") -> SplitResult:
    """Return the parts of an address that a user gave, `name` being the variable that has it.
    Raises UserError where it has half a bracket, or a port that is no number.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # it is read here for the first time
    except ValueError as error:
        given = f"{name}={redacted(url)}" if name else redacted(url)
        raise UserError(f"{given} is no address ({error}); correct it") from None
    return parts


def beside_loopback(host: str | None) -> str | None:
    """Return `host` if it is an address beside 127.0.0.1, where servers listen in any case, else
    None. Raises UserError for what is not a name or address of this machine.
    """
    if host is None:
        return None
    found: list[str] = []
    try:
        known = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        found = [str(one[4][0]).partition("%")[0] for one in known]
        if found[0] == _LOOPBACK:
            return None
        socket.create_server((host, 0), family=known[0][0]).close()
    except (OSError, UnicodeError) as error:
        if _LOOPBACK in found:  # `localhost` where IPv6 is off
            return None
        raise UserError(
            f"--host: {host} is no name or address of this machine ({error}); give one, or 0.0.0.0"
            " for all that it has"
        ) from None
    return host


def is_beyond(host: str | None) -> bool:
    """Return whether a server that listens at `host` as well has names beyond the loopback's."""
    return host is not None and _bracketed(host) not in LOCAL_NAMES


def listen(host: str | None, port: int) -> list[socket.socket]:
    """Return listening sockets of one port (0: any free one): the loopback's, and that of `host` if
    one is given. Raises OSError.
    """
    if host in ANY:
        six = host == "::"
        family = socket.AF_INET6 if six else socket.AF_INET
        return [socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=six)]
    found = [socket.create_server((_LOOPBACK, port), backlog=128)]
    if host is not None:
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            found.append(
                socket.create_server((host, found[0].getsockname()[1]), family=family, backlog=128)
            )
        except OSError:
            found[0].close()
            raise
    return found


def free_port(address: str = _LOOPBACK, *, last: int = 0) -> int:
    """Return the port `last` if it is free at an address of this machine, else any that is."""
    for port in (last, 0):
        with suppress(OSError), socket.create_server((address, port)) as probe:
            return int(probe.getsockname()[1])
    raise OSError(f"there is no free port at {address}")


def stop_listening(sockets: Sequence[socket.socket], seconds: float = 2.0) -> None:
    """Accept no more connections. Returns once the waiting ones are accepted by the processes that
    share the sockets, or after `seconds`.

    Closing a listening socket at once would reset the waiting connections, and lose their requests.
    """
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    for one in sockets:
        # Without the filter, a connection between the last check and the close is lost.
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    until = time.monotonic() + seconds
    while time.monotonic() < until and select.select(sockets, [], [], 0)[0]:
        time.sleep(0.005)
    for one in sockets:
        one.close()


def names(host: str) -> list[str]:
    """Return the names under which other machines reach `host`, the preferred one first."""
    if host not in ANY:
        return [_bracketed(host)]
    found = [socket.gethostname(), socket.getfqdn()]
    with suppress(OSError):
        found += [str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)]
    # Addresses reserved for documentation; nothing is sent.
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(str(probe.getsockname()[0]))
    return list(dict.fromkeys(_bracketed(one.partition("%")[0].lower()) for one in found if one))


def known_as(host: str | None) -> list[str]:
    """Return the names under which `host` is requested; None: the loopback only."""
    return [*(names(host) if host is not None else ()), *also_named()]


def name_in(header: str) -> str:
    """Return the name in a Host header, without the port."""
    name, mark, port = header.rpartition(":")
    return (name if mark and port.isdigit() else header).lower()


def also_named() -> list[str]:
    """Return the further names in $REGROW_PAGE_HOSTS, which are separated by commas."""
    return [one.strip() for one in os.environ.get(HOSTS, "").split(",") if one.strip()]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
