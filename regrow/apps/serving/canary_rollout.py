"""Canary rollout: a better checkpoint first gets a share of the requests for a while, and takes
over if it does as well.

The offering thread waits for that time; checkpoints that appear meanwhile are considered
afterwards.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from msgspec import structs

from regrow.apps.serving.messages import Chosen, Refused
from regrow.apps.serving.status import ServingStatus
from regrow.search.rollout import Canary, RequestCounts, fails_more

if TYPE_CHECKING:
    from regrow.apps.serving.replicas import Replicas

LOOK_SECONDS = 1.0
"""Interval of the checks of the canary's results."""
_LOG = logging.getLogger("regrow.apps.serving")


class CanaryRollout:
    """Offers new checkpoints to `replicas` as canaries, as `canary` specifies; the first checkpoint
    gets all requests at once, since nothing else is served.
    """

    def __init__(
        self,
        replicas: Replicas,
        canary: Canary,
        status: ServingStatus,
        stop: threading.Event,
    ) -> None:
        self._replicas, self._canary, self._status, self._stop = replicas, canary, status, stop
        self._first = True

    def offer(self, chosen: Chosen) -> Refused | None:
        """See Replicas; returns when the canary's time is over, or when `stop` is set."""
        if self._first:
            refused = self._replicas.offer(chosen)
            self._first = refused is not None
            return refused
        losses = self._replicas.losses
        if (refused := self._replicas.offer(structs.replace(chosen, role="canary"))) is not None:
            return refused
        self._status.serves("canary", chosen)
        _LOG.info(
            "the canary is %s of %s, with %s", chosen.text, chosen.experiment, self._canary.text
        )
        why = self._watched(losses)
        refused = (
            self._replicas.offer(chosen) if not why else Refused(manifest=chosen.manifest, why=why)
        )
        self._replicas.withdraw("canary")
        self._status.serves("canary", None)
        return refused

    def _watched(self, losses: int) -> str:
        """Watch the canary for its time; return why it may not take over, "" if it may."""
        until = time.monotonic() + self._canary.seconds
        while not self._stop.wait(min(LOOK_SECONDS, max(0.0, until - time.monotonic()))):
            if self._replicas.losses > losses:
                return "a process that answered with it, as a canary, ended"
            found = self._replicas.tallies()
            canary, others = (
                found.get("canary", RequestCounts()),
                found.get("main", RequestCounts()),
            )
            if fails_more(canary, others):
                return f"as a canary it failed {canary.text}, the others {others.text}"
            if time.monotonic() >= until:
                return ""
        return "the server ended while it was a canary"
