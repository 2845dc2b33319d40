"""What Ray Tune's words become: a Tuner's arguments as the keys of our specification, and
configurations as a trainable sees them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune import schedulers as rays_schedulers
from ray.tune.search import ConcurrencyLimiter, Repeater
from ray.tune.search import optuna as rays_optuna
from ray.tune.stopper import CombinedStopper, MaximumIterationStopper, TimeoutStopper

from regrow.integrations.tune.recorded import given, recording
from regrow.integrations.tune.script import run_script
from regrow.integrations.tune.templates import render
from regrow.integrations.tune.translation import Translation, TuneArguments, translated
from regrow.integrations.tune.tuner import with_parameters
from regrow.integrations.tune.unsupported import unsupported_calls
from regrow.search.errors import SpecError
from regrow.search.samplers import make
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

durable: Any = import_module("regrow.tune")
ASHAScheduler = durable.schedulers.ASHAScheduler
HyperBandScheduler = durable.schedulers.HyperBandScheduler
MedianStoppingRule = durable.schedulers.MedianStoppingRule
PopulationBasedTraining = durable.schedulers.PopulationBasedTraining
PB2 = durable.schedulers.pb2.PB2
BasicVariantGenerator = durable.search.BasicVariantGenerator
HyperOptSearch = durable.search.hyperopt.HyperOptSearch
OptunaSearch = import_module("regrow.tune.search.optuna").OptunaSearch


def train(config: dict[str, Any]) -> None:
    """A function trainable."""


def found(
    space: dict[str, Any], *, run: Any = None, trainable: Any = train, **config: Any
) -> tuple[Translation, Spec]:
    asked = TuneArguments(
        trainable=trainable,
        param_space=space,
        tune=tune.TuneConfig(**config),
        run=run or tune.RunConfig(),
    )
    translation = translated(asked, "script")
    return translation, Spec.parse({"trainable": "pickled", **translation.options})


def configs(space: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    """What the trials of an experiment are given, in order."""
    translation, spec = found(space, metric="m", mode="max", **config)
    sampler = make(spec.search, spec.setting)
    proposals = [sampler.ask(number, number) for number in range(spec.total)]
    flat = [spec.space.nest(one.config) for one in proposals if one is not None]
    return [render(translation.trainable.template, one, number) for number, one in enumerate(flat)]


@pytest.mark.parametrize(
    "domain",
    [
        tune.qrandint(4, 128, 8),
        tune.qrandint(1, 10, 3),
        tune.qrandint(10, 100, 25),
        tune.qrandint(-7, 7, 3),
        tune.qrandint(2, 6, 1),
        tune.qrandint(5, 9, 5),
        tune.qlograndint(4, 64, 8),
        tune.qlograndint(1, 10, 3),
        tune.quniform(1.0, 10.0, 0.5),
        tune.quniform(1, 10, 1),
        tune.quniform(-0.2, 0.3, 0.1),
        tune.qloguniform(0.1, 2.0, 0.1),
        tune.qloguniform(0.25, 1, 0.25),
        tune.qrandn(10, 2, 0.5),
        tune.qrandn(0, 1, 1),
    ],
)
def test_quantised_numbers_are_the_multiples_that_tune_draws(domain: Any) -> None:
    np.random.seed(0)  # noqa: NPY002 - what Tune draws from
    theirs = {round(float(one), 9) for one in domain.sample(size=2000)}
    ours = [one["x"] for one in configs({"x": domain}, num_samples=600)]
    assert {type(one) for one in ours} == {type(domain.sample())}
    if domain.lower == -math.inf:
        assert all(one % domain.sampler.q == 0 for one in ours)
    else:
        assert {round(float(one), 9) for one in ours} == theirs


def test_a_range_without_a_multiple_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"param_space.a.x.bounds: \[5, 7\]: holds no multiple of 8; give it wider bounds, or a smaller q",
    ):
        found({"a": {"x": tune.qrandint(5, 7, 8)}}, metric="m", mode="max")


@pytest.mark.parametrize("given", [tune.choice([]), {"grid_search": 5}])
def test_a_list_without_values_is_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"param_space.a.x: .* is no list of values"):
        found({"a": {"x": given}}, metric="m", mode="max")


def test_what_no_log_can_hold_reaches_a_trial_unchanged() -> None:
    odd = {"text": "\ud800", "number": 10**400, "lr": tune.uniform(0, 1)}
    translation, _ = found(odd, metric="m", mode="max")
    assert render(translation.trainable.template, {"lr": 0.5}, 0) == {**odd, "lr": 0.5}


@pytest.mark.parametrize(
    ("scheduler", "key"),
    [
        (ASHAScheduler(max_t=10, grace_period=10), "schedule.asha.grace_period"),
        (HyperBandScheduler(max_t=2), "schedule.hyperband"),
        (
            MedianStoppingRule(time_attr="training_iteration", grace_period=60),
            "schedule.median.grace_period",
        ),
        (
            PopulationBasedTraining(
                "training_iteration",
                perturbation_interval=10,
                hyperparam_mutations={"x": tune.uniform(0, 1)},
            ),
            "schedule.pbt.perturbation_interval",
        ),
    ],
)
def test_a_scheduler_that_could_never_decide_anything_is_refused(scheduler: Any, key: str) -> None:
    run = tune.RunConfig(stop={"training_iteration": 10})
    with pytest.raises(SpecError) as wrong:
        found(
            {"x": tune.uniform(0, 1)},
            run=run,
            scheduler=scheduler,
            num_samples=4,
            metric="m",
            mode="max",
        )
    assert wrong.value.key == key


def test_samples_are_multiplied_by_the_cells_of_grids() -> None:
    space = {
        "a": tune.grid_search([1, 2]),
        "b": {"c": tune.grid_search(["x", "y", "z"])},
        "d": tune.uniform(0, 1),
    }
    made = configs(space, num_samples=2)
    assert len(made) == 12
    assert sorted((one["a"], one["b"]["c"]) for one in made) == sorted(
        [(a, c) for a in (1, 2) for c in "xyz"] * 2
    )
    assert len({one["d"] for one in made}) == 12


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (tune.uniform(0, 1), {"uniform": [0.0, 1.0]}),
        (tune.loguniform(1e-3, 1), {"loguniform": [1e-3, 1.0]}),
        (tune.quniform(0, 1, 0.25), {"quniform": [0.0, 1.0, 0.25]}),
        (tune.randint(1, 9), {"int": [1, 8]}),
        (tune.lograndint(1, 9), {"logint": [1, 8]}),
        (tune.qrandint(0, 8, 2), {"int": [0, 8], "step": 2}),
        (tune.randn(1, 2), {"normal": [1.0, 2.0]}),
        (tune.choice([1, "a", None]), {"choice": [1, "a", None]}),
        (tune.grid_search([16, 32]), {"grid": [16, 32]}),
        (3, 3),
        ([1, 2], {"constant": [1, 2]}),
    ],
)
def test_each_domain_has_its_counterpart(theirs: Any, ours: Any) -> None:
    _, spec = found({"p": theirs, "other": tune.uniform(0, 1)}, metric="m", mode="max")
    assert spec.space.to_json()["p"] == ours


def test_values_that_no_log_can_hold_are_chosen_by_index_and_handed_on() -> None:
    made = configs(
        {"f": tune.grid_search([len, max]), "t": (1, 2), "g": min, "n": tune.choice([[1], [2]])}
    )
    assert [one["f"] for one in made] == [len, max]
    assert {one["t"] for one in made} == {(1, 2)}
    assert all(one["g"] is min and one["n"] in ([1], [2]) for one in made)


def test_functions_of_sample_from_are_called_with_the_rest_and_give_each_attempt_the_same() -> None:
    # which may be given a function of nothing, and one of something with attributes
    late: Any = tune.sample_from
    space = {
        "c": late(lambda spec: spec.config.b + 1),
        "b": late(lambda config: config["a"] * 2),
        "a": tune.grid_search([1, 5]),
        "r": late(lambda: random.uniform(0, 1)),
    }
    state = random.getstate()
    made = configs(space)
    assert random.getstate() == state
    assert [(one["a"], one["b"], one["c"]) for one in made] == [(1, 2, 3), (5, 10, 11)]
    assert [one["r"] for one in made] == [one["r"] for one in configs(space)]
    with pytest.raises(ValueError, match="need each other"):
        configs({"a": late(lambda s: s.b), "b": late(lambda s: s.a), "x": tune.uniform(0, 1)})


def test_names_that_ours_cannot_have_are_theirs_for_the_trainable() -> None:
    assert configs(
        {"a.b": tune.grid_search([1]), "when": 2, "g": {"step": tune.grid_search([3])}}
    ) == [{"a.b": 1, "when": 2, "g": {"step": 3}}]


def test_without_anything_to_search_there_are_as_many_trials_as_samples() -> None:
    assert configs({"a": 1}, num_samples=3) == [{"a": 1}] * 3


def test_searchers_are_ours_and_that_is_said() -> None:
    space = {"a": tune.uniform(0, 1)}
    limited = ConcurrencyLimiter(
        HyperOptSearch(metric="m", mode="min", n_initial_points=7), max_concurrent=3
    )
    translation, spec = found(space, search_alg=limited)
    assert (spec.search, spec.concurrency, spec.metric, spec.mode) == (
        {"tpe": {"n_startup_trials": 7}},
        3,
        "m",
        "min",
    )
    assert translation.notes == ["search: HyperOptSearch is regrow's tpe"]
    translation, spec = found(
        space,
        metric="m",
        mode="max",
        search_alg=Repeater(OptunaSearch(seed=5), repeat=2),
        num_samples=3,
    )
    assert (spec.seed, spec.repeats, spec.trials) == (5, 2, 4), "num_samples counts all"
    translation, spec = found(
        space, metric="m", mode="max", search_alg=BasicVariantGenerator(max_concurrent=2)
    )
    assert (spec.search, spec.concurrency, translation.notes) == ("random", 2, [])


def test_ray_tunes_own_searcher_works_beside_regrow_tune() -> None:
    searcher: Any = rays_optuna.OptunaSearch(
        {"a": tune.uniform(0, 1)}, metric="m", mode="max", seed=1
    )
    config = searcher.suggest("one")
    assert 0 <= config["a"] <= 1
    searcher.on_trial_complete("one", {"m": 1.0})
    assert searcher.suggest("two") != config


def test_rays_classes_record_only_while_a_script_runs() -> None:
    own = (rays_optuna.OptunaSearch, rays_schedulers.ASHAScheduler)
    before = [vars(cls)["__init__"] for cls in own]
    with recording():
        made = [rays_optuna.OptunaSearch(seed=5), rays_schedulers.ASHAScheduler(max_t=7)]
    assert [vars(cls)["__init__"] for cls in own] == before
    assert (given(made[0])["seed"], given(made[1])["max_t"]) == (5, 7)


def test_names_of_regrow_tune_are_rays_and_record() -> None:
    scheduler = durable.create_scheduler("async_hyperband", max_t=7)
    assert isinstance(ASHAScheduler(max_t=7), type(scheduler))
    assert given(scheduler) == given(ASHAScheduler(max_t=7))
    assert given(durable.create_searcher("hyperopt", metric="m", mode="max"))["metric"] == "m"
    assert durable.schedulers.FIFOScheduler is rays_schedulers.FIFOScheduler
    assert durable.search.ConcurrencyLimiter is ConcurrencyLimiter
    assert "ASHAScheduler" in durable.schedulers.__all__
    assert not hasattr(durable.search.hebo, "__file__"), "looking for a file imports no library"


def test_a_scheduler_of_rays_own_is_refused_with_what_to_import() -> None:
    with pytest.raises(UserError, match=r"import it from regrow\.tune"):
        found(
            {"a": tune.uniform(0, 1)},
            metric="m",
            mode="max",
            scheduler=rays_schedulers.ASHAScheduler(),
        )


def test_points_to_evaluate_come_first_and_may_leave_parameters_out() -> None:
    space = {"a": tune.uniform(0, 1), "b": tune.uniform(0, 1)}
    _, spec = found(
        space,
        metric="m",
        mode="max",
        search_alg=OptunaSearch(points_to_evaluate=[{"a": 0.5}, {"a": 0.1, "b": 0.2}]),
    )
    assert [point.config["a"] for point in spec.points] == [0.5, 0.1]
    assert spec.points[1].config["b"] == 0.2


def test_a_space_of_hyperopts_is_ours_with_its_conditions() -> None:
    hp = pytest.importorskip("hyperopt").hp
    space = {
        "kind": hp.choice(
            "kind", [{"name": "relu", "mult": hp.uniform("mult", 1, 2)}, {"name": "tanh"}]
        ),
        "n": hp.uniformint("n", 1, 5),
        "lr": hp.loguniform("lr", -2, 0),
        "q": hp.quniform("q", 0, 1, 0.5),
        "fixed": 7,
    }
    translation, spec = found({}, search_alg=HyperOptSearch(space=space, metric="m", mode="min"))
    assert spec.space.to_json() == {
        "kind": {"choice": [0, 1]},
        "mult": {"uniform": [1.0, 2.0], "when": {"kind": [0]}},
        "n": {"int": [1, 5]},
        "lr": {"loguniform": [pytest.approx(0.1353, abs=1e-4), 1.0]},
        "q": {"quniform": [0.0, 1.0, 0.5]},
    }
    template = translation.trainable.template
    assert render(template, {"kind": 1, "n": 2, "lr": 0.5, "q": 0.0}, 0) == {
        "kind": {"name": "tanh"},
        "n": 2,
        "lr": 0.5,
        "q": 0.0,
        "fixed": 7,
    }
    assert render(template, {"kind": 0, "mult": 1.5, "n": 2, "lr": 0.5, "q": 0.0}, 0)["kind"] == {
        "name": "relu",
        "mult": 1.5,
    }


@pytest.mark.parametrize(
    ("scheduler", "schedule", "steps", "clock"),
    [
        (
            ASHAScheduler(max_t=9, grace_period=2),
            {"asha": {"grace_period": 2, "reduction_factor": 4}},
            9,
            None,
        ),
        (
            ASHAScheduler("epoch", max_t=9, brackets=2, reduction_factor=3),
            {"async_hyperband": {"grace_period": 1, "reduction_factor": 3, "brackets": 2}},
            9,
            "epoch",
        ),
        (HyperBandScheduler(max_t=27), {"hyperband": {"reduction_factor": 3}}, 27, None),
        (
            MedianStoppingRule(grace_period=30),
            {"median": {"grace_period": 30, "min_samples_required": 3, "interval": 1}},
            None,
            "time_total_s",
        ),
        ("fifo", "fifo", None, None),
    ],
)
def test_each_scheduler_has_its_counterpart(
    scheduler: Any, schedule: Any, steps: int | None, clock: str | None
) -> None:
    _, spec = found({"a": tune.uniform(0, 1)}, metric="m", mode="max", scheduler=scheduler)
    assert (spec.schedule, spec.max_steps) == (schedule, steps)
    assert (spec.step_metric.name if spec.step_metric else None) == clock


def population(mutations: dict[str, Any]) -> Any:
    return PopulationBasedTraining(
        "training_iteration", perturbation_interval=2, hyperparam_mutations=mutations
    )


def test_a_population_begins_from_constants_and_changes_them_within_the_mutations() -> None:
    space = {"lr": 0.5, "momentum": tune.uniform(0, 1), "opt": {"beta": 0.9}, "fixed": 7}
    scheduler = population({"lr": tune.loguniform(1e-3, 0.1), "opt": {"beta": [0.99, 0.95]}})
    translation, spec = found(space, metric="m", mode="max", scheduler=scheduler, num_samples=3)
    assert spec.space.to_json() == {
        "lr": {"loguniform": [1e-3, 0.5]},
        "momentum": {"uniform": [0.0, 1.0]},
        "opt": {"beta": {"choice": [0.99, 0.95, 0.9]}},
        "fixed": 7,
    }
    assert [(point.config["lr"], point.config["opt"]["beta"]) for point in spec.points] == [
        (0.5, 0.9)
    ] * 3
    assert len({point.config["momentum"] for point in spec.points}) == 3
    assert isinstance(spec.schedule, dict)
    assert (spec.schedule["pbt"] or {})["mutate"] == ["lr", "opt.beta"]
    assert render(
        translation.trainable.template, {"lr": 0.2, "momentum": 0.3, "opt": {"beta": 0.95}}, 0
    )["opt"] == {"beta": 0.95}


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda: random.uniform(1, 2), "uniform"),
        (lambda: 10 ** random.uniform(-5, -1), "loguniform"),
        (lambda: random.randint(1, 9), "int"),
        (lambda: random.choice(["a", "b"]), "choice"),
    ],
)
def test_a_mutation_that_is_a_function_becomes_the_domain_of_its_values(
    function: Callable[[], Any], kind: str
) -> None:
    translation, spec = found(
        {}, metric="m", mode="max", scheduler=population({"p": function}), num_samples=2
    )
    assert list(spec.space.to_json()["p"]) == [kind]
    assert "p is given by a function" in translation.notes[0]


def test_pb2_explores_within_its_bounds() -> None:
    scheduler = PB2(
        "training_iteration", perturbation_interval=2, hyperparam_bounds={"lr": [0.1, 0.9]}
    )
    _, spec = found(
        {"lr": tune.uniform(0.2, 0.4)}, metric="m", mode="max", scheduler=scheduler, num_samples=4
    )
    assert spec.space.to_json() == {"lr": {"uniform": [0.1, 0.9]}}
    assert all(0.2 <= point.config["lr"] <= 0.4 for point in spec.points)


def test_stop_is_asked_at_each_report() -> None:
    def stop(run: Any) -> tuple[Callable[[str, dict[str, Any]], bool], Spec]:
        translation, spec = found(
            {"a": tune.uniform(0, 1)}, metric="m", mode="max", run=tune.RunConfig(stop=run)
        )
        return translation.trainable.stop, spec

    enough, spec = stop({"training_iteration": 5, "m": 0.9})
    assert spec.max_steps == 5
    assert [enough("t", {"m": m, "training_iteration": 1}) for m in (0.8, 0.9)] == [False, True]
    enough, spec = stop(lambda trial, result: result["m"] > 3)
    assert [enough("t", {"m": m}) for m in (3, 4)] == [False, True]
    enough, spec = stop(CombinedStopper(MaximumIterationStopper(2), TimeoutStopper(3600)))
    assert spec.stop.hours == 1
    assert [enough("t", {}) for _ in range(2)] == [False, True]


def test_run_config_keeps_checkpoints_retries_and_names() -> None:
    run = tune.RunConfig(
        name="my run/1",
        storage_path="/tmp/some",
        failure_config=tune.FailureConfig(max_failures=2),
        checkpoint_config=tune.CheckpointConfig(
            num_to_keep=3, checkpoint_frequency=4, checkpoint_score_attribute="m"
        ),
    )
    _, spec = found({"a": tune.uniform(0, 1)}, metric="m", mode="max", run=run)
    assert (spec.name, spec.state, spec.retries.error) == ("my-run-1-8ee8c7b1", "/tmp/some", 2)
    assert (spec.checkpoint.keep_best, spec.checkpoint.keep_last, spec.checkpoint.every_steps) == (
        3,
        1,
        4,
    )
    assert found({"a": 1}, metric="m", mode="max")[1].state is None


def test_resources_of_a_trial_and_of_what_it_starts() -> None:
    bundles = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 2, "oven": 1}, {"CPU": 2, "oven": 1}])
    _, spec = found(
        {"a": 1},
        metric="m",
        mode="max",
        trainable=tune.with_resources(lambda config: None, bundles),
    )
    assert (spec.resources.cpu, spec.resources.children and spec.resources.children.count) == (1, 2)
    _, spec = found(
        {"a": 1},
        metric="m",
        mode="max",
        trainable=tune.with_resources(lambda config: None, {"cpu": 2}),
    )
    assert spec.resources.cpu == 2


def test_parameters_of_functions_and_classes_go_with_them() -> None:
    assert with_parameters(lambda config, data: (config, data), data=5)({"a": 1}) == ({"a": 1}, 5)

    class Model(tune.Trainable):
        def setup(self, config: dict[str, Any], data: int = 0) -> None:
            self.data = data

    assert with_parameters(Model, data=5)({"a": 1}).data == 5


def test_without_a_metric_trials_are_ranked_by_how_far_they_came() -> None:
    translation, spec = found({"a": tune.uniform(0, 1)})
    assert (spec.metric, spec.mode, translation.metric) == ("training_iteration", "max", None)
    assert "no metric is named" in translation.notes[0]


def test_a_search_without_an_end_is_refused() -> None:
    with pytest.raises(SpecError, match=r"num_samples: .* is not a whole number"):
        found({"a": tune.uniform(0, 1)}, metric="m", mode="max", num_samples="2")
    with pytest.raises(SpecError, match=r"param_space: .* is not a map"):
        found([1], metric="m", mode="max")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="time_budget_s"):
        found({"a": tune.uniform(0, 1)}, metric="m", mode="max", num_samples=-1)
    assert (
        found({"a": tune.uniform(0, 1)}, metric="m", mode="max", num_samples=-1, time_budget_s=60)[
            1
        ].stop.hours
        == 1 / 60
    )


def test_what_has_no_counterpart_is_found_with_its_line_before_anything_runs(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from ray import tune\nfrom ray.train.torch import TorchTrainer\nraise SystemExit\ntune.run_experiments([tune.Experiment('a', f)])\n"
    )
    lines = unsupported_calls(script)
    assert [line.partition(": ")[0] for line in lines] == [
        f"{script}, line 2",
        f"{script}, line 4",
        f"{script}, line 4",
    ]
    assert "TorchTrainer is not supported" in lines[0]
    script.write_text("def (:\n")
    with pytest.raises(UserError, match="line 1"):
        unsupported_calls(script)
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        unsupported_calls(tmp_path)


def test_an_option_that_regrow_tune_does_not_have_is_told_what_to_do() -> None:
    with pytest.raises(UserError, match=r"--on is no option of regrow tune; .* RAY_ADDRESS"):
        run_script(Path("--on"), ["c.yaml", "x.py"], name=None, state=None, quiet=True)
