"""No setting of Ray Tune's is dropped in silence: each parameter of its public signatures is used,
refused, or told in a line.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune import result_grid as rays_results

import regrow as rg
from regrow.integrations.tune.analysis import ExperimentAnalysis
from regrow.integrations.tune.callback_dispatcher import CallbackDispatcher
from regrow.integrations.tune.private import asked_for, default_storage, tune_run
from regrow.integrations.tune.results import Result, ResultGrid
from regrow.integrations.tune.translation import TuneArguments
from regrow.integrations.tune.tuner import ScriptSession, Tuner, run
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError
from tests.unit.tuned import Tuned, translate, tuned

__all__ = ["tuned"]
durable: Any = import_module("regrow.tune")
recorded: Any = import_module("regrow.integrations.tune.recorded")
tuner: Any = import_module("regrow.integrations.tune.tuner")


def train(config: dict[str, Any]) -> None:
    """A trainable."""


USED = {
    "TuneConfig": {
        "mode",
        "metric",
        "search_alg",
        "scheduler",
        "num_samples",
        "max_concurrent_trials",
        "time_budget_s",
    },
    "RunConfig": {
        "name",
        "storage_path",
        "failure_config",
        "checkpoint_config",
        "stop",
        "callbacks",
        "verbose",
    },
    "FailureConfig": {"max_failures", "fail_fast"},
    "CheckpointConfig": {
        "num_to_keep",
        "checkpoint_score_attribute",
        "checkpoint_score_order",
        "checkpoint_frequency",
    },
}
"""What the other tests here and in test_tune.py show to have an effect."""
REFUSED = {"local_dir", "chdir_to_trial_dir", "storage_filesystem"}
"""What is refused, the first two by Ray itself."""


@pytest.mark.parametrize("name", list(USED))
def test_each_setting_is_used_or_told(name: str) -> None:
    cls: Any = getattr(tune, name)
    own = "regrow"
    for field in dataclasses.fields(cls):
        if field.name in USED[name] or field.name.startswith("_") or field.name in REFUSED:
            continue
        value = not field.default if isinstance(field.default, bool) else own
        settings = cls(**{field.name: value})
        if name == "TuneConfig":
            more: Any = {field.name: value}
            found = translate(train, **more)
        elif name == "RunConfig":
            found = translate(train, run=settings)
        else:
            part = "failure_config" if name == "FailureConfig" else "checkpoint_config"
            found = translate(train, run=tune.RunConfig(**{part: settings}))
        assert any(field.name in line for line in found.notes), field.name
    with pytest.raises(SpecError, match="storage_filesystem"):
        translate(train, run=tune.RunConfig(storage_filesystem=object(), storage_path="/x"))


def test_no_setting_that_has_an_effect_is_told_as_unused() -> None:
    given: dict[str, Any] = {"num_samples": 7, "max_concurrent_trials": 2, "time_budget_s": 60}
    kept = tune.CheckpointConfig(
        num_to_keep=2,
        checkpoint_score_attribute="score",
        checkpoint_score_order="min",
        checkpoint_frequency=3,
    )
    run = tune.RunConfig(
        name="all",
        storage_path="/nowhere",
        failure_config=tune.FailureConfig(max_failures=3),
        checkpoint_config=kept,
        stop={"training_iteration": 5},
        verbose=0,
    )
    said = translate(train, run=run, **given).notes
    assert [line for line in said if "is not used" in line] == []


class Recording:
    """A session that only notes what it is asked to run."""

    def __init__(self) -> None:
        self.asked: TuneArguments

    def run(self, asked: TuneArguments) -> Any:
        self.asked = asked
        raise LookupError


def run_says(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], **given: Any
) -> tuple[TuneArguments, str]:
    session = Recording()
    monkeypatch.setattr(Tuner, "session", session)
    capfd.readouterr()
    with pytest.raises(LookupError):
        run(train, metric="score", mode="max", **given)
    return session.asked, capfd.readouterr().err


def test_each_argument_of_run_is_passed_on_or_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {
        field.name for cls in (tune.TuneConfig, tune.RunConfig) for field in dataclasses.fields(cls)
    }
    here = {"run_or_experiment", "metric", "mode", "local_dir", "chdir_to_trial_dir", "name"}
    for name, parameter in inspect.signature(tune_run()).parameters.items():
        if name in here | settings or name.startswith("_"):
            continue
        if name == "restore":
            with pytest.raises(UserError, match="restore='somewhere': no first checkpoint"):
                run(train, restore="somewhere")
            continue
        given: Any = {
            "config": {"a": 1},
            "resources_per_trial": {"cpu": 2},
            "max_failures": 2,
            "fail_fast": True,
            "checkpoint_config": tune.CheckpointConfig(num_to_keep=2),
            "checkpoint_score_attr": "score",
            "raise_on_failed_trial": False,
            "resume": "AUTO+RESTART_ERRORED",
            "resume_config": tune.ResumeConfig(errored="restart"),
        }.get(name, 1 if parameter.default in (0, None, False) else None)
        plain, _ = run_says(monkeypatch, capfd)
        asked, said = run_says(monkeypatch, capfd, **{name: given})
        changed = repr(asked) != repr(plain) or asked_for(asked.trainable) is not None
        assert changed or name in said or "restart" in said or name == "raise_on_failed_trial", name
    assert run_says(monkeypatch, capfd, resume="ERRORED_ONLY")[0].retry_failed
    assert not run_says(monkeypatch, capfd, resume=True)[0].retry_failed
    with pytest.raises(TypeError, match="unexpected keyword argument 'metrics'"):
        run(train, metrics="score")


def names(function: Callable[..., Any]) -> set[str]:
    return {name for name in inspect.signature(function).parameters if not name.startswith("_")}


@pytest.mark.parametrize(
    ("theirs", "ours", "but"),
    [
        (tune.Tuner.__init__, Tuner.__init__, set()),
        (tune.Tuner.restore, Tuner.restore, set()),
        (tune.Tuner.can_restore, Tuner.can_restore, set()),
        (rays_results.ResultGrid.get_best_result, ResultGrid.get_best_result, set()),
        (rays_results.ResultGrid.get_dataframe, ResultGrid.get_dataframe, set()),
        (tune.Result.get_best_checkpoint, Result.get_best_checkpoint, set()),
        *(
            (getattr(tune.ExperimentAnalysis, name), getattr(ExperimentAnalysis, name), set())
            for name, thing in vars(tune.ExperimentAnalysis).items()
            if not name.startswith("_") and inspect.isfunction(thing)
        ),
    ],
    ids=lambda thing: getattr(thing, "__qualname__", ""),
)
def test_what_reads_results_takes_rays_arguments(theirs: Any, ours: Any, but: set[str]) -> None:
    assert names(theirs) - but <= names(ours)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (rays_results.ResultGrid, ResultGrid),
        (tune.Result, Result),
        (tune.ExperimentAnalysis, ExperimentAnalysis),
    ],
)
def test_results_have_rays_attributes(theirs: Any, ours: Any, tuned: Tuned) -> None:
    made: Any = tuned(reports, {"a": 1})
    made = made if ours is ResultGrid else made[0] if ours is Result else analysis(made)
    fields = {one.name for one in dataclasses.fields(theirs)} if ours is Result else set()
    for name in {*vars(theirs), *fields}:
        if not name.startswith("_"):
            assert hasattr(made, name), name


def analysis(grid: ResultGrid) -> ExperimentAnalysis:
    return ExperimentAnalysis(grid, default_metric="score", default_mode="max")


def reports(config: dict[str, Any]) -> None:
    for step in range(3):
        tune.report({"score": step, "accuracy": step / 10})


@pytest.mark.parametrize(
    "place", [place for place in (*recorded.SEARCHERS, *recorded.SCHEDULERS) if "ax" not in place]
)
def test_each_argument_of_schedulers_and_searchers_is_used_or_told(place: str) -> None:
    module, _, name = place.partition(":")
    ours = getattr(import_module(module.replace("ray.", "regrow.", 1)), name)
    needed: dict[str, Any] = {
        "PopulationBasedTraining": {"hyperparam_mutations": {"a": tune.uniform(0, 1)}},
        "PB2": {"hyperparam_bounds": {"a": [0.0, 1.0]}},
    }.get(name, {})
    kind = "scheduler" if place in recorded.SCHEDULERS else "search_alg"
    known = {"self", "metric", "mode", *needed}
    space = {"a": tune.uniform(0, 1)}

    def seen(**given: Any) -> tuple[dict[str, Any], list[str]]:
        found = translate(train, space, num_samples=2, **{kind: ours(**needed, **given)})
        return found.options, found.notes

    plain = seen()
    for parameter in inspect.signature(ours.__init__).parameters.values():
        if parameter.name not in known and (value := another(parameter.default)) is not None:
            options, said = seen(**{parameter.name: value})
            told = any(parameter.name in line for line in said)
            assert told or options != plain[0], parameter.name


def another(default: Any) -> Any:
    """A value of an argument that is not its default; None for one whose kind is not known."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return (default * 2 or 5) if isinstance(default, int) else default / 2 or 0.5
    return "epoch" if isinstance(default, str) else None


def test_a_storage_path_that_is_rays_default_is_the_state_root() -> None:
    home = str(default_storage())
    assert translate(train, run=durable.RunConfig(storage_path=home)).options["state"] == home
    assert "state" not in translate(train, run=durable.RunConfig()).options
    with recorded.recording():
        assert translate(train, run=tune.RunConfig(storage_path=home)).options["state"] == home
        assert "state" not in translate(train, run=tune.RunConfig(name="a")).options
    assert (
        translate(train, run=tune.RunConfig(storage_path="s3://b/x")).options["state"] == "s3://b/x"
    )


def test_restore_finds_an_experiment_below_rays_default_folder_too(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = tuned(reports, {"a": 1})
    monkeypatch.setenv("REGROW_STATE", os.path.dirname(grid.experiment_path))
    assert Tuner.can_restore(grid.experiment_path)
    assert Tuner.can_restore(str(default_storage() / "tuned"))
    assert not Tuner.can_restore(str(default_storage() / "other"))
    overriding = ScriptSession(name="tuned", state=os.path.dirname(grid.experiment_path))
    assert overriding.opened("/elsewhere/name").name == "tuned"


@pytest.mark.parametrize("anew", [False, True])
def test_a_restored_experiment_continues_with_the_settings_in_its_log(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    grid = tuned(failing, {"a": 1})
    asked: list[Any] = []
    monkeypatch.setattr(tuner, "run_session", lambda **given: asked.append(given))
    Tuner.restore(grid.experiment_path, failing, restart_errored=anew).fit()
    (given,) = asked
    assert (given["spec"].retries.anew, given["retry_failed"]) == (anew, anew)
    assert given["spec"].name == "tuned"


def test_a_metric_of_stop_that_no_report_has_fails_the_first_trial_with_its_name(
    tuned: Tuned,
) -> None:
    grid = tuned(reports, {"a": 1}, run=tune.RunConfig(name="t", stop={"acuracy": 0.5}))
    assert "stop: the metric 'acuracy' was not reported; did you mean 'accuracy'?" in str(
        grid.errors[0]
    )
    (result,) = tuned(reports, {"a": 1}, run=tune.RunConfig(name="u", stop={"accuracy": 0.1}))
    assert (result.error, result.metrics["training_iteration"]) == (None, 2)


def failing(config: dict[str, Any]) -> None:
    raise ValueError("a bug")


def fed(tuned: Tuned, log: rg.Result) -> CallbackDispatcher:
    """A dispatcher that has read the whole log of the last experiment."""
    from regrow.infra.log.reading import read_events
    from regrow.infra.state.places import Places

    store = Places.at(log.state).store(log.name)
    feed = CallbackDispatcher(log.spec, tuned.found, (), store)
    for event in read_events(store):
        feed._dispatch_event(event)
    return feed


@pytest.mark.parametrize(("fast", "failed"), [(True, 1), ("raise", 1), (False, 2)])
def test_with_fail_fast_the_first_failure_ends_the_experiment(
    tuned: Tuned, fast: Any, failed: int
) -> None:
    how = tune.RunConfig(name="fast", failure_config=tune.FailureConfig(fail_fast=fast))
    grid = tuned(failing, {"a": tune.grid_search([1, 2])}, run=how)
    assert (len(grid), grid.num_errors, tuned.log.status) == (failed, failed, "failed")
    assert tuned.found.raises == (fast == "raise")


class Halves(tune.schedulers.FIFOScheduler):
    """Stops each trial whose configuration is below the mean of those so far, at its 2nd report."""

    seen: tuple[str, ...] = ()

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self.seen = (*self.seen, trial.trial_id)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        assert len(tune_controller.get_trials()) == len(self.seen)
        stops = result["training_iteration"] == 2 and trial.config["a"] < 2
        return "STOP" if stops else "CONTINUE"


def test_a_scheduler_of_the_users_own_class_stops_trials(tuned: Tuned) -> None:
    from regrow.infra.state.places import Places

    mine: Any = Halves()  # type: ignore[no-untyped-call]  # of Ray
    tuned(reports, {"a": tune.grid_search([1, 2])}, scheduler=mine)
    assert mine.metric == "score"
    assert any(line.startswith("scheduler: Halves decides") for line in tuned.found.notes)
    feed = fed(tuned, tuned.log)
    feed.close()
    store = Places.at(tuned.log.state).store(tuned.log.name)
    (order,) = [store.read(key) for key in store.list("control/")]
    assert b'"trials":[0]' in order
    assert b'"stop"' in order
    assert mine.seen == ("tuned_00000", "tuned_00001")


@pytest.mark.parametrize("apart", ["0", "1"])
def test_a_trial_knows_where_the_script_is(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, apart: str
) -> None:
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", apart)
    here = os.getcwd()

    def places(config: dict[str, Any]) -> None:
        where = tune.get_context().get_trial_dir()
        tune.report(
            {
                "score": 1,
                "cwd": os.getcwd(),
                "origin": os.environ["TUNE_ORIG_WORKING_DIR"],
                "dir": where,
            }
        )

    (result,) = tuned(places, {"a": 1})
    assert result.error is None, result.error
    told = result.metrics
    assert told["origin"] == here
    assert (told["cwd"] == here) == (apart == "0")
    assert told["dir"] == result.path, "what is written there remains"
    assert told["cwd"] != told["dir"]
    assert os.getcwd() == here


class Knowing(tune.Trainable):
    """Reports what it knows of its trial."""

    def setup(self, config: dict[str, Any]) -> None:
        self.given = dict(config)
        Path(self.logdir, "file").write_text("x")

    def step(self) -> dict[str, Any]:
        about = {"id": self.trial_id, "name": self.trial_name, "given": str(self.given)}
        resources: Any = self.trial_resources
        return {
            "score": 1,
            "cpus": resources.required_resources["CPU"],
            "logdir": self.logdir,
            **about,
            "done": self.iteration >= 1,
        }


def test_a_class_knows_its_trial_and_leaves_no_folder_behind(tuned: Tuned) -> None:
    before = set(default_storage().iterdir()) if default_storage().is_dir() else set()
    asked: Any = tune.with_resources(Knowing, {"cpu": 2})
    (result,) = tuned(asked, {"a": 1})
    assert result.error is None, result.error
    told = result.metrics
    assert told["id"] == told["name"] == result.trial_id == told["trial_id"]
    assert told["given"] == "{'a': 1}"
    assert told["cpus"] == 2
    assert not os.path.exists(told["logdir"])
    assert told["training_iteration"] == 2
    after = set(default_storage().iterdir()) if default_storage().is_dir() else set()
    assert after == before
