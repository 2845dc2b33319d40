"""A search in memory with several trials in flight, and its replay from nothing before each
proposal. No test lives here.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from regrow.search.samplers import make
from regrow.search.samplers.base import Proposal, Result, Sampler
from regrow.search.space.setting import Setting

Objective = Callable[[Mapping[str, Any]], float]


def seed_of(number: int) -> int:
    """The seed of proposal `number`, of 32 bits and of no pattern."""
    return (1_000_003 * number + 17) * 2_654_435_761 % 2**32


def on_paper(proposal: Proposal | None) -> Proposal:
    """The proposal as it comes back from the log."""
    assert proposal is not None
    return Proposal(
        config=json.loads(json.dumps(proposal.config)), state=json.loads(json.dumps(proposal.state))
    )


@dataclass(kw_only=True)
class Replayed:
    """A search of `count` trials, `in_flight` at a time, which end in a random order and in every
    way there is.

    `ends` has for each remainder of a number by 10 how such trials end; all others are done. Each
    `every`-th proposal is compared with that of a new sampler which is told the same results in a
    random order; so is one that was told twice.
    """

    search: Any
    setting: Setting
    objective: Objective
    count: int = 60
    in_flight: int = 4
    every: int = 1
    ends: Mapping[int, str] = field(
        default_factory=lambda: {3: "failed", 5: "stopped", 6: "empty", 8: "user"}
    )
    earlier: int = 12
    told: list[Result] = field(default_factory=list)
    compared: int = 0

    def run(self) -> Replayed:
        """Runs it. Raises AssertionError at the first proposal that is another one in the
        replay.
        """
        chance = random.Random(7)
        sampler = make(self.search, self.setting)
        for result in self._earlier(chance):
            self._tell(sampler, result)
        running: list[Result] = []
        for number in range(self.count):
            if len(running) == self.in_flight:
                self._tell(sampler, self._ended(running.pop(chance.randrange(len(running)))))
            if self.ends.get(number % 10) == "user":
                running.append(
                    Result(number=number, config=self._drawn(chance, number), status="running")
                )
            else:
                proposal = on_paper(sampler.ask(number, seed_of(number)))
                if number % self.every == 0:
                    self._compare(number, proposal, chance)
                running.append(
                    Result(
                        number=number,
                        config=proposal.config,
                        state=proposal.state,
                        status="running",
                    )
                )
            self._tell(sampler, running[-1])
        return self

    def _compare(self, number: int, proposal: Proposal, chance: random.Random) -> None:
        for twice in (False, True):
            told = self.told * (1 + twice)
            chance.shuffle(told)
            fresh = make(self.search, self.setting)
            for result in told:
                fresh.tell(result)
            assert on_paper(fresh.ask(number, seed_of(number))) == proposal, (
                f"proposal {number} differs"
            )
            self.compared += 1

    def _tell(self, sampler: Sampler, result: Result) -> None:
        self.told.append(result)
        sampler.tell(result)

    def _drawn(self, chance: random.Random, number: int) -> dict[str, Any]:
        drawn = make("random", self.setting).ask(number, chance.randrange(2**32))
        assert drawn is not None
        return drawn.config

    def _earlier(self, chance: random.Random) -> list[Result]:
        made = []
        for number in range(-self.earlier, 0):
            running = Result(number=number, config=self._drawn(chance, number), status="running")
            made.append(self._ended(running, "failed" if number % 7 == 0 else "done"))
        if made:  # of another space
            made[0] = replace(made[0], config={"nothing": "of this"})
        return made

    def _ended(self, running: Result, how: str | None = None) -> Result:
        how = how or self.ends.get(running.number % 10, "done")
        how = "done" if how == "user" else how
        if how == "failed":
            return replace(running, status="failed")
        if how == "empty":
            return replace(running, status="done")
        value = self.objective(running.config)
        steps = 2 if how == "stopped" else 4
        curve = [(step, value + 1 / step - 1 / 4) for step in range(1, steps + 1)]
        several = len(self.setting.modes)
        return replace(
            running,
            status="stopped" if how == "stopped" else "done",
            value=curve[-1][1],
            intermediate=curve,
            values=tuple(abs(curve[-1][1] - k) for k in range(several)) if several > 1 else None,
            violations=tuple(math.sin(9 * value + k) for k in range(self.setting.constraints)),
        )


def best(search: Any, setting: Setting, objective: Objective, count: int) -> float:
    """The least of the objective after `count` trials one after the other."""
    sampler, found = make(search, setting), math.inf
    for number in range(count):
        proposal = on_paper(sampler.ask(number, seed_of(number)))
        value = objective(proposal.config)
        found = min(found, value)
        sampler.tell(
            Result(number=number, config=proposal.config, state=proposal.state, status="running")
        )
        sampler.tell(
            Result(
                number=number,
                config=proposal.config,
                state=proposal.state,
                status="done",
                value=value,
                intermediate=[(setting.max_steps or 1, value)],
            )
        )
    return found
