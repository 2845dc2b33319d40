"""The kit that ships for custom samplers and schedulers: what keeps its word passes, what
does not is named.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from regrow.testing import (
    Proposal,
    Result,
    Scheduler,
    Setting,
    Spec,
    Verdict,
    check_sampler,
    check_scheduler,
)
from tests.unit.fresh import printed

EXAMPLES = Path(__file__).parents[2] / "examples"


def own(kind: type) -> str:
    """The import path of a class of this module."""
    return f"{__name__}:{kind.__name__}"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


# Samplers


class Fair:
    """Draws from the seed that it is given."""

    def __init__(self, setting: Setting) -> None:
        self.space = setting.space

    def config(self, seed: object) -> dict[str, Any]:
        chance = random.Random(str(seed))
        return {p.name: p.domain.quantile(chance.uniform(0.01, 0.99)) for p in self.space.flat}

    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config=self.config(seed))

    def tell(self, result: Result) -> None:
        """Learns nothing."""


class Learns(Fair):
    """Starts from the best value told so far, whatever the order."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.told: dict[int, Result] = {}

    def ask(self, number: int, seed: int) -> Proposal | None:
        best = min((r.value for r in self.told.values() if r.value is not None), default=0.0)
        return Proposal(config=self.config((seed, best)), state={"best": best})

    def tell(self, result: Result) -> None:
        self.told[result.number] = result


class Ends(Fair):
    """Has three configurations."""

    size = 3

    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config=self.config(number)) if number < self.size else None


class GlobalChance(Fair):
    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config=self.config(random.random()))


class Counts(Fair):
    """Each question changes the next answer."""

    asked = 0

    def ask(self, number: int, seed: int) -> Proposal | None:
        self.asked += 1
        return Proposal(config=self.config((seed, self.asked)))


class FollowsTheLast(Fair):
    """Depends on what it was told last."""

    last: object = None

    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config=self.config((seed, self.last)))

    def tell(self, result: Result) -> None:
        self.last = result.number


class FollowsTheFirst(Fair):
    """Depends on which result came first."""

    first: object = None

    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config=self.config((seed, self.first)))

    def tell(self, result: Result) -> None:
        if self.first is None and result.status == "done":
            self.first = result.number


class Outside(Fair):
    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config={**self.config(seed), "x": 1.5})


class Lacks(Fair):
    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(
            config={name: value for name, value in self.config(seed).items() if name != "lr"}
        )


class StateOfObjects(Fair):
    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config=self.config(seed), state={"seen": {1, 2}})


class StateOfTuples(Fair):
    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config=self.config(seed), state={"pair": (1, 2)})


@pytest.mark.parametrize("sampler", [Fair, Learns, Ends])
def test_a_sampler_that_keeps_its_word_passes(sampler: type) -> None:
    check_sampler(own(sampler))


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (GlobalChance, "asked twice"),
        (Counts, "asked twice"),
        (FollowsTheLast, "in another order"),
        (FollowsTheFirst, "in another order"),
        (Outside, "space.*x.*1.5.*outside of its domain"),
        (Lacks, "space.*lr.*missing"),
        (StateOfObjects, "state is not JSON"),
        (StateOfTuples, "state is not JSON"),
    ],
)
def test_a_sampler_that_does_not_is_named_with_the_trial_and_the_fault(
    sampler: type, said: str
) -> None:
    with pytest.raises(AssertionError, match=f"(?s)trial \\d+.*{said}"):
        check_sampler(own(sampler))


# Schedulers


class Every(Scheduler):
    """Decides at every second step; a trial continues."""

    def first(self, trial: int, after: int) -> int | None:
        step = (after // 2 + 1) * 2
        return step if step < (self.setting.max_steps or 0) else None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return Verdict(until=self.first(trial, len(values)))


class PausesOnce(Every):
    """Pauses each trial at its second step, and lets the one that waited longest continue."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.waiting: list[int] = []

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return Verdict(action="pause") if len(values) == 2 else super().decide(trial, values)

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        if verdict.action == "pause":
            self.waiting.append(trial)

    def started(self, trial: int) -> None:
        self.dropped(trial)

    def dropped(self, trial: int) -> None:
        if trial in self.waiting:
            self.waiting.remove(trial)

    def ended(self, trial: int, how: Any) -> None:
        self.dropped(trial)

    def promote(self, *, complete: bool) -> int | None:
        return self.waiting[0] if self.waiting else None


class NeverPromotes(PausesOnce):
    """What it pauses is given up once nothing else is left: no fault."""

    def promote(self, *, complete: bool) -> int | None:
        return None


class DecideCounts(Every):
    """The question itself changes the answer."""

    asked = 0

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        self.asked += 1
        return Verdict(action="stop") if self.asked % 3 == 0 else super().decide(trial, values)


class PromoteTakes(PausesOnce):
    """Takes the trial off its list when asked, not when told."""

    def promote(self, *, complete: bool) -> int | None:
        return self.waiting.pop(0) if self.waiting else None


class RemembersQuestions(Every):
    """Remembers in a question what it decides by: after a restart, it was not asked."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.asked: set[int] = set()

    def first(self, trial: int, after: int) -> int | None:
        self.asked.add(trial)
        return super().first(trial, after)

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return Verdict(action="stop") if trial in self.asked else super().decide(trial, values)


class ByTheClock(Every):
    """What it remembers depends on the time."""

    odd = False

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        self.odd = time.perf_counter_ns() // 100 % 2 == 0

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return Verdict(action="stop") if self.odd else super().decide(trial, values)


class ByChance(Every):
    """What it remembers depends on global chance."""

    odd = False

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        self.odd = random.random() < 0.5

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return Verdict(action="stop") if self.odd else super().decide(trial, values)


class Again(Every):
    """Wants to decide at the step at which it decides."""

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return Verdict(until=len(values))


class PausesForEver(PausesOnce):
    """Pauses a trial at step 2, promotes it, and pauses it at step 2."""

    def first(self, trial: int, after: int) -> int | None:
        return 2

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return Verdict(action="pause")


class PromotesAnybody(Every):
    """Promotes a trial that is not paused."""

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return (
            Verdict(action="pause")
            if trial == 0 and len(values) == 2
            else super().decide(trial, values)
        )

    def promote(self, *, complete: bool) -> int | None:
        return 3


QUICK: dict[str, Any] = {"trials": 4, "max_steps": 5}


@pytest.mark.parametrize("scheduler", [Every, PausesOnce, NeverPromotes])
def test_a_scheduler_that_keeps_its_word_passes(scheduler: type) -> None:
    check_scheduler(own(scheduler), **QUICK)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (DecideCounts, "event \\d+"),
        (PromoteTakes, "a query changed something"),
        (RemembersQuestions, "event \\d+: replayed from the log"),
        (ByTheClock, "event \\d+"),
        (ByChance, "event \\d+"),
        (Again, "decide.* at step 2"),
        (PausesForEver, "does not come to an end"),
        (PromotesAnybody, "trial 3, which is not paused"),
    ],
)
def test_a_scheduler_that_does_not_is_named_with_the_fault(scheduler: type, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_scheduler(own(scheduler), **QUICK)


# The examples


def test_both_examples_pass_and_are_short() -> None:
    for file in ("own_sampler.py", "own_scheduler.py"):
        assert len((EXAMPLES / file).read_text().splitlines()) < 60
    check_sampler("own_sampler:Pairs")
    check_scheduler("own_scheduler:Gap", **QUICK)
    check_scheduler({"own_scheduler:Gap": {"most": 0.05, "interval": 1}}, **QUICK)


def test_the_examples_specification_names_them() -> None:
    spec = Spec.parse(yaml.safe_load((EXAMPLES / "own_search.yaml").read_text()))
    assert (spec.search, list(spec.schedule)) == ("own_sampler:Pairs", ["own_scheduler:Gap"])
    spec.check_imports()
    check_sampler(spec.search, spec.space.to_json(), mode="max")


def test_importing_the_kit_loads_nothing_heavy() -> None:
    code = "import sys, json, regrow.testing; print(json.dumps([m for m in ('ray', 'prefect', 'mlflow', 'optuna') if m in sys.modules]))"
    out = printed(code)
    assert json.loads(out) == []
