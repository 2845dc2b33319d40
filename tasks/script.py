"""What a script that runs as a trial may call. Nothing but the standard library is imported: the script's own start counts."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

ADDRESS = "REGROW_SOCKET"
"""The variable that says where the attempt listens; not set outside of a trial of a command."""

_lock = threading.Lock()
_connection: tuple[int, socket.socket] | None = None
"""This process's (by its pid: a forked child needs one of its own)."""


def report(metrics: Mapping[str, float]) -> None:
    """Reports one step of a script that an experiment runs by its `command`; elsewhere it does nothing at all.

    `metrics` must hold the experiment's metric. What lies in the folder `$REGROW_CHECKPOINT` and changed since the last
    report is copied, as the checkpoint of this step, before the call returns. At a decision it waits for the answer. A trial that
    is to end gets a SIGTERM. Call it in one process only. Raises TypeError for what is no map.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"regrow.report takes a map, such as {{'loss': 0.5}}, not {metrics!r}")
    address = os.environ.get(ADDRESS)
    if not address:
        return
    line = json.dumps({str(name): value for name, value in metrics.items()}, default=_plain).encode() + b"\n"
    with _lock:
        try:
            connection = _connected(address)
            connection.sendall(line)
            connection.recv(16)  # the answer; nothing once the attempt is gone, and then this process is about to be
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
    """A number of NumPy's or a tensor of one element; anything else as text, which the report then names."""
    item = getattr(value, "item", None)
    try:
        return item() if callable(item) else repr(value)
    except (TypeError, ValueError, RuntimeError):
        return repr(value)
