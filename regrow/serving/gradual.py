"""A better checkpoint is first a canary: it gets a share of the requests for a while, and takes over if it does as well.

For that time whoever offers it waits: what comes meanwhile is looked at after it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from msgspec import structs

from regrow.search.rollout import Canary, Tally, fails_more
from regrow.serving.following import Replicated, told
from regrow.serving.messages import Chosen, Refused, Role
from regrow.serving.standing import Standing

LOOK_SECONDS = 1.0
"""Between looks how the canary does."""
_LOG = logging.getLogger("regrow.serving")


class Counting(Replicated, Protocol):
    """Who answers, and counts how it goes; `Replicas` is it."""

    def withdraw(self, role: Role) -> None:
        """See Replicas."""
        ...

    def tallies(self) -> dict[Role, Tally]:
        """See Replicas."""
        ...

    @property
    def losses(self) -> int:
        """See Replicas."""
        ...


class Gradually:
    """Offers to `replicas` as `canary` says; the first checkpoint answers everybody at once, as nothing else is there."""

    def __init__(self, replicas: Counting, canary: Canary, standing: Standing, stop: threading.Event) -> None:
        self._replicas, self._canary, self._standing, self._stop = replicas, canary, standing, stop
        self._first = True

    def offer(self, chosen: Chosen) -> Refused | None:
        """See Replicas; returns after the time of the canary, or when `stop` is set."""
        if self._first:
            refused = self._replicas.offer(chosen)
            self._first = refused is not None
            return refused
        losses = self._replicas.losses
        if (refused := self._replicas.offer(structs.replace(chosen, role="canary"))) is not None:
            return refused
        self._standing.serves("canary", chosen)
        _LOG.info("the canary is %s of %s, with %s", told(chosen), chosen.experiment, self._canary.text)
        why = self._watched(losses)
        refused = self._replicas.offer(chosen) if not why else Refused(manifest=chosen.manifest, why=why)
        self._replicas.withdraw("canary")
        self._standing.serves("canary", None)
        return refused

    def _watched(self, losses: int) -> str:
        """Why it may not take over, empty for nothing, after its time."""
        until = time.monotonic() + self._canary.seconds
        while not self._stop.wait(min(LOOK_SECONDS, max(0.0, until - time.monotonic()))):
            if self._replicas.losses > losses:
                return "a process that answered with it, as a canary, ended"
            found = self._replicas.tallies()
            canary, others = found.get("canary", Tally()), found.get("main", Tally())
            if fails_more(canary, others):
                return f"as a canary it failed {canary.text}, the others {others.text}"
            if time.monotonic() >= until:
                return ""
        return "the server ended while it was a canary"
