"""What a script that runs as a trial may call. Imports little, to keep its start fast."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regrow.tasks.media.content import Content
    from regrow.tasks.media.log import MediaLog

ADDRESS = "REGROW_SOCKET"
"""Variable with the address of the attempt's socket; not set outside of a trial of a command."""

_lock = threading.Lock()
_connection: tuple[int, socket.socket] | None = None
"""This process's connection with its pid: a forked child needs its own."""


def report(metrics: Mapping[str, float]) -> None:
    """Report one step of a script that an experiment runs as its `command`; elsewhere, do nothing.

    `metrics` must contain the experiment's metric. If files in the folder `$REGROW_CHECKPOINT`
    changed since the last report, they are copied as the checkpoint of this step before the call
    returns. At a decision the call waits for the answer. A trial that has to end gets a SIGTERM.
    Call this in one process only. Raises TypeError if `metrics` is not a mapping.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"regrow.report takes a map, such as {{'loss': 0.5}}, not {metrics!r}")
    address = os.environ.get(ADDRESS)
    if not address:
        return
    _say(
        address,
        json.dumps(
            {
                # Text of an enumeration is what it says, not its name.
                name if isinstance(name, str) else str(name): value
                for name, value in metrics.items()
            },
            default=_plain,
        ),
    )


def keep_exactly(values: Mapping[str, Any]) -> None:
    """Keep plain JSON by name with the next report, see `Trial.keep_exactly`; elsewhere nothing."""
    if address := os.environ.get(ADDRESS):
        _say(address, json.dumps(["exact", dict(values)]))


def trial() -> MediaLog:
    """Return the trial of this process, to log images, tables, figures, texts and files: see
    `regrow.Trial` for `log_image` and the others.

    It can be called from anywhere in the code of a function, a class or a Python script that runs
    as a trial. In a process that runs no trial, what is logged is dropped.
    """
    from regrow.tasks.media.log import running_trial
    from regrow.tasks.program.script_media import ScriptMedia

    return running_trial() or ScriptMedia(_send_media)


def _send_media(name: str, content: Content, file: Path) -> None:
    """Have the attempt keep what is in a file."""
    about = {"name": name, "kind": content.kind, "suffix": content.suffix, "file": str(file)}
    _say(os.environ[ADDRESS], json.dumps(["media", about]))


def _say(address: str, line: str) -> None:
    """Send a line to the attempt, and wait until it is processed."""
    with _lock:
        try:
            connection = _connected(address)
            connection.sendall(line.encode() + b"\n")
            # the answer; empty if the attempt is gone, and then this process ends soon, too
            connection.recv(16)
        except OSError:
            return


def _connected(address: str) -> socket.socket:
    global _connection  # noqa: PLW0603 - one for the process, as there is one trial
    if _connection is None or _connection[0] != os.getpid():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        _connection = os.getpid(), connection
    return _connection[1]


def _plain(value: Any) -> Any:
    """Convert a NumPy number, a Decimal or a tensor; else to text, which the report names."""
    item = getattr(value, "item", None)
    try:
        found = item() if callable(item) else float(value)
        return found if isinstance(found, int | float) else repr(value)
    except (TypeError, ValueError, RuntimeError):
        return repr(value)
