"""Links to other pages, the coming runs, and the served models, as plain records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A schedule.

    Attributes:
        when: when it runs, for people ("at 02:00, Europe/Zurich").
        next: next run, seconds since the epoch; None: it is paused, or waits for an event.
        last: how its last run ended, "" before the first.

    """

    name: str
    when: str
    next: float | None = None
    last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that the station keeps running.

    Attributes:
        url: "" while it does not run.
        answers: the served checkpoint, for people; "": none yet.
        refused: what was refused last, "" for nothing.
        trouble: the current problem, "" for none.

    """

    name: str
    url: str = ""
    answers: str = ""
    refused: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links to Prefect and MLflow, and sources of schedules and served models.

    Attributes:
        prefect: base address of its page, None if it is not served.
        mlflow: base address of its page, None if it is not served.
        scheduled: returns the schedules, the next ones first; called at most every few seconds, may
            raise. None: there can be none.
        served: returns what a station serves, without delay.
        aside: returns the events that started nothing, a line each.

    """

    prefect: str | None = None
    mlflow: str | None = None
    scheduled: Callable[[], Sequence[Scheduled]] | None = None
    served: Callable[[], Sequence[Served]] = tuple
    aside: Callable[[], Sequence[str]] = tuple
