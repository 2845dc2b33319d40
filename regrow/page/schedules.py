"""What is to run next, asked of whoever knows it, and not at every look."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence

from regrow.page.links import Links, Scheduled

ASK_SECONDS = 5.0
SHOWN = 20


class Schedules:
    """The schedules as of a few seconds ago."""

    def __init__(self, links: Links) -> None:
        self.trouble = ""
        """Why they are not known, "" if they are."""
        self._ask = links.scheduled
        self._known: Sequence[Scheduled] = ()
        self._asked = -math.inf
        self._lock = threading.Lock()

    def next(self) -> Sequence[Scheduled]:
        """The next ones, at most SHOWN; those that were known last where they cannot be asked for."""
        if self._ask is None:
            return ()
        with self._lock:
            if time.monotonic() - self._asked > ASK_SECONDS:
                try:
                    self._known, self.trouble = list(self._ask())[:SHOWN], ""
                except Exception:  # whatever it is made of: the page must not fail with it
                    logging.getLogger(__name__).warning("the schedules cannot be read", exc_info=True)
                    self.trouble = "The schedules cannot be read at present."
                self._asked = time.monotonic()
            return self._known
