"""Comparison of experiments: what each reached with which budget. Plain data of logs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from regrow.infra.state.notes import NONE, Notes
from regrow.search.events import AnyEvent, Began, Ended, Excluded, Opened, Reported
from regrow.search.history import History, cost, repeats, waste
from regrow.search.lifecycle import TrialState
from regrow.search.numbers import columned, money, readable
from regrow.show.views import summaries

SHARES = (0.125, 0.25, 0.5, 1.0)
"""Fractions of the smallest budget spent by any of them, at which they are compared."""


class CoursePoint(NamedTuple):
    """A change of the best value, and what had been spent until then.

    Attributes:
        steps: those that were repeated count each time.
        seconds: of the sessions, each from the beginning of its first attempt.
        value: the best from here on; None: none.
        hours: slot-hours.
        money: cost of the slot-hours; None without a price.
        leader: the trial that led; None for none.

    """

    steps: int
    seconds: float
    value: float | None
    hours: float
    money: float | None
    leader: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """An experiment and the course of its best value.

    `starting`: total seconds of its sessions before their first attempts, which Ray and the machine
    spend.
    """

    label: str
    history: History
    points: list[CoursePoint]
    starting: float
    notes: Notes = NONE
    alive: bool = False

    @property
    def spent(self) -> tuple[int, float]:
        """Total steps and seconds."""
        return cost.steps(self.history), self.ran()

    def ran(self, now: float | None = None) -> float:
        """Return the total seconds; `now` (seconds since the epoch) while a session runs."""
        return max(0.0, self.history.elapsed(now) - self.starting)

    def at(self, key: Literal["steps", "seconds"], budget: float) -> float | None:
        """Return the best value after this many steps of all trials together, or seconds; None for
        none.
        """
        place = bisect_right(self.points, budget, key=attrgetter(key))
        return self.points[place - 1].value if place else None


class BestSoFarCurve:
    """Records the course of a best value as events arrive; `course` returns it.

    What trials led that were dropped later does not count. Which other trial would have led
    meanwhile is not recorded: the course then begins later than it might.
    """

    def __init__(self, history: History) -> None:
        self._points: list[CoursePoint] = []
        self._history = history
        self._done = 0
        self._starting = 0.0
        self._opened: float | None = None
        """Seconds that had passed when the session was opened; None once an attempt began."""

    def applied(self, event: AnyEvent) -> None:
        """Record the next event, after the history applied it."""
        history = self._history
        if isinstance(event, Opened) and event.by == "driver":
            # A session without an attempt counts as start-up only.
            self._starting += 0.0 if self._opened is None else history.elapsed() - self._opened
            self._opened = history.elapsed()
        means = history.spec.repeats > 1
        kinds = (Reported, Began, Excluded, Ended) if means else (Reported, Began, Excluded)
        if not isinstance(event, kinds):
            return
        if isinstance(event, Began) and self._opened is not None:
            self._starting += max(0.0, history.elapsed() - event.ago - self._opened)
            self._opened = None
        self._done += len(event.rows) if isinstance(event, Reported) else 0
        last = self._points[-1].value if self._points else None
        if means:
            found = repeats.repeated(history) if isinstance(event, Ended | Excluded) else []
            now = found[0].mean if found else last
            leader = found[0].trials[0] if found else None
        else:
            leader = history.leader
            now = None if leader is None or leader.best is None else leader.best[0]
        # Also if worse: steps that were lost no longer count.
        if now != last:
            spent = cost.of(history, event.t)
            self._points.append(
                CoursePoint(
                    steps=self._done,
                    seconds=max(0.0, history.elapsed() - self._starting),
                    value=now,
                    hours=spent.hours,
                    money=spent.money,
                    leader=None if leader is None else leader.number,
                )
            )

    def course(self, label: str, *, notes: Notes = NONE, alive: bool = False) -> Course:
        """Return the course so far; later events do not change it, but its history continues."""
        history = self._history
        rest = 0.0 if self._opened is None else history.elapsed() - self._opened
        return Course(
            label=label,
            history=history,
            points=[
                one
                for one in self._points
                if one.leader is None or not history.trials[one.leader].excluded
            ],
            starting=self._starting + rest,
            notes=notes,
            alive=alive,
        )


def differing(courses: Sequence[Course]) -> list[str]:
    """Return the objectives ("max accuracy") in order; several cannot be compared."""
    objectives = [course.history.objective for course in courses]
    return list(dict.fromkeys(f"{one.mode} {one.name}" for one in objectives))


def compare(courses: Sequence[Course], now: float) -> dict[str, Any]:
    """Return what `regrow compare --json` prints. `now`: seconds since the epoch."""
    first = courses[0].history.objective
    steps = min(c.spent[0] for c in courses)
    seconds = min(c.spent[1] for c in courses)
    return {
        "metric": first.name,
        "mode": first.mode,
        "experiments": [_one(c, now) for c in courses],
        "by_steps": [
            {"steps": budget, "values": [c.at("steps", budget) for c in courses]}
            for budget in dict.fromkeys(round(steps * share) for share in SHARES)
            if budget
        ],
        "by_seconds": [
            {
                "seconds": round(seconds * share, 3),
                "values": [c.at("seconds", seconds * share) for c in courses],
            }
            for share in SHARES
            if seconds
        ],
    }


def _one(one: Course, now: float) -> dict[str, Any]:
    history = one.history
    spent = cost.of(history, now if one.alive else history.t_last)
    wasted = waste.of_all(history).values()
    return {
        "name": one.label,
        "status": summaries.status(history, alive=one.alive),
        "best": summaries.best(history),
        "trials": len(history.trials),
        "total": None if history.unlimited else history.total,
        "done": len(history.by_state[TrialState.DONE]),
        "stopped": len(history.by_state[TrialState.STOPPED]),
        "failed": len(history.by_state[TrialState.FAILED]),
        "steps": cost.steps(history),
        "wasted_steps": history.lost_steps,
        "losses": sum(w.attempts for w in wasted),
        "elapsed_s": round(history.elapsed(now if one.alive else None), 3),
        "ran_s": round(one.ran(now if one.alive else None), 3),
        "slot_hours": round(spent.hours, 6),
        "cost": spent.money,
        **one.notes.view(),
    }


def best_configuration(one: Course) -> dict[str, Any]:
    """Return the flat configuration of an experiment's best value; empty if there is none."""
    found = repeats.best(one.history)
    return {} if found is None else summaries.reached_with(one.history, found.trial)


def leading(values: Sequence[float | None], mode: str) -> list[int]:
    """Return the positions of the best values (None: no value); empty if all are equal."""
    known = [value for value in values if value is not None]
    if not known or (len(known) == len(values) and min(known) == max(known)):
        return []
    best = max(known) if mode == "max" else min(known)
    return [place for place, value in enumerate(values) if value == best]


ABSENT = object()
"""Stands for the value of a parameter that a configuration does not have."""
_LEAST = {"steps": "steps", "wasted_steps": "steps done again", "losses": "losses"}
"""Keys of which less is better, with their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A row of a table with a column for each experiment.

    Attributes:
        best: positions of the best cells.
        differs: whether it is a parameter with different values.

    """

    title: str
    cells: Sequence[str]
    best: Sequence[int] = ()
    differs: bool = False


def outcomes(
    view: dict[str, Any], *, title: str, duration: Callable[[float], str], count: str = ""
) -> Iterator[ComparisonRow]:
    """Yield the rows of a `comparison.compare`.

    Args:
        view: the comparison.
        title: the first row's.
        duration: formats seconds.
        count: format of the numbers of trials.

    """
    found = view["experiments"]

    def counts(one: dict[str, Any], *keys: str) -> list[str]:
        # an experiment without a number of trials has no total
        return [format(one[key], count) for key in keys if one[key] is not None]

    def least(title: str, key: str, shown: Callable[[Any], str]) -> ComparisonRow:
        values = [one[key] for one in found]
        best = [] if None in values else leading(values, "min")
        return ComparisonRow(title=title, cells=list(map(shown, values)), best=best)

    best = [one["best"] for one in found]
    values = [None if one is None else one.get("mean", one["value"]) for one in best]
    deviations = [None if one is None else one.get("sd") for one in best]
    yield ComparisonRow(
        title=title,
        cells=[
            cell if sd is None else f"{cell} +- {readable(sd, 2)}"
            for cell, sd in zip(columned(values), deviations, strict=True)
        ],
        best=leading(values, view["mode"]),
    )
    yield ComparisonRow(
        title="of trial",
        cells=["" if one is None else f"{one['trial']} at step {one['step']}" for one in best],
    )
    yield ComparisonRow(title="status", cells=[one["status"] for one in found])
    if any(one["tags"] for one in found):
        yield ComparisonRow(title="tags", cells=[", ".join(one["tags"]) for one in found])
    if any(one["notes"] for one in found):
        last = [one["notes"][-1]["text"] if one["notes"] else "" for one in found]
        yield ComparisonRow(title="note", cells=last)
    yield ComparisonRow(
        title="trials", cells=[" of ".join(counts(one, "trials", "total")) for one in found]
    )
    ends = ("done", "stopped", "failed")
    yield ComparisonRow(
        title=", ".join(ends), cells=[", ".join(counts(one, *ends)) for one in found]
    )
    for key, named in _LEAST.items():
        yield least(named, key, "{:,}".format)
    yield least("ran", "elapsed_s", duration)
    yield least("slot-hours", "slot_hours", "{:.3g}".format)
    if any(one["cost"] is not None for one in found):
        yield least("cost", "cost", lambda price: "" if price is None else money(price))


def configurations(configs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[Any], bool]]:
    """Yield the parameters of best configurations: name, each experiment's value (`ABSENT` if it
    has none), and whether they differ.
    """
    for name in dict.fromkeys(key for config in configs for key in config):
        values = [config.get(name, ABSENT) for config in configs]
        yield name, values, any(value is ABSENT or value != values[0] for value in values)
