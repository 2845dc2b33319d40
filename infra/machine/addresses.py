"""Where services of this machine listen, and by which names it is asked."""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress

from regrow.tasks.errors import UserError

ANY = ("0.0.0.0", "::")  # noqa: S104 - what a user may choose
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""By which names the loopback is asked."""
_LOOPBACK = "127.0.0.1"


def beyond(host: str | None) -> str | None:
    """`host` if it is more than the loopback, None if not. Raises UserError for what is no name or address of this machine."""
    if host is None:
        return None
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            return None
        socket.create_server((host, 0), family=kind).close()
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host: {host} is no name or address of this machine ({error}); give one, or 0.0.0.0 for all that it has"
        ) from None
    return host


def listen(host: str | None, port: int) -> list[socket.socket]:
    """Listening sockets of one port (0: any free one): the loopback's, and that of `host` if one is given. Raises OSError."""
    if host in ANY:
        six = host == "::"
        family = socket.AF_INET6 if six else socket.AF_INET
        return [socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=six)]
    found = [socket.create_server((_LOOPBACK, port), backlog=128)]
    if host is not None:
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            found.append(socket.create_server((host, found[0].getsockname()[1]), family=family, backlog=128))
        except OSError:
            found[0].close()
            raise
    return found


def names(host: str) -> list[str]:
    """By which names and addresses services at `host` are asked from elsewhere, the one to hand on first."""
    if host not in ANY:
        return [_bracketed(host)]
    found = [socket.gethostname(), socket.getfqdn()]
    with suppress(OSError):
        found += [str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # reserved; nothing is sent
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(str(probe.getsockname()[0]))
    return list(dict.fromkeys(_bracketed(one.partition("%")[0].lower()) for one in found if one))


def name_in(header: str) -> str:
    """The name in a Host header, without the port."""
    name, mark, port = header.rpartition(":")
    return (name if mark and port.isdigit() else header).lower()


def also_named(variable: str) -> list[str]:
    """Further names, with commas between, that a variable has."""
    return [one.strip() for one in os.environ.get(variable, "").split(",") if one.strip()]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
