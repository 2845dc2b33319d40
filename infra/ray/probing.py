"""Checking that the user's cluster answers: `ray.init` would wait long and then end the process.

There is no limit while the connection makes progress, only for silence, longer on a busy machine.
"""

from __future__ import annotations

import os
import socket

from regrow.infra.machine.awaiting import Step
from regrow.infra.ray import private
from regrow.tasks.errors import UserError

SILENT_SECONDS = 10.0
"""Seconds that an address may stay silent, if the machine is not busy."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The connection preface of a gRPC client (RFC 9113, section 3.4). The server's first frame is also
of type SETTINGS.
"""
_KIND, _SETTINGS = 3, 4


def probe(address: str, *, named_by: str, step: Step = lambda _: None) -> None:
    """Raise UserError unless a cluster answers at `address`."""
    wrong = f"No Ray cluster at {named_by} {address!r}"
    advice = f"correct or unset {named_by}, or start the cluster"
    host, _, port = address.rpartition("://")[2].rpartition(":")
    ours = address == "auto" or "://" in address or os.environ.get("RAY_USE_TLS", "0") != "0"
    if address != "auto":
        seconds = SILENT_SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        step("it is not connected yet")
        try:
            with socket.create_connection(
                (host.strip("[]"), int(port)), timeout=seconds
            ) as connection:
                step("it is connected, and has said nothing yet")
                if not ours and not _speaks(connection):
                    raise UserError(f"{wrong}: nothing there speaks Ray; {advice}")
        except ValueError:
            raise UserError(
                f"{wrong}: it must be host:port, ray://host:port or auto; {advice}"
            ) from None
        except TimeoutError:
            raise UserError(
                f"{wrong}: nothing there speaks Ray within {seconds:.0f} s; {advice}"
            ) from None
        except OSError as error:
            raise UserError(f"{wrong} ({error.strerror or error}): {advice}") from None
    if "://" in address:
        return  # Ray Client itself checks, and gives up
    step("its head is there, and has not answered yet")
    if (reason := private.ask_head(address)) is not None:
        raise UserError(f"{wrong}: {reason}; {advice}")


def _speaks(connection: socket.socket) -> bool:
    """Return whether the other end is a gRPC server. Raises OSError, also if it stays silent."""
    connection.sendall(_PREFACE)
    received = b""
    while len(received) <= _KIND:
        if not (more := connection.recv(16)):
            return False
        received += more
    return received[_KIND] == _SETTINGS
