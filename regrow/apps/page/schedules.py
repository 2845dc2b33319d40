"""The coming runs, requested from Prefect and cached for some seconds."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence

from regrow.apps.page.links import Links, Scheduled

ASK_SECONDS = 5.0
SHOWN = 20


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
                    self._known, self.trouble = list(self._ask())[:SHOWN], ""
                except Exception:  # the page must not fail, whatever the error
                    logging.getLogger(__name__).warning(
                        "the schedules cannot be read", exc_info=True
                    )
                    self.trouble = "The schedules cannot be read at present."
                self._asked = time.monotonic()
            return self._known
