"""A scheduler of the user's own that raises in the middle: nothing after it is written, and once
mended it continues.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from regrow.flows.coordinator.ledger import Ledger
from regrow.infra.log.reading import read_events
from regrow.search.errors import SpecError
from regrow.search.events import (
    Began,
    Created,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    decode,
    encode,
)
from regrow.search.planning.machines import Machine
from regrow.search.planning.simulator import FunctionObjective, Simulation
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from regrow.tasks.errors import UserCodeError
from tests.memory_store import MemoryStore

CODE = """
from regrow.testing import Scheduler, Verdict


class Fragile(Scheduler):
    broken = True

    def first(self, trial, after):
        return after + 1 if after < 3 else None

    def ended(self, trial, how):
        if self.broken:
            raise KeyError("my mistake")

    def decide(self, trial, values):
        if self.broken and len(values) == 2:
            raise KeyError("my mistake")
        return Verdict(until=self.first(trial, len(values)))
"""
SPEC: dict[str, Any] = {
    "name": "own",
    "trainable": "a.py:b",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0, 1]}},
    "search": "random",
    "schedule": "fragile_scheduler:Fragile",
    "trials": 1,
    "max_steps": 9,
}


def test_the_traceback_is_kept_and_the_log_ends_before_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_scheduler.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    store = MemoryStore()
    lease: dict[str, Any] = {"trial": 0, "attempt": 1}
    ledger = Ledger(store)
    opened = Opened(t=0.0, by="driver", driver="d", slots=1, trials=1)
    ledger.claim(Created(t=0.0, id="e", spec=SPEC), opened)
    ledger.record(Began(t=1.0, **lease, node="n"))
    ledger.record(Reported(t=2.0, **lease, rows=[Row(1, 2.0, {"score": 1.0})]))
    second = Reported(t=3.0, **lease, rows=[Row(2, 3.0, {"score": 2.0})])
    with pytest.raises(UserCodeError) as caught:
        ledger.record(second)
    assert (
        str(caught.value)
        == "fragile_scheduler:Fragile raised KeyError: 'my mistake'; fix it, then resume"
    )
    assert 'raise KeyError("my mistake")' in caught.value.trace
    assert "planner.py" not in caught.value.trace
    with pytest.raises(UserCodeError):
        ledger.record(second)

    import fragile_scheduler  # type: ignore[import-not-found]  # made above

    fragile_scheduler.Fragile.broken = False
    assert verify(read_events(store)).difference is None
    again = Ledger(store)
    again.claim(Opened(t=4.0, by="driver", driver="e", slots=1, trials=1))
    assert verify(read_events(store)).difference is None


def test_nothing_is_written_that_follows_from_an_event_which_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_again.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    store = MemoryStore()
    lease: dict[str, Any] = {"trial": 0, "attempt": 1}
    ledger = Ledger(store)
    spec = {**SPEC, "schedule": "fragile_again:Fragile", "trials": 2}
    ledger.claim(
        Created(t=0.0, id="e", spec=spec), Opened(t=0.0, by="driver", driver="d", slots=1, trials=2)
    )
    ledger.record(Began(t=1.0, **lease, node="n"))
    with pytest.raises(UserCodeError):  # it is told to the scheduler only after the history has it
        ledger.record(Ended(t=2.0, **lease, outcome="failed", cause="error"))
    ledger.decide()
    assert [trial.number for trial in ledger.history.trials] == [0], (
        "no trial takes the slot of one that has not ended in the log"
    )
    assert verify(read_events(store)).difference is None


ODD = """
from regrow.testing import Scheduler, Verdict


class Odd(Scheduler):
    def first(self, trial, after):
        return {first}

    def decide(self, trial, values):
        return {decided}
"""


@pytest.mark.parametrize(
    ("first", "decided", "said"),
    [
        ("'1'", "None", "gives '1' as the step of the next decision; give a whole number, or None"),
        ("after + 0.5", "None", "gives 0.5 as the step of the next decision; give a whole number"),
        ("1", "None", "decides None; return a Verdict whose action is one of continue, stop,"),
        ("1", "Verdict(action='explode')", "decides Verdict(action='explode'"),
        ("1", "Verdict(until='2')", "gives '2' as the step of the next decision; give a whole"),
        ("1", "Verdict(until=2**70)", "gives a number beyond 2**53 as the step of the next"),
        ("1", "Verdict(source=0.0)", "gives 0.0 as the trial to continue from; give a whole"),
        ("1", "Verdict(judged_from='a')", "gives 'a' as the step from which it judges; give"),
        ("1", "Verdict(why=1)", "gives 1 as why; give text"),
    ],
)
def test_what_is_no_decision_is_named_with_the_scheduler(
    first: str, decided: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"odd_{abs(hash((first, decided)))}"
    (tmp_path / f"{module}.py").write_text(ODD.format(first=first, decided=decided))
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = Spec.parse({**SPEC, "schedule": f"{module}:Odd"})
    objective = FunctionObjective(function=lambda config, step: 1.0, spec=spec, seconds=1.0)
    with pytest.raises(SpecError) as refused:
        Simulation(spec=spec, objective=objective, machines=[Machine(slots=1)]).open().run()
    assert f'schedule: "{module}:Odd": {said}' in str(refused.value)


def test_a_decision_is_kept_as_a_log_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = "numpy.int64(len(values) + 1)"
    decided = f"Verdict(until={numbers}, judged_from={numbers}, why=None)"
    code = ODD.format(first="numpy.int64(1) if not after else None", decided=decided)
    (tmp_path / "odd_numbers.py").write_text(f"import numpy\n{code}")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = Spec.parse({**SPEC, "schedule": "odd_numbers:Odd"})
    objective = FunctionObjective(function=lambda config, step: 1.0, spec=spec, seconds=1.0)
    run = Simulation(spec=spec, objective=objective, machines=[Machine(slots=1)]).open().run()
    assert verify([decode(encode(event)) for event in run.events]).difference is None


SAMPLER = """
import numpy
from regrow.testing import Proposal


class Own:
    def __init__(self, setting):
        self.space = setting.space

    def ask(self, number, seed):
        config = {{"group": {{"n": numpy.int64(number)}}}}
        assert self.space.flat[1].active({{"group.n": numpy.int64(number)}})
        return {returned}

    def tell(self, result):
        result.config.clear()
        result.state["seen"] = True
"""
GROUPED: dict[str, Any] = {
    **SPEC,
    "space": {
        "group": {"n": {"int": [0, 9]}},
        "fixed": {"constant": 7, "when": {"group.n": [0, 1, 2]}},
    },
    "schedule": "fifo",
    "trials": 3,
}


def sampled(returned: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Simulation:
    name = f"own_sampler_{len(sys.modules)}"
    (folder / f"{name}.py").write_text(SAMPLER.format(returned=returned))
    monkeypatch.syspath_prepend(str(folder))
    spec = Spec.parse({**GROUPED, "search": f"{name}:Own"})
    objective = FunctionObjective(function=lambda config, step: float(step), spec=spec)
    return Simulation(spec=spec, objective=objective, machines=[Machine()])


def test_what_the_users_sampler_proposes_is_kept_as_a_log_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sampled("Proposal(config=config, state={'a': (1, 2)})", tmp_path, monkeypatch)
    run.open().run()
    found = [event for event in run.events if isinstance(event, Proposed)]
    assert [event.config for event in found] == [{"group.n": n, "fixed": 7} for n in range(3)]
    assert [event.state for event in found] == [{"a": [1, 2]}] * 3
    assert verify([decode(encode(event)) for event in run.events]).difference is None


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("config", "proposes {'group': {'n': "),
        ("Proposal(config=[])", "is no configuration; return {parameter: value}"),
        ("Proposal(config=config, state=None)", "return a Proposal of two maps, config and state"),
    ],
)
def test_what_is_no_proposal_is_said(
    returned: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match="search") as caught:
        sampled(returned, tmp_path, monkeypatch).open().run()
    assert said in str(caught.value)
