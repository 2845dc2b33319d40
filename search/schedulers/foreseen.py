"""How many steps a number of trials will do under a schedule that ends them early, as far as can be
foreseen: the scheduler itself decides on trials whose values are random, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from regrow.search import schedulers
from regrow.search.chance import uniform_draw
from regrow.search.options import is_path
from regrow.search.schedulers.base import (
    Candidate,
    Decision,
    End,
    Final,
    Opening,
    SchedulerPort,
    Start,
)
from regrow.search.space.setting import Setting

ROUNDS = 3
"""Different random values that are played; their mean counts."""
MOST_PLAYED = 100
"""Trials that are played; of more, their mean counts."""
MOST_STEPS = 2_000
"""Steps of a trial up to which trials are played."""


def steps(schedule: object, setting: Setting, trials: int) -> float | None:
    """Return the steps that so many trials are expected to do; None if that cannot be foreseen: a
    schedule of the user's, a population, or trials with budgets of their own.
    """
    whole, names = setting.max_steps, schedulers.named(schedule)
    kinds = [schedulers.kind(name) for name in names]
    if (
        whole is None
        or whole > MOST_STEPS
        or any(is_path(name) for name in names)
        or any(kind.takes_budgets or kind.layout == "population" for kind in kinds)
    ):
        return None
    played = min(trials, MOST_PLAYED)
    total = 0
    for turn in range(ROUNDS):
        played_round = _PlayedRound(schedulers.make(schedule, setting), whole)
        for number in range(played):
            played_round.begin(number, uniform_draw(turn, f"value:{number}"))
        played_round.finish()
        total += sum(played_round.steps)
    return total * trials / (played * ROUNDS)


class _PlayedRound:
    def __init__(self, scheduler: SchedulerPort, whole: int) -> None:
        self._scheduler, self._whole = scheduler, whole
        self._values: list[float] = []
        self.steps: list[int] = []
        scheduler.apply(Opening(slots=1, widest=1))

    def begin(self, number: int, value: float) -> None:
        self._values.append(value)
        self.steps.append(0)
        self._scheduler.apply(Candidate(trial=number, config={}))
        self._climb(number)
        self._promote(complete=False)

    def finish(self) -> None:
        self._promote(complete=True)

    def _promote(self, *, complete: bool) -> None:
        while (number := self._scheduler.promote(complete=complete)) is not None:
            self._climb(number)

    def _climb(self, number: int) -> None:
        """Let a trial run until it pauses or ends."""
        self._scheduler.apply(Start(trial=number))
        while (until := self._scheduler.first(number, self.steps[number])) is not None:
            self.steps[number] = until
            values: Sequence[float] = [self._values[number]] * until
            verdict = self._scheduler.decide(number, values)
            self._scheduler.apply(Decision(trial=number, values=values, verdict=verdict))
            if verdict.action == "pause":
                return
            if verdict.action == "stop":
                self._end(number, "stopped")
                return
        self.steps[number] = self._whole
        self._end(number, "done")

    def _end(self, number: int, how: Final) -> None:
        values = [self._values[number]] * self.steps[number]
        self._scheduler.apply(End(trial=number, how=how, values=values))
