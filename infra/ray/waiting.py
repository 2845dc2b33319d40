"""Reporting a trial's actors for which it has no room: Ray lets them wait forever, and the trial's
log does not show it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from regrow.infra.ray import private
from regrow.search.needs import Bundle
from regrow.tasks.process import background

LOOK_SECONDS = 10.0
"""Seconds between two checks. An actor found waiting by two of them is reported: one with room
starts within seconds.
"""
_LOG = logging.getLogger("regrow.trial")


@contextmanager
def told(bundles: tuple[Bundle, ...]) -> Iterator[None]:
    """Within the block, in which the trial trains, report waiting actors in its log. `bundles`: the
    bundles of its children.
    """
    if not bundles:
        yield
        return
    before, said = dict[str, str](), set[str]()

    def look() -> None:
        nonlocal before
        try:
            now = private.waiting_actors()
        except Exception as error:  # noqa: BLE001 - Ray raises many types; none may disturb the trial
            _LOG.debug("waiting actors could not be looked for: %s", error)
            return
        new = {actor: name for actor, name in now.items() if actor in before and actor not in said}
        if new:
            _LOG.warning("%s", line(new.values(), bundles))
            said.update(new)
        before = now

    with background.every(LOOK_SECONDS, look, name="waiting", wait=0.0):
        yield


def line(classes: Iterable[str], bundles: tuple[Bundle, ...]) -> str:
    """Return the warning: which actors wait, and what room the trial has."""
    count = Counter(classes)
    who = ", ".join(
        f"{number} of {name}" if number > 1 else name for name, number in sorted(count.items())
    )
    has = ", ".join(f"{name.lower()} {amount:g}" for name, amount in bundles[0].items())
    total = count.total()
    return (
        f"{total} actor{'s' if total > 1 else ''} ({who}) wait{'' if total > 1 else 's'} for room:"
        f" this trial's children have {len(bundles)} bundle{'s' if len(bundles) > 1 else ''} of"
        f" {has}; raise resources.children.count, or start fewer"
    )
