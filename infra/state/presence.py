"""Signs of life of a driver in the experiment's store, so that `show` and `stop` know it from any machine.

Only for people: nothing is decided by it, and two drivers are kept apart by the log alone. A sign is an object whose
name has its time and its host, written anew now and then; an old one tells nothing.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from regrow.tasks.errors import RegrowError
from regrow.tasks.ports import Store

PERIOD_SECONDS = 15.0
FRESH_SECONDS = 60.0
"""How old a sign may be: some periods, as a store may be slow and clocks may differ."""
PREFIX = "control/alive-"
_SIGN = re.compile(re.escape(PREFIX) + r"(\d+)-(.+)")


@contextmanager
def present(store: Store) -> Iterator[None]:
    """Gives signs of life within the block, and takes them away at its end. A store that is away is not waited for."""
    done = threading.Event()
    signs: list[str] = []
    thread = threading.Thread(target=_give, args=(store, signs, done), name="regrow-presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        with suppress(RegrowError):
            store.delete(list(signs))


def elsewhere(store: Store) -> bool:
    """Whether a driver on another machine gave a sign of life lately. This machine's are known better by their lock."""
    found = (_SIGN.fullmatch(key) for key in store.list(PREFIX))
    return any(
        int(sign[1]) > time.time() - FRESH_SECONDS and sign[2] != _host() for sign in found if sign is not None
    )


def _give(store: Store, signs: list[str], done: threading.Event) -> None:
    with suppress(RegrowError):
        signs += [key for key in store.list(PREFIX) if key.endswith(f"-{_host()}")]  # of drivers that were killed
    while not done.is_set():
        with suppress(RegrowError):
            before = list(signs)
            signs.append(f"{PREFIX}{int(time.time())}-{_host()}")
            store.create(signs[-1], b"")
            store.delete(before)
            del signs[: len(before)]
        done.wait(PERIOD_SECONDS)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
