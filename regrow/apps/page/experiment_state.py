"""One experiment as of its current log: the fold that all views are made of, and a small summary
that stays when the fold is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regrow.search.events import AnyEvent
from regrow.search.history import History, cost, repeats
from regrow.search.lifecycle import TrialState
from regrow.search.nested import leaves
from regrow.show.figures import series
from regrow.show.live.board import Board
from regrow.show.views import summaries
from regrow.show.views.comparison import BestSoFarCurve

VERSIONS = 20
"""Maximum versions of the code that are kept of an experiment, the latest ones."""
POINTS = 60
"""Maximum points of a spark line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A row of the list of experiments. Times are in seconds since the epoch.

    Attributes:
        value: None: no trial has a best value.
        cost: in the currency of the price; None: no price is set.
        ran: seconds.
        trouble: why it cannot be read, "" if it can.

    """

    name: str
    status: str
    goal: str = ""
    ended: int = 0
    total: int = 0
    of_total: str = ""
    """The ended trials and their total, for people."""
    share: float = 0.0
    """The completed fraction, from 0 to 1."""
    best: int | None = None
    """The trial with the best value."""
    value: float | None = None
    spark: tuple[tuple[int, float], ...] = ()
    """(steps of all trials, best value from there on), thinned out."""
    spent_steps: int = 0
    survived: int = 0
    """Attempts that were lost and whose trial was continued."""
    failed: int = 0
    hours: float = 0.0
    """Slot-hours."""
    cost: float | None = None
    began: float = 0.0
    heard: float = 0.0
    ran: float = 0.0
    left: float | None = None
    """Estimated remaining seconds; None if it does not run."""
    flow_run: str | None = None
    versions: tuple[str, ...] = ()
    """Versions of the code with which its sessions ran, the latest last."""
    tags: tuple[str, ...] = ()
    trouble: str = ""


class ExperimentState:
    """Applies a log's events, in order."""

    def __init__(self, name: str) -> None:
        self.board = Board(name)
        self.best_so_far = BestSoFarCurve(self.board.history)

    @property
    def history(self) -> History:
        return self.board.history

    def apply(self, event: AnyEvent) -> None:
        """Apply the next event. Raises IllegalMove for one that cannot follow, and SpecError."""
        self.board.apply(event)
        self.best_so_far.applied(event)

    def summary(self, *, alive: bool, now: float) -> Summary:
        """Summarize it; `alive`: a driver runs it."""
        history, board = self.history, self.board
        found = repeats.best(history)
        running = history.closed is None and alive
        spent = cost.of(history, now if running else history.t_last)
        failed = len(history.by_state[TrialState.FAILED])
        points = self.best_so_far.course("").points
        reached = [(one.steps, one.value) for one in points if one.value is not None]
        return Summary(
            name=history.spec.name,
            status=status(history, alive=alive),
            goal=", ".join(f"{metric.mode} {metric.name}" for metric in history.spec.metrics),
            ended=history.ended,
            total=history.total,
            of_total=history.of_total(history.ended),
            share=board.share(),
            best=None if found is None else found.trial.number,
            value=None if found is None else found.counts,
            spark=tuple(series.sample(reached, POINTS)),
            spent_steps=board.spent,
            survived=max(0, board.incidents.count - failed),
            failed=failed,
            hours=spent.hours,
            cost=spent.money,
            began=history.t_created,
            heard=history.t_last,
            ran=history.elapsed(now if running else None),
            left=board.left_seconds(now) if running and board.began else None,
            flow_run=history.opened.flow_run if history.opened is not None else None,
            versions=tuple(summaries.versions(history)[-VERSIONS:]),
        )


def status(history: History, *, alive: bool) -> str:
    """See summaries.status; "crashed" if its driver ended without closing the log."""
    return summaries.status(history, alive=alive, lost="crashed")


def differing_keys(histories: list[History]) -> list[tuple[str, list[Any]]]:
    """Return the dotted keys in which the specifications differ, with the value of each; None where
    one has none.

    Names, places and values of environment variables are excluded.
    """
    own = {"name", "state", "working_dir", "env"}
    flat = [
        dict(leaves({key: value for key, value in h.spec.to_json().items() if key not in own}))
        for h in histories
    ]
    keys = dict.fromkeys(key for one in flat for key in one)
    found = [(key, [one.get(key) for one in flat]) for key in keys]
    return [(key, values) for key, values in found if any(value != values[0] for value in values)]
