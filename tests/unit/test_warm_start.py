"""What the trials of an earlier experiment say about a new one: told where it can be compared,
refused with the reason where not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from regrow.infra.log.log import Log
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import Closing, Created, decode, encode
from regrow.search.history import History
from regrow.search.measured import Known
from regrow.search.planning.learning import known_from, learnt_from
from regrow.search.planning.planner import Planner
from regrow.search.planning.results import as_result
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.samplers.base import Proposal, Result
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from regrow.search.spec.parts import WarmStart

SPACE: dict[str, Any] = {
    "lr": {"loguniform": [1e-4, 1.0]},
    "kind": {"choice": ["mlp", "cnn"]},
    "epochs": 3,
}


class Listens:
    """Notes all that it is told."""

    heard: list[Result]
    last: Listens

    def __init__(self, setting: Setting) -> None:
        self.heard, self.space = [], setting.space
        Listens.last = self

    def ask(self, number: int, seed: int) -> Proposal:
        config: dict[str, Any] = {}
        for parameter in self.space.flat:
            if parameter.active(config):
                config[parameter.name] = parameter.domain.quantile((number % 12 + 1) / 13)
        return Proposal(config=config)

    def tell(self, result: Result) -> None:
        self.heard.append(result)


def spec(**changes: Any) -> Spec:
    given = {
        "name": "old",
        "trainable": "work.py:train",
        "metric": "loss",
        "mode": "min",
        "space": SPACE,
        "search": f"{__name__}:Listens",
        "trials": 12,
        "max_steps": 3,
        **changes,
    }
    return Spec.parse(given)


def curve(config: Mapping[str, Any], step: int) -> Mapping[str, float]:
    return {"loss": config.get("lr", 1.0) + 1 / step, "memory": 7.0}


def earlier(run: Callable[[Simulation], None] | None = None, **changes: Any) -> History:
    of = spec(**changes)
    objective = FunctionObjective(function=curve, spec=of)
    if run is None:
        return simulate(of, objective, workers=2).history
    made = Simulation(spec=of, objective=objective, workers=2).open()
    run(made)
    return made.history


def known(old: History, new: Spec, **start: Any) -> tuple[list[Known], int]:
    return known_from(old, new, WarmStart(experiment="old", **start), "warm_start.0")


def refused(old: History, new: Spec, **start: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        known(old, new, **start)
    assert caught.value.key == "warm_start.0"
    return caught.value


# What is taken over


def test_the_ended_trials_of_the_same_space_are_taken_over_with_their_curves() -> None:
    old = earlier()
    found, outside = known(old, spec(name="new"))
    assert (len(found), outside) == (12, 0)
    first, trial = found[0], old.trials[0]
    assert first.config == trial.config
    assert (first.status, first.origin) == ("done", "old:0")
    assert first.curve == list(enumerate(trial.values, start=1))
    assert first.value == min(trial.values)


def test_stopped_and_failed_trials_are_taken_over_as_such_and_open_ones_are_not() -> None:
    def run(made: Simulation) -> None:
        made.run(most_events=12)
        made.fail(made.running[0].trial, "made to fail")
        made.run(most_events=30)
        made.record(Closing(t=made.now, status="interrupted", why="by the user", by="user"))

    old = earlier(run)
    found, _ = known(old, spec(name="new"))
    ended = [trial for trial in old.trials if trial.state.final]
    assert 0 < len(ended) < len(old.trials)
    assert [(one.origin, one.status) for one in found] == [
        (f"old:{t.number}", t.state.value) for t in ended
    ]
    assert "failed" in {one.status for one in found}


def test_a_trial_whose_configuration_changed_under_way_has_no_result_of_its_own() -> None:
    old = earlier(
        space={"lr": {"loguniform": [1e-4, 1.0]}},
        schedule={"pbt": {"perturbation_interval": 1, "quantile_fraction": 0.5}},
        trials=4,
        search="random",
    )
    changed = {trial.number for trial in old.trials if trial.changes}
    assert changed
    found, _ = known(old, spec(name="new", space={"lr": {"loguniform": [1e-4, 1.0]}}))
    assert {int(one.origin.split(":")[1]) for one in found} == {
        t.number for t in old.trials
    } - changed


def test_a_trial_outside_of_the_new_ranges_is_left_out_and_counted() -> None:
    old = earlier()
    narrow = spec(name="new", space={**SPACE, "lr": {"loguniform": [1e-2, 1.0]}})
    found, outside = known(old, narrow)
    assert len(found) + outside == 12
    assert 0 < outside < 12
    assert all(one.config["lr"] >= 1e-2 for one in found)


def test_another_kind_of_parameter_of_that_name_takes_what_fits() -> None:
    old = earlier()
    found, outside = known(old, spec(name="new", space={**SPACE, "kind": "mlp"}))
    assert {one.config["kind"] for one in found} == {"mlp"}
    assert outside == sum(trial.config["kind"] == "cnn" for trial in old.trials) > 0
    found, outside = known(
        old, spec(name="new", space={**SPACE, "lr": {"choice": ["low", "high"]}})
    )
    assert (found, outside) == ([], 12)


def test_what_was_fixed_there_may_vary_here() -> None:
    old = earlier()
    found, outside = known(old, spec(name="new", space={**SPACE, "epochs": {"int": [1, 5]}}))
    assert (len(found), outside) == (12, 0)
    assert {one.config["epochs"] for one in found} == {3}


def test_a_new_parameter_has_the_value_that_is_given() -> None:
    new = spec(
        name="new",
        space={**SPACE, "dropout": {"uniform": [0.0, 0.5]}, "sub": {"n": {"int": [1, 3]}}},
    )
    found, outside = known(earlier(), new, given={"dropout": 0.0, "sub.n": 2})
    assert (len(found), outside) == (12, 0)
    assert {(one.config["dropout"], one.config["sub.n"]) for one in found} == {(0.0, 2)}
    for one in found:
        assert new.space.point(one.config, "p") == one.config


def test_a_new_constant_needs_no_value() -> None:
    found, _ = known(earlier(), spec(name="new", space={**SPACE, "amp": True}))
    assert {one.config["amp"] for one in found} == {True}


def test_a_parameter_that_made_no_difference_is_ignored() -> None:
    found, outside = known(
        earlier(), spec(name="new", space={"lr": {"loguniform": [1e-4, 1.0]}}), ignore=["kind"]
    )
    assert (len(found), outside) == (12, 0)
    assert list(found[0].config) == ["lr"]


def test_of_several_metrics_all_are_taken_over() -> None:
    both = [{"name": "loss", "mode": "min"}, {"name": "memory", "mode": "min"}]
    old = earlier(metric=both, mode=None, search="random")
    found, _ = known(old, spec(name="new", metric=both, mode=None, search="random"))
    assert found[0].values == [old.trials[0].values[-1], 7.0]
    found, _ = known(old, spec(name="new"))
    assert found[0].values is None


# What is refused


def test_a_metric_of_a_constraint_that_was_not_reported_there_is_broken_without_bound() -> None:
    new = spec(constraints=["latency <= 10", "loss <= 1e308"])
    found, _ = known(earlier(), new)
    assert {one.violations[0] for one in found} == {None}
    assert all(isinstance(one.violations[1], float) for one in found)
    event = Created(t=0, id="i", spec=new.record(), known=found)
    assert decode(encode(event)) == event
    assert as_result(-1, found[0]).violations[0] == math.inf
    assert learnt_from(earlier(), new, "old", "learn_from") == []


def test_another_metric_or_direction_is_refused() -> None:
    old = earlier()
    assert "optimised min loss, this experiment max loss" in str(
        refused(old, spec(name="new", mode="max"))
    )
    assert "optimised min loss, this experiment min memory" in str(
        refused(old, spec(name="new", metric="memory"))
    )


def test_a_parameter_that_is_new_needs_its_value_there() -> None:
    error = refused(
        earlier(), spec(name="new", space={**SPACE, "dropout": {"uniform": [0.0, 0.5]}})
    )
    assert (error.problem, error.hint) == (
        "had no parameter 'dropout'",
        "say what it was there: given: {dropout: ...}",
    )


def test_a_parameter_that_is_gone_must_be_said_to_make_no_difference() -> None:
    error = refused(earlier(), spec(name="new", space={"lr": {"loguniform": [1e-4, 1.0]}}))
    assert (error.problem, error.hint) == (
        "had a parameter 'kind' that this one has not",
        "if it made no difference, write ignore: [kind]",
    )


@pytest.mark.parametrize("start", [{"given": {"knd": "mlp"}}, {"ignore": ["knd"]}])
def test_a_misspelt_name_is_refused_with_the_nearest(start: dict[str, Any]) -> None:
    error = refused(earlier(), spec(name="new"), **start)
    assert (error.value, error.hint) == ("knd", "did you mean 'kind'?")


# What the new experiment makes of it


def test_the_sampler_is_told_before_the_first_proposal_in_negative_numbers() -> None:
    found, _ = known(earlier(), spec(name="new"))
    of = spec(
        name="new",
        trials=1,
        points=[{"config": {"lr": 0.5, "kind": "cnn"}, "metrics": {"loss": 0.1}}],
    )
    planner = Planner()
    planner.apply(Created(t=0, id="i", spec=of.to_json(), known=found))
    planner._sampling  # noqa: B018 - it tells
    heard = Listens.last.heard
    assert [result.number for result in heard] == list(range(-1, -14, -1))
    assert heard[0].value == 0.1, "the user's own points come first"
    assert (heard[1].config, heard[1].value, heard[1].status) == (
        found[0].config,
        found[0].value,
        "done",
    )
    assert list(heard[1].intermediate) == found[0].curve
    assert len(planner.history.trials) == 0


def test_it_is_in_the_log_so_that_the_earlier_experiment_may_be_deleted() -> None:
    found, _ = known(earlier(), spec(name="new"))
    created = Created(t=0, id="i", spec=spec(name="new").to_json(), known=found)
    again = decode(encode(created))
    assert isinstance(again, Created)
    assert msgspec.to_builtins(again) == msgspec.to_builtins(created)


@pytest.mark.parametrize("search", ["random", "cmaes", "tpe", "nsga2"])
def test_samplers_bear_a_warm_start_and_their_decisions_can_be_recomputed(search: str) -> None:
    of = spec(name="new", trials=15, search=search, space={"lr": {"loguniform": [1e-4, 1.0]}})
    found, _ = known(earlier(), of, ignore=["kind"])
    warm = Simulation(spec=of, objective=FunctionObjective(function=curve, spec=of), workers=1)
    warm.events, log = [], [Created(t=0, id="i", spec=of.to_json(), known=found)]
    warm.open(log).run()
    assert verify(warm.events).difference is None
    cold = simulate(of, FunctionObjective(function=curve, spec=of), workers=1)
    proposals = [[trial.config for trial in run.history.trials] for run in (warm, cold)]
    if search in ("tpe", "cmaes"):
        assert proposals[0] != proposals[1], "what is known changes what a model proposes"


# From a state root


def put(places: Places, history_of: Simulation) -> None:
    """The log of an experiment as a driver leaves it."""
    Log.open(places.store(history_of.spec.name)).claim(
        [encode(event) for event in history_of.events]
    )


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(root=str(tmp_path / "state"))
    of = spec()
    put(found, simulate(of, FunctionObjective(function=curve, spec=of), workers=1))
    return found


def test_an_experiment_of_the_state_root_is_read(places: Places) -> None:
    prepared = prepare(places, "new", spec(name="new", warm_start=["old"]), trials=None, code=None)
    assert [one.origin for one in prepared.known] == [f"old:{n}" for n in range(12)]


def test_several_are_read_in_their_order(places: Places) -> None:
    of = spec(name="older", trials=2)
    put(places, simulate(of, FunctionObjective(function=curve, spec=of), workers=1))
    new = spec(name="new", warm_start=["older", {"experiment": "old", "given": {}}])
    found = prepare(places, "new", new, trials=None, code=None).known
    assert [one.origin for one in found][:3] == ["older:0", "older:1", "old:0"]


@pytest.mark.parametrize(
    ("start", "changes", "key", "said"),
    [
        (["nobody"], {}, "warm_start.0", "nobody"),
        (["old", "nobody"], {}, "warm_start.1", "nobody"),
        (
            ["old"],
            {"space": {**SPACE, "lr": {"loguniform": [2.0, 3.0]}}},
            "warm_start.0",
            "no trial in this space (12 lie outside)",
        ),
        (["old"], {"mode": "max"}, "warm_start.0", "optimised min loss"),
    ],
)
def test_one_that_says_nothing_about_it_is_refused_with_the_reason(
    places: Places, start: Any, changes: dict[str, Any], key: str, said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        prepare(
            places, "new", spec(name="new", warm_start=start, **changes), trials=None, code=None
        )
    assert caught.value.key == key
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("start", "key"),
    [
        ([{"given": {}}], "warm_start.0.experiment"),
        ([{"experiment": "old", "gven": {}}], "warm_start.0.gven"),
        ([3], "warm_start.0"),
    ],
)
def test_a_wrong_form_is_refused_with_its_key(start: Any, key: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(warm_start=start)
    assert caught.value.key == key
