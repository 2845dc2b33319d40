"""Commands show what can be read of a damaged experiment, and report the damage at the end, with
exit code 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regrow.infra.log.log import CorruptLog


@contextmanager
def damage_told_last() -> Iterator[Callable[[CorruptLog], None]]:
    """Collect damage of a log within the block (pass it to readers as `on_damage`); at the end,
    raise the first.
    """
    met: list[CorruptLog] = []
    yield met.append
    if met:
        raise met[0]
