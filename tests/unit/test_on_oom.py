"""A trial whose GPU memory was full continues with a smaller configuration, as a decision."""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.planning.verify import verify
from regrow.search.space.domains import Choice, Constant, Domain, Float, Int, Normal
from regrow.search.space.smaller import below
from regrow.search.spec import Spec
from tests.unit.revived import simulated
from tests.unit.simulated import SPEC

INTS = Int(low=8, high=128, step=8)


@pytest.mark.parametrize(
    ("domain", "value", "smaller"),
    [
        (INTS, 128, 64),
        (INTS, 24, 8),
        (INTS, 8, None),
        (Int(low=10, high=100), 15, 10),
        (Float(low=0.1, high=0.9, step=0.1), 0.6, 0.3),
        (Float(low=0.1, high=1.0), 0.6, 0.3),
        (Float(low=0.5, high=1.0), 0.6, 0.5),
        (Choice(values=(256, "auto", 32, 100)), 256, 100),
        (Choice(values=(256, 200)), 256, 200),
        (Choice(values=(256, "auto")), 256, None),
        (Choice(values=(256, "auto")), "auto", None),
        (Constant(value=64), 64, 32),
        (Constant(value=1), 1, None),
        (Constant(value=True), True, None),
        (Normal(mean=0, sd=1), -1.0, None),
    ],
)
def test_a_smaller_value_is_one_of_the_domain(domain: Domain, value: Any, smaller: Any) -> None:
    assert below(domain, value, 0.5) == smaller


@pytest.mark.parametrize("schedule", ["fifo", "asha", {"pbt": {"perturbation_interval": 2}}])
def test_it_is_made_smaller_at_each_retry_until_it_cannot_be(schedule: Any) -> None:
    space = {**SPEC["space"], "batch": {"choice": [16, 64, 32]}}
    run = simulated(
        schedule=schedule,
        space=space,
        on_oom={"batch": 0.5},
        points=[{"x": 0.5, "batch": 64}],
        trials=3,
    )
    run.open()
    used = []
    while run.history.closed is None:
        run.run(most_events=len(run.events) + 1)
        if 0 in {one.trial for one in run.running}:
            used.append(run.history.trials[0].config["batch"])
            run.fail(0, "OutOfMemoryError: CUDA out of memory", cause="oom")
    trial = run.history.trials[0]
    assert used == [64, 32, 16]
    assert trial.state == "failed"
    assert "batch cannot become smaller (on_oom)" in trial.attempts[-1].message
    assert verify(run.events).difference is None


def test_a_loss_of_another_kind_after_a_full_memory_makes_it_no_smaller_again() -> None:
    space = {**SPEC["space"], "batch": {"choice": [16, 64, 32]}}
    run = simulated(space=space, on_oom={"batch": 0.5}, points=[{"x": 0.5, "batch": 64}], trials=1)
    run.open()
    used, causes = [], ["oom", "infrastructure", "infrastructure"]
    while run.history.closed is None:
        run.run(most_events=len(run.events) + 1)
        if run.running and causes:
            used.append(run.history.trials[0].config["batch"])
            run.fail(0, "it ended", cause=causes.pop(0))  # type: ignore[arg-type]
    assert used == [64, 32, 32]
    assert run.history.trials[0].config["batch"] == 32


def test_without_a_rule_it_fails_at_once_and_other_losses_change_nothing() -> None:
    for rule, cause, attempts in (({}, "oom", 1), ({"x": 0.5}, "infrastructure", 6)):
        run = simulated(on_oom=rule, trials=1)
        run.open()
        while run.history.closed is None:
            run.run(most_events=len(run.events) + 1)
            for one in run.running:
                run.fail(one.trial, "it ended", cause=cause)  # type: ignore[arg-type]
        trial = run.history.trials[0]
        assert (len(trial.attempts), trial.config) == (attempts, trial.proposed)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"batch": 0.5}, "is no parameter of the space"),
        ({"x": 1.0}, "on_oom.x"),
        ({"kind": 0.5}, "has no numbers above 0"),
    ],
)
def test_a_rule_that_cannot_help_is_refused(rule: dict[str, float], said: str) -> None:
    space = {**SPEC["space"], "kind": {"choice": ["a", "b"]}}
    with pytest.raises(SpecError, match=said):
        Spec.parse({**SPEC, "space": space, "on_oom": rule})
