"""Asking the planner changes nothing: what it decides follows from the events that it was told,
however often it was asked.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from regrow.search.planning.planner import Planner
from regrow.search.planning.simulator import FunctionObjective, Simulation, availability, simulate
from regrow.search.planning.untried import Untried
from regrow.search.samplers.base import Proposal, Result
from regrow.search.spec import Spec
from regrow.testing import Setting, check_log, check_resumes

SCHEDULES: list[Any] = [
    "fifo", {"asha": {"type": "promotion", "reduction_factor": 2}}, {"successive_halving": {"n": 4, "reduction_factor": 2}},
    {"pbt": {"perturbation_interval": 1}},
]  # fmt: skip


class Few:
    """Runs out of configurations before the experiment has its number of trials, and does not say
    so beforehand.
    """

    def __init__(self, setting: Setting) -> None:
        self._most = 5

    def ask(self, number: int, seed: int) -> Proposal | None:
        return Proposal(config={"x": (number + 1) / 10}) if number < self._most else None

    def tell(self, result: Result) -> None:
        """Learns nothing."""


def run(schedule: object, search: object, workers: int = 2, **changes: Any) -> Simulation:
    given = {
        "name": "asked",
        "trainable": "a.py:f",
        "metric": "score",
        "mode": "max",
        "space": {"x": {"uniform": [0, 1]}},
    }
    spec = Spec.parse(
        {**given, "search": search, "schedule": schedule, "trials": 9, "max_steps": 4, **changes}
    )
    objective = FunctionObjective(
        function=lambda config, step: float(config["x"]) * step, spec=spec
    )
    return simulate(
        spec, objective, workers=workers, availability=availability([1, 1, 1, 0, 1, 1], 3.5, 2)
    )


def state(planner: Planner) -> Any:
    """All that it holds, but for what a question may put together for the first time."""
    late = ("history", "_sampler", "_scheduling", "_results", "_first_configurations")
    history = {name: value for name, value in vars(planner.history).items() if name != "_spec"}
    rest = {name: value for name, value in vars(planner).items() if name not in late}
    tried = {
        name: vars(value)["_tried"] for name, value in rest.items() if isinstance(value, Untried)
    }
    return copy.deepcopy((history, {**rest, **tried}))


@pytest.mark.parametrize("search", ["random", f"{__name__}:Few"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_question_changes_nothing(schedule: object, search: str) -> None:
    events = run(schedule, search, checkpoint={"keep_last": 1, "keep_best": 1}).events
    planner = Planner()
    for event in events:
        before = state(planner)
        found = planner.next(event.t)
        assert planner.next(event.t) == found
        assert state(planner) == before
        planner.apply(event)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_sampler_that_has_nothing_left_ends_the_experiment_the_same_for_one_who_was_never_asked_before(
    schedule: object,
) -> None:
    done = run(schedule, f"{__name__}:Few")
    assert len(done.history.trials) == 5
    assert done.history.closed is not None
    check_log(done.events)
    check_resumes(done.spec, done.objective)
