"""A scheduler at work on a number of slots, without a log: what a planner does with the port, step
by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from regrow.search.mode import Mode
from regrow.search.schedulers import make
from regrow.search.schedulers.base import (
    Candidate,
    Decision,
    Drop,
    End,
    Opening,
    Scheduler,
    Start,
    Verdict,
    Widening,
)
from regrow.search.space import Space
from regrow.search.space.setting import Setting

SPACE = Space.parse({"x": {"uniform": [0, 1]}})


def setting(
    max_steps: int | None = 27,
    mode: Mode = "max",
    trials: int | None = None,
    seed: int = 0,
    space: Space = SPACE,
) -> Setting:
    """A setting with one metric."""
    return Setting(space=space, modes=(mode,), max_steps=max_steps, trials=trials, seed=seed)


def scheduler(schedule: Any, **of_setting: Any) -> Any:
    """Made as a specification's schedule is."""
    return make(schedule, setting(**of_setting))


@dataclass
class Attempt:
    """One that runs."""

    trial: int
    until: int | None
    width: int


@dataclass
class Run:
    """Runs trials on `slots` slots, one step each in turn in the order of their start, until
    nothing is left to do.

    `curve(trial, step, config)` is the objective. `breaks`: the step at which a trial fails for
    good; `lost`: those at which an attempt is lost once, to be redone from the step of the last
    decision. `ends`: where a trial ends by itself.
    """

    scheduler: Scheduler
    curve: Callable[[int, int, Mapping[str, Any]], float]
    trials: int
    slots: int = 1
    configs: Sequence[Mapping[str, Any]] = ()
    states: Sequence[Mapping[str, Any]] = ()
    breaks: Mapping[int, int] = field(default_factory=dict)
    lost: set[tuple[int, int]] = field(default_factory=set)
    ends: Mapping[int, int] = field(default_factory=dict)
    log: list[tuple[int, int, Verdict]] = field(default_factory=list)
    outcome: dict[int, str] = field(default_factory=dict)
    values: dict[int, list[float]] = field(default_factory=dict)
    config: dict[int, dict[str, Any]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    paused: set[int] = field(default_factory=set)
    steps: int = 0

    def __post_init__(self) -> None:
        self._decided: dict[int, int] = {}
        self._running: list[Attempt] = []
        self._waiting: list[int] = []
        self.scheduler.apply(Opening(slots=self.slots, widest=self.slots))

    def go(self, rounds: int = 100_000) -> Run:
        """Until the end, or for so many rounds in which each attempt does one step."""
        for _ in range(rounds):
            self._start()
            if not self._running:
                for trial in sorted(self.paused):
                    self._give_up(trial)
                return self
            for attempt in list(self._running):
                self._step(attempt)
        return self

    def _start(self) -> None:
        while True:
            complete = len(self.values) >= self.trials
            while (pair := self.scheduler.surplus(complete=complete)) is not None:
                self._give_up(pair[0])
            if sum(attempt.width for attempt in self._running) >= self.slots:
                return
            if self._waiting:
                trial = self._waiting.pop(0)
            elif (promoted := self.scheduler.promote(complete=complete)) is not None:
                assert promoted in self.paused, f"{promoted} is not paused"
                trial = promoted
                self.paused.remove(trial)
            elif not complete:
                trial = len(self.values)
                self.values[trial], self._decided[trial] = [], 0
                self.config[trial] = dict(self.configs[trial]) if self.configs else {"x": 0.5}
                state = self.states[trial] if self.states else {}
                self.scheduler.apply(
                    Candidate(trial=trial, config=dict(self.config[trial]), state=state)
                )
            else:
                return
            width = self.scheduler.width(trial) if isinstance(self.scheduler, Widening) else 1
            until = self.scheduler.first(trial, self._decided[trial])
            assert until is None or until > self._decided[trial]
            self.scheduler.apply(Start(trial=trial, width=width))
            self.starts.append(trial)
            self._running.append(Attempt(trial, until, width))

    def _step(self, attempt: Attempt) -> None:
        trial, values = attempt.trial, self.values[attempt.trial]
        step = len(values) + 1
        if (trial, step) in self.lost:
            self.lost.discard((trial, step))
            del values[self._decided[trial] :]
            self._running.remove(attempt)
            self._waiting.append(trial)
            return
        if self.breaks.get(trial) == step:
            self._running.remove(attempt)
            self._end(trial, "failed")
            return
        values.append(self.curve(trial, step, self.config[trial]))
        self.steps += 1
        if step == self.scheduler.setting.max_steps or step == self.ends.get(trial):
            self._running.remove(attempt)
            self._end(trial, "done")
        elif step == attempt.until:
            self._decide(attempt, step)

    def _decide(self, attempt: Attempt, step: int) -> None:
        trial, values = attempt.trial, self.values[attempt.trial]
        verdict = self.scheduler.decide(trial, values)
        assert verdict == self.scheduler.decide(trial, values), "a query changed something"
        self.log.append((trial, step, verdict))
        self._decided[trial] = step
        self.scheduler.apply(Decision(trial=trial, values=values, verdict=verdict))
        if verdict.config is not None:
            self.config[trial] = dict(verdict.config)
        match verdict.action:
            case "continue":
                attempt.until = verdict.until
            case "restart":
                self._running.remove(attempt)
                self._waiting.append(trial)
            case "pause":
                self._running.remove(attempt)
                self.paused.add(trial)
            case "stop":
                self._running.remove(attempt)
                self._end(trial, "stopped")

    def _give_up(self, trial: int) -> None:
        assert trial in self.paused
        self.paused.remove(trial)
        self.scheduler.apply(Drop(trial=trial))
        self._end(trial, "stopped")

    def _end(self, trial: int, how: Any) -> None:
        self.outcome[trial] = how
        self.scheduler.apply(End(trial=trial, how=how, values=self.values[trial]))

    # ---- what came of it

    def reached(self, step: int) -> list[int]:
        """The trials that did at least so many steps."""
        return [trial for trial, values in self.values.items() if len(values) >= step]

    def verdicts(self, trial: int) -> list[tuple[int, str]]:
        """(step, action) of a trial."""
        return [(step, verdict.action) for of, step, verdict in self.log if of == trial]


def arrive(
    scheduler: Any, *arrivals: tuple[int, int, float], started: Iterable[int] = ()
) -> list[str]:
    """Trials that arrive at (trial, step, value) in that order; the actions. Only the last value of
    each is real.
    """
    actions = []
    for trial, step, value in arrivals:
        values = [value] * step
        verdict = scheduler.decide(trial, values)
        scheduler.apply(Decision(trial=trial, values=values, verdict=verdict))
        actions.append(verdict.action)
    return actions


def add(scheduler: Scheduler, count: int, first: int = 0) -> None:
    """So many trials are proposed and start."""
    for trial in range(first, first + count):
        scheduler.apply(Candidate(trial=trial, config={"x": 0.5}))


def by_number(trial: int, step: int, config: Any) -> float:
    """Trial 0 is the worst at every step when more is better."""
    return float(trial)
