"""Where the page leads to beside itself, what is to run next, and what is served. Only records live here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A schedule: its `name`, `when` it runs in words ("at 02:00, Europe/Zurich"), its `next` time (seconds since the epoch;
    None: it is paused, or waits for an event) and how its `last` run ended ("" before the first).
    """

    name: str
    when: str
    next: float | None = None
    last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that is kept up: its `name`, its `url` ("" while it is not there), which checkpoint `answers` in words ("": none
    yet), and what was `refused` last and is in the way (`trouble`), "" for nothing.
    """

    name: str
    url: str = ""
    answers: str = ""
    refused: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Base addresses of Prefect's and MLflow's pages, None for one that is not served.

    `scheduled` gives the schedules, the next ones first; it is called at most every few seconds, may raise, and None says that
    there can be none. `served` gives what a station serves, at once.
    """

    prefect: str | None = None
    mlflow: str | None = None
    scheduled: Callable[[], Sequence[Scheduled]] | None = None
    served: Callable[[], Sequence[Served]] = tuple
