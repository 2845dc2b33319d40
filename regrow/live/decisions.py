"""What the scheduler decided, as its decisions in the log tell: rungs, brackets, a population. Only a fold lives here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regrow.search import schedulers
from regrow.search.events import Decided, Proposed
from regrow.search.history import History, TrialRecord
from regrow.search.schedulers import Candidate
from regrow.search.schedulers.base import Layout
from regrow.search.schedulers.rungs import Bracketed

KEPT = 50
"""Of the latest exploits."""


@dataclass(slots=True)
class Rung:
    """The decisions at one step."""

    reached: int = 0
    stopped: int = 0
    """Given up there: at once, or later, after a pause."""
    waiting: set[int] = field(default_factory=set)
    """Trials that are paused there."""
    best: float | None = None
    """The best value of the objective that was decided on there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """A trial took another one's weights. `changes`: (parameter, the source's value, its own from now on)."""

    t: float
    trial: int
    source: int
    step: int
    value: float
    source_value: float | None
    changes: list[tuple[str, Any, Any]]


class Decisions:
    """Folds the decisions of the scheduler. Rungs are by their bracket (the steps of its rungs; one for all where there are
    none), then by step.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._scheduler: Bracketed | None = None
        self._at: dict[int, tuple[tuple[int, ...], int]] = {}
        """Bracket and step at which a trial was paused."""
        self.rungs: dict[tuple[int, ...], dict[int, Rung]] = {}
        self.members: Counter[tuple[int, ...]] = Counter()
        """Trials of each bracket."""
        self.exploits: deque[Exploit] = deque(maxlen=KEPT)
        self.exploited = 0

    @property
    def layout(self) -> Layout:
        """As what the scheduler's decisions are shown."""
        return schedulers.kind(self._history.spec.schedule).layout

    def created(self) -> None:
        """The specification is known. A scheduler of the user's own is not imported."""
        if self.layout == "brackets":
            scheduler = schedulers.make(self._history.spec.schedule, self._history.spec.setting)
            self._scheduler = scheduler if isinstance(scheduler, Bracketed) else None

    def proposed(self, event: Proposed) -> None:
        """A trial joins its bracket."""
        if self._scheduler is not None:
            self._scheduler.added(Candidate(trial=event.trial, config=event.config, state=event.state))
        self.members[self._bracket(event.trial)] += 1

    def decided(self, event: Decided, source_config: Mapping[str, Any] | None) -> None:
        """A decision, after the history took it in; `source_config`: what the source of the weights had."""
        trial = self._history.trials[event.trial]
        value = trial.values[event.step - 1]
        bracket = self._bracket(event.trial)
        rung = self.rungs.setdefault(bracket, {}).setdefault(event.step, Rung())
        rung.reached += 1
        rung.stopped += event.verdict == "stop"
        sign = self._history.objective.sign
        if rung.best is None or sign * value < sign * rung.best:
            rung.best = value
        if event.verdict == "pause":
            rung.waiting.add(event.trial)
            self._at[event.trial] = (bracket, event.step)
        if event.source is not None and source_config is not None:
            source = self._history.trials[event.source]
            changes = [
                (name, source_config.get(name), now) for name, now in trial.config.items() if source_config.get(name) != now
            ]
            self.exploited += 1
            self.exploits.append(
                Exploit(
                    t=event.t, trial=event.trial, source=event.source, step=event.step, value=value, changes=changes,
                    source_value=source.values[source.decided - 1] if 0 < source.decided <= len(source.values) else None,
                )
            )

    def left(self, number: int, *, stopped: bool) -> None:
        """A trial that may have been paused goes on, or is over; `stopped`: it was given up."""
        if (place := self._at.pop(number, None)) is not None:
            bracket, step = place
            rung = self.rungs[bracket][step]
            rung.waiting.discard(number)
            rung.stopped += stopped

    def back(self, trial: TrialRecord) -> None:
        """A failed trial is tried again; one that was to pause waits again."""
        if trial.held:
            bracket = self._bracket(trial.number)
            self.rungs[bracket][trial.decided].waiting.add(trial.number)
            self._at[trial.number] = (bracket, trial.decided)

    def _bracket(self, number: int) -> tuple[int, ...]:
        return () if self._scheduler is None else tuple(self._scheduler.bracket_of(number).steps)
