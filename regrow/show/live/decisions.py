"""The scheduler's decisions, folded from the log: rungs, brackets, a population."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regrow.search import schedulers
from regrow.search.events import Decided, Proposed
from regrow.search.history import History, TrialRecord
from regrow.search.schedulers.base import Candidate, Layout
from regrow.search.schedulers.rungs import Bracketed

KEPT = 50
"""Number of latest exploits that are kept."""


@dataclass(slots=True)
class RungDecisions:
    """The decisions at one step."""

    reached: int = 0
    stopped: int = 0
    """Trials stopped there, at once or later, after a pause."""
    waiting: set[int] = field(default_factory=set)
    """Trials that are paused there."""
    best: float | None = None
    """Best value of the objective among the trials decided on there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """A trial took another one's weights. `changes`: (parameter, the source's value, its own)."""

    t: float
    trial: int
    source: int
    step: int
    value: float
    source_value: float | None
    changes: list[tuple[str, Any, Any]]


class Decisions:
    """Folds the decisions of the scheduler.

    Rungs are keyed by their bracket (the steps of its rungs; empty without brackets), then by step.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._scheduler: Bracketed | None = None
        self._at: dict[int, tuple[tuple[int, ...], int]] = {}
        """Bracket and step at which a trial is paused."""
        self._last: dict[int, int] = {}
        """The rung of a trial's last decision."""
        self.rungs: dict[tuple[int, ...], dict[int, RungDecisions]] = {}
        self.members: Counter[tuple[int, ...]] = Counter()
        """Number of trials of each bracket."""
        self.exploits: deque[Exploit] = deque(maxlen=KEPT)
        self.exploited = 0

    @property
    def layout(self) -> Layout:
        """How the scheduler's decisions are displayed."""
        return schedulers.kind(self._history.spec.schedule).layout

    def created(self) -> None:
        """Create the scheduler from the specification; a user's scheduler is not imported."""
        if self.layout == "brackets":
            scheduler = schedulers.make(self._history.spec.schedule, self._history.setting)
            self._scheduler = scheduler if isinstance(scheduler, Bracketed) else None

    def proposed(self, event: Proposed) -> None:
        """Add a trial to its bracket."""
        if self._scheduler is not None:
            self._scheduler.added(
                Candidate(trial=event.trial, config=event.config, state=event.state)
            )
        self.members[self._bracket(event.trial)] += 1

    def decided(self, event: Decided, source_config: Mapping[str, Any] | None) -> None:
        """Apply a decision after the history; `source_config`: that of the weights' source."""
        trial = self._history.trials[event.trial]
        value = trial.curve.until(event.step)[-1]
        bracket, step = self._bracket(event.trial), self._rung(trial, event.step)
        rung = self.rungs.setdefault(bracket, {}).setdefault(step, RungDecisions())
        rung.reached += self._last.get(event.trial) != step
        self._last[event.trial] = step
        rung.stopped += event.verdict == "stop"
        sign = self._history.objective.sign
        if rung.best is None or sign * value < sign * rung.best:
            rung.best = value
        if event.verdict == "pause":
            rung.waiting.add(event.trial)
            self._at[event.trial] = (bracket, step)
        if event.source is not None and source_config is not None:
            source = self._history.trials[event.source]
            known = 0 < source.decided <= source.curve.time
            changes = [
                (name, source_config.get(name), now)
                for name, now in trial.config.items()
                if source_config.get(name) != now
            ]
            self.exploited += 1
            self.exploits.append(
                Exploit(
                    t=event.t,
                    trial=event.trial,
                    source=event.source,
                    step=event.step,
                    value=value,
                    changes=changes,
                    source_value=source.curve.until(source.decided)[-1] if known else None,
                )
            )

    def left(self, number: int, *, stopped: bool) -> None:
        """Note that a trial continues or has ended; `stopped`: the scheduler stopped it."""
        if (place := self._at.pop(number, None)) is not None:
            bracket, step = place
            rung = self.rungs[bracket][step]
            rung.waiting.discard(number)
            rung.stopped += stopped

    def back(self, trial: TrialRecord) -> None:
        """Note that a failed trial is retried; one that was paused waits again."""
        if trial.held:
            bracket, step = self._bracket(trial.number), self._last[trial.number]
            self.rungs[bracket][step].waiting.add(trial.number)
            self._at[trial.number] = (bracket, step)

    def shown(self, step: int) -> int:
        """Return a step as the user counts it."""
        return step if (clock := self._history.spec.clock) is None else clock.value(step)

    def _rung(self, trial: TrialRecord, step: int) -> int:
        """Return the rung of a decision; the report's step if reports skip steps."""
        if self._scheduler is not None or self._history.spec.clock is None:
            return step
        return trial.curve.clock[bisect_left(trial.curve.clock, step)]

    def _bracket(self, number: int) -> tuple[int, ...]:
        return () if self._scheduler is None else tuple(self._scheduler.bracket_of(number).steps)
