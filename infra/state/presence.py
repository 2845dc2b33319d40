"""Signs of life of a driver in the experiment's store, so that `show`, `stop` and `rm` see it
from any machine, and for any user.

For display only: no decision depends on them, and the log alone keeps two drivers from writing. A
sign is an object whose name has the time, the host and the driver's process there. It is rewritten
every 15 s; an old one means nothing.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from regrow.infra.machine.processes import is_running
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports.store import Store
from regrow.tasks.process import background

PERIOD_SECONDS = 15.0
FRESH_SECONDS = 60.0
"""Seconds for which a sign counts: several periods, as stores are slow and clocks differ."""
PREFIX = "control/alive-"
_SIGN = re.compile(re.escape(PREFIX) + r"(\d+)-([^~]+)(?:~(\d+))?")


@contextmanager
def present(store: Store) -> Iterator[None]:
    """Give signs of life within the block, and remove them at its end without waiting."""
    given: list[str] = []
    try:
        give = partial(_give, store, given)
        with background.every(PERIOD_SECONDS, give, name="presence", first=0.0, wait=0.0):
            yield
    finally:
        with suppress(RegrowError):
            store.delete(list(given))


def signs(store: Store) -> bool:
    """Return whether a driver gave a sign of life in the last minute. One on this machine counts
    only if its process runs.
    """
    return any(
        int(sign[1]) > time.time() - FRESH_SECONDS
        and (sign[2] != _host() or (sign[3] is not None and is_running(int(sign[3]))))
        for sign in map(_SIGN.fullmatch, store.list(PREFIX))
        if sign is not None
    )


def _give(store: Store, given: list[str]) -> None:
    if not given:  # those of drivers that were killed
        with suppress(RegrowError):
            given += [
                key
                for key in store.list(PREFIX)
                if (sign := _SIGN.fullmatch(key)) is not None and sign[2] == _host()
            ]
    with suppress(RegrowError):
        before = list(given)
        given.append(f"{PREFIX}{int(time.time())}-{_host()}~{os.getpid()}")
        store.create(given[-1], b"")
        store.delete(before)
        del given[: len(before)]


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
