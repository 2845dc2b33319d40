"""Links to other pages, the coming runs, and the served models."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regrow.apps.station.state import Serving

if TYPE_CHECKING:
    from regrow.infra.prefect.deployments import Scheduled

ASK_SECONDS = 5.0
SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links to Prefect and MLflow, and sources of schedules and served models.

    Attributes:
        prefect: base address of its page, None if it is not served.
        mlflow: base address of its page, None if it is not served.
        scheduled: returns the schedules; called at most every few seconds, may raise. None: there
            can be none.
        served: returns what a station serves, without delay.
        aside: returns the events that started nothing, a line each.

    """

    prefect: str | None = None
    mlflow: str | None = None
    scheduled: Callable[[], Sequence[Scheduled]] | None = None
    served: Callable[[], Sequence[Serving]] = tuple
    aside: Callable[[], Sequence[str]] = tuple


class Schedules:
    """The schedules as of a few seconds ago."""

    def __init__(self, links: Links) -> None:
        self.trouble = ""
        """Why they are unknown, "" if they are known."""
        self._ask = links.scheduled
        self._known: Sequence[Scheduled] = ()
        self._asked = -math.inf
        self._lock = threading.Lock()

    def next(self) -> Sequence[Scheduled]:
        """Return the next ones, at most SHOWN; if they cannot be read, the last known ones."""
        if self._ask is None:
            return ()
        with self._lock:
            if time.monotonic() - self._asked > ASK_SECONDS:
                try:
                    known = sorted(self._ask(), key=lambda one: next_run(one) or math.inf)
                    self._known, self.trouble = known[:SHOWN], ""
                except Exception:  # the page must not fail, whatever the error
                    logging.getLogger(__name__).warning(
                        "the schedules cannot be read", exc_info=True
                    )
                    self.trouble = "The schedules cannot be read at present."
                self._asked = time.monotonic()
            return self._known


def next_run(one: Scheduled) -> float | None:
    """Return a schedule's next run, in seconds since the epoch; None if none is timed."""
    return one.coming[0].timestamp() if one.coming and not one.paused else None
