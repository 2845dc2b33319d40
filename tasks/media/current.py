"""The trial that this process runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from regrow.tasks.media.log import MediaLog

_running: list[MediaLog] = []
"""A process runs one attempt at a time."""


@contextmanager
def running(trial: MediaLog) -> Iterator[None]:
    """Within the block, `trial` is the one that `running_trial` returns, in all threads."""
    _running.append(trial)
    try:
        yield
    finally:
        _running.remove(trial)


def running_trial() -> MediaLog | None:
    """Return the trial of this process; None if it runs none."""
    return _running[-1] if _running else None
