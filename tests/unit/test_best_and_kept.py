"""What `best` shows, and which checkpoints are kept for it: under constraints, and where
configurations change under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regrow.search import schedulers
from regrow.search.errors import SpecError
from regrow.search.events import Created, Opened, Started
from regrow.search.planning.planner import Planner
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.samplers.base import Proposal, Result
from regrow.search.schedulers import base
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from regrow.show.views import summaries


def spec(**changes: Any) -> Spec:
    return Spec.parse(
        {
            "name": "kept",
            "trainable": "a.py:b",
            "metric": "score",
            "mode": "max",
            "space": {"x": {"uniform": [0.0, 1.0]}},
            "search": "random",
            "trials": 1,
            "max_steps": 9,
            **changes,
        }
    )


def run(
    given: Spec, function: Callable[[dict[str, Any], int], Any], workers: int = 1
) -> Simulation:
    return simulate(given, FunctionObjective(function=function, spec=given), workers=workers)


def test_the_best_checkpoint_is_of_a_step_that_meets_the_constraints() -> None:
    done = run(
        spec(constraints=["lat <= 3"]), lambda _, step: {"score": float(step), "lat": float(step)}
    )
    shown = summaries.best(done.history)
    assert shown is not None
    assert (shown["step"], shown["value"]) == (3, 3.0)
    assert shown["checkpoint"] == done.history.trials[0].checkpoints[3].manifest
    assert sorted(done.history.trials[0].checkpoints) == [3, 8, 9]


def test_the_best_configuration_is_the_one_with_which_the_value_was_reached() -> None:
    """Values fall, so that every best one is of step 1, before any exploit."""
    done = run(
        spec(trials=6, schedule={"pbt": {"perturbation_interval": 2}}),
        lambda config, step: config["x"] + 1 / step,
        workers=6,
    )
    changed = [trial for trial in done.history.trials if trial.changes]
    assert changed
    for trial in done.history.trials:
        assert trial.best is not None
        assert 1 in trial.checkpoints, "the best one is kept past an exploit"
    shown = summaries.best(done.history)
    assert shown is not None
    assert shown["value"] == pytest.approx(shown["config"]["x"] + 1.0)
    assert verify(done.events).difference is None


def test_an_attempt_is_never_wider_than_a_node() -> None:
    given = spec(trials=2, schedule=f"{__name__}:Wide")
    planner, now = Planner(), 0.0
    planner.apply(Created(t=now, id="e", spec=given.to_json()))
    planner.apply(Opened(t=now, by="driver", driver="d", slots=8, trials=2, widest=3))
    widths = []
    while (event := planner.next(now)) is not None:
        planner.apply(event)
        if isinstance(event, Started):
            widths.append(event.width)
    assert widths == [3, 3]
    alone = schedulers.make({"resource_changing": {"interval": 2}}, spec().setting)
    alone.apply(base.Opening(slots=8, widest=3))
    alone.apply(base.Candidate(trial=0, config={}))
    assert isinstance(alone, base.Widening)
    assert alone.width(0) == 3


def test_a_known_point_needs_the_metrics_of_the_constraints() -> None:
    point = {"config": {"x": 0.5}, "metrics": {"score": 1.0}}
    with pytest.raises(SpecError, match="lacks a metric of the constraints; give lat"):
        spec(constraints=["lat <= 3"], points=[point])
    heard: list[tuple[float, ...]] = []
    given = spec(
        constraints=["lat <= 3"],
        points=[{**point, "metrics": {"score": 1.0, "lat": 5.0}}],
        search=f"{__name__}:Hears",
    )
    Hears.told = heard
    run(given, lambda *_: {"score": 1.0, "lat": 1.0})
    assert heard[0] == (2.0,)


class Wide(base.Scheduler):
    """Wants more than there is."""

    def width(self, trial: int) -> int:
        return 5


class Hears:
    """Notes by how much the constraints were broken."""

    several = True
    told: list[tuple[float, ...]]

    def __init__(self, setting: Setting) -> None:
        pass

    def ask(self, number: int, seed: int) -> Proposal:
        return Proposal(config={"x": 0.5})

    def tell(self, result: Result) -> None:
        self.told.append(result.violations)
