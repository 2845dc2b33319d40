"""`import regrow.optuna as optuna`: pruners and samplers in our words, and what define-by-run
trials are suggested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna import pruners, samplers
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from regrow.integrations.optuna.following import raised
from regrow.integrations.optuna.running import Trial, taken, written
from regrow.integrations.optuna.scheduling import MOST, schedule
from regrow.integrations.optuna.searching import search
from regrow.search.errors import SpecError
from regrow.search.events import (
    Asked,
    Began,
    Created,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    Started,
    Suggested,
    encode,
)
from regrow.search.planning.planner import Planner
from regrow.search.planning.verify import verify
from regrow.search.samplers.define_by_run_model import clash
from regrow.search.spec import Spec
from regrow.show.exports.optuna_study import study
from regrow.tasks.errors import UserCodeError, UserError


@pytest.mark.parametrize(
    ("pruner", "form", "first", "most"),
    [
        (pruners.NopPruner(), "fifo", 0, None),
        (pruners.MedianPruner(), "fifo", 0, None),
        (
            pruners.SuccessiveHalvingPruner(
                min_resource=2, reduction_factor=3, min_early_stopping_rate=1
            ),
            {"asha": {"grace_period": 6, "reduction_factor": 3}},
            1,
            MOST,
        ),
        (
            pruners.SuccessiveHalvingPruner(),
            {"asha": {"grace_period": 1, "reduction_factor": 4}},
            1,
            MOST,
        ),
        (
            pruners.HyperbandPruner(min_resource=1, max_resource=81),
            {"async_hyperband": {"grace_period": 1, "reduction_factor": 3}},
            1,
            81,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_pruner_is_the_schedule_that_does_the_same(
    pruner: Any, form: object, first: int, most: int | None
) -> None:
    made = schedule(pruner)
    assert (made.form, made.first, made.max_steps) == (form, first, most)


@pytest.mark.parametrize(
    "pruner",
    [
        pruners.HyperbandPruner(),
        pruners.SuccessiveHalvingPruner(min_resource=1, bootstrap_count=2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_pruner_that_is_not_there_is_said_in_a_line(pruner: Any) -> None:
    with pytest.raises(UserError) as error:
        schedule(pruner)
    assert type(pruner).__name__ in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sampler_is_its_class_its_options_and_its_seed() -> None:
    found = search(samplers.TPESampler(seed=42, n_startup_trials=5, multivariate=True), "name")
    assert found.form == {
        "define_by_run": {
            "sampler": "TPESampler",
            "options": {"n_startup_trials": 5, "multivariate": True},
        }
    }
    assert found.seed == 42
    assert (
        search(samplers.RandomSampler(), "a").seed == search(samplers.RandomSampler(), "a").seed
    ), "it follows from the name"
    assert search(samplers.RandomSampler(), "a").seed != search(samplers.RandomSampler(), "b").seed
    assert search(samplers.NSGAIISampler(population_size=8), "a").form["define_by_run"][
        "options"
    ] == {"population_size": 8}


def test_a_grid_is_all_its_cells_as_given_values() -> None:
    cells = search(samplers.GridSampler({"x": [1, 2], "k": ["a", "b"]}), "name").cells
    assert cells == ({"k": "a", "x": 1}, {"k": "a", "x": 2}, {"k": "b", "x": 1}, {"k": "b", "x": 2})


@pytest.mark.parametrize(
    "form",
    [
        {"sampler": "CmaEsSampler", "options": {"popsize": 4}},
        {"sampler": "CmaEsSampler", "options": {"popsize": 4, "with_margin": True}},
        {"sampler": "QMCSampler", "options": {"scramble": True}},
        {"sampler": "BruteForceSampler"},
        {"sampler": "RandomSampler", "fixed": {"n": 3}},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_samplers_that_remember_follow_from_the_log(form: dict[str, Any]) -> None:
    def numeric(ask: Ask) -> float:
        return float(ask("x", FloatDistribution(-2, 2, step=0.5))) ** 2 + float(ask("n", N))

    log = sequence(numeric, 30, search={"define_by_run": form})
    checked = verify(log)
    assert checked.difference is None
    assert b"optimizer:0" not in b"".join(map(encode, log))
    tried = [trial.config for trial in checked.history.trials]
    if form["sampler"] == "BruteForceSampler":
        assert len(tried) == 30
        assert len({(one["x"], one["n"]) for one in tried}) == 30
    if form["sampler"] == "CmaEsSampler":
        generations = [
            e.state["trial"][key]
            for e in log
            if isinstance(e, Proposed) and "trial" in e.state
            for key in e.state["trial"]
            if key.endswith(":generation")
        ]
        assert max(generations) >= 4
    assert {one["n"] for one in tried} == {3} or "fixed" not in form


def test_what_a_trial_on_a_worker_has_not_is_told_with_what_there_is_instead() -> None:
    ours: Any = SimpleNamespace(attributes={}, number=1)  # nothing else of the trial is asked
    trial = Trial(ours, several=False, last=None)
    with pytest.raises(AttributeError, match=r"trial\.relative_params is not there: .*params"):
        _ = trial.relative_params
    with pytest.raises(AttributeError, match=r"storage\.get_all_trials is not there: .*study"):
        trial.storage.get_all_trials(0)
    with pytest.raises(UserError, match="has trial 1 alone"):
        trial.storage.get_trial_system_attrs(2)
    assert not hasattr(trial, "anything_else")


class Own(Exception):
    """With an argument more than a message."""

    def __init__(self, message: str, more: int) -> None:
        super().__init__(message, more)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("KeyError: 'a'", KeyError),
        ("OSError: away", OSError),
        ("Own: 1", Own),
        ("StopIteration", StopIteration),
        ("SomebodyElses: 1", UserCodeError),
        ("print: no class", UserCodeError),
        ("SystemExit: 3", UserCodeError),
        ("UnicodeDecodeError: made of five", UserCodeError),
    ],
)
def test_what_an_objective_raised_is_of_its_own_class_too_where_that_is_found(
    message: str, kind: type[Exception]
) -> None:
    error = raised(test_a_pruner_that_is_not_there_is_said_in_a_line, 3, message, "the trace")
    assert isinstance(error, kind)
    assert isinstance(error, UserCodeError)
    assert (str(error), error.trace) == (f"trial 3 failed: {message}\nthe trace", "the trace")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (FloatDistribution(0, 1), FloatDistribution(2, 3), ""),
        (CategoricalDistribution(["a", None]), CategoricalDistribution(["a", None]), ""),
        (
            CategoricalDistribution(["a"]),
            CategoricalDistribution(["a", "b"]),
            "dynamic value space. It was .*'a'.* is .*'a', 'b'",
        ),
        (FloatDistribution(1, 2), FloatDistribution(1, 2, log=True), "different log configuration"),
        (
            IntDistribution(1, 2),
            FloatDistribution(1, 2),
            "different distribution kind .* IntDistribution",
        ),
    ],
    ids=repr,
)
def test_one_name_has_one_kind_of_distribution_as_in_optuna(
    before: Any, now: Any, said: str
) -> None:
    planner = Planner()
    for event in sequence(lambda ask: float(ask("x", before) == "a"), 1):
        planner.apply(event)
    problem = clash("x", planner.history.asked_first["x"], written(now))
    assert re.search(said, problem) if said else problem == ""


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"name": "Other", "attributes": {}},
        {"name": "FloatDistribution", "attributes": {"low": 1}},
    ],
    ids=str,
)
def test_what_is_no_distribution_of_optunas_is_refused(odd: dict[str, Any]) -> None:
    assert clash("x", odd, odd).startswith("'x': ")


def test_a_value_of_the_log_is_the_choice_that_it_stands_for() -> None:
    odd = CategoricalDistribution((1, True, None, "1"))
    assert [taken("c", odd, value) for value in (True, 1, None, "1")] == [True, 1, None, "1"]
    with pytest.raises(ValueError, match="none of"):
        taken("c", odd, 2)


def test_a_choice_that_is_no_plain_value_has_one_name_in_all_processes() -> None:
    def objects() -> CategoricalDistribution:
        choices: Any = lambda: 1, lambda: 2, KeyError, (1, 2)
        return CategoricalDistribution(choices)

    with pytest.warns(UserWarning, match="persistent storage"):
        first, second = objects(), objects()
    assert written(first) == written(second)
    names = written(first)["attributes"]["choices"]
    assert len({*names}) == 4
    assert [taken("c", second, name)() for name in names[:2]] == [1, 2]
    assert [taken("c", second, name) for name in names[2:]] == [KeyError, (1, 2)]


X, N = FloatDistribution(-10.0, 10.0), IntDistribution(1, 4)
KIND = CategoricalDistribution(("quad", "line"))
Ask = Callable[[str, Any], Any]


def conditional(ask: Ask) -> float:
    """Some trials have n, others y."""
    x = float(ask("x", X))
    if ask("kind", KIND) == "quad":
        return (x - 2.0) ** 2 + 0.1 * int(ask("n", N))
    return abs(x - 2.0) + float(ask("y", FloatDistribution(1e-3, 1.0, log=True))) + 1.0


def sequence(objective: Callable[[Ask], float], trials: int, **changes: Any) -> list[Any]:
    """The log of a study, one trial after the other."""
    base: dict[str, Any] = {
        "name": "asked",
        "trainable": "a.py:b",
        "metric": "value",
        "mode": "min",
        "space": {},
        "schedule": "fifo",
        "score": "final",
        "search": {"define_by_run": {"options": {"n_startup_trials": 5}}},
        "trials": trials,
        "seed": 1,
    }
    spec = Spec.parse({**base, **changes})
    planner, log, t = Planner(), list[Any](), 0.0

    def tell(event: Any) -> None:
        planner.apply(event)
        log.append(event)
        while (decision := planner.next(t)) is not None:
            planner.apply(decision)
            log.append(decision)

    for event in (
        Created(t=t, id="i", spec=spec.to_json()),
        Opened(t=t, by="driver", driver="d", slots=1, trials=trials),
    ):
        planner.apply(event)
        log.append(event)
    while (decision := planner.next(t)) is not None:
        planner.apply(decision)
        log.append(decision)
    while planner.history.closed is None:
        number = min(planner.history.running)
        lease: dict[str, Any] = {"t": t, "trial": number, "attempt": 1}
        tell(Began(**lease, node="n"))

        def ask(name: str, distribution: Any, lease: dict[str, Any] = lease) -> Any:
            tell(Asked(**lease, name=name, distribution=written(distribution)))
            return planner.history.trials[lease["trial"]].config[name]

        value = objective(ask)
        tell(Reported(**lease, rows=[Row(1, t, {"value": value})]))
        t += 1.0
        tell(Ended(**{**lease, "t": t}, outcome="done", step=1))
    return log


def test_what_is_suggested_follows_from_the_log_and_is_verified() -> None:
    log = sequence(conditional, 20)
    checked = verify(log)
    assert checked.difference is None
    assert checked.kinds["suggested"] == checked.kinds["asked"] == 60
    assert sequence(conditional, 20) == log
    at = max(i for i, event in enumerate(log) if isinstance(event, Suggested))
    forged = [*log]
    value = log[at].value
    forged[at] = Suggested(
        t=log[at].t,
        trial=log[at].trial,
        name=log[at].name,
        distribution=log[at].distribution,
        value=value * 0.5 if isinstance(value, float) else 3 if value != 3 else 4,
    )
    found = verify(forged).difference
    assert found is not None
    assert found.position == at + 1


def test_tpe_is_better_than_chance_on_a_space_that_trials_tell() -> None:
    def best(name: str, seed: int) -> float:
        form = {"define_by_run": {"sampler": name}}
        told = [
            e.rows[0].metrics
            for e in sequence(conditional, 60, search=form, seed=seed)
            if isinstance(e, Reported)
        ]
        return min(float(metrics["value"] or 0.0) for metrics in told)

    seeds = range(5)
    assert sum(best("TPESampler", seed) for seed in seeds) < sum(
        best("RandomSampler", seed) for seed in seeds
    )


def test_enqueued_values_are_given_and_the_others_suggested() -> None:
    log = sequence(conditional, 3, enqueue=[{"x": 5.0, "kind": "quad"}, {"kind": "line"}])
    given = {(e.trial, e.name): e.value for e in log if isinstance(e, Suggested)}
    assert (given[0, "x"], given[0, "kind"], given[1, "kind"]) == (5.0, "quad", "line")
    assert 1 <= given[0, "n"] <= 4
    assert [e.state.get("queued") for e in log if isinstance(e, Proposed)] == [0, 1, None]


def test_optuna_sees_each_trial_with_the_parameters_that_it_asked_for() -> None:
    planner = Planner()
    for event in sequence(conditional, 12):
        planner.apply(event)
    told = study(planner.history)
    for trial, ours in zip(told.trials, planner.history.trials, strict=True):
        assert trial.state is optuna.trial.TrialState.COMPLETE
        assert trial.params == ours.config
        assert set(trial.params) in ({"x", "kind", "n"}, {"x", "kind", "y"})
        assert {
            name: json.loads(optuna.distributions.distribution_to_json(one))
            for name, one in trial.distributions.items()
        } == ours.suggested
    assert optuna.importance.get_param_importances(told).keys() >= {"x"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"points": [{"x": 1}]}, "points"),
        ({"repeats": 2, "trials": 4}, "repeats"),
        ({"space": {"x": {"uniform": [0, 1]}}}, "space"),
        (
            {"search": "random", "enqueue": [{"x": 1}], "space": {"x": {"uniform": [0, 1]}}},
            "enqueue",
        ),
        ({"resources": {"workers": 2}}, "resources.workers"),
    ],
)
def test_what_does_not_go_with_it_is_said_in_a_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        sequence(conditional, **{"trials": 4, **changes})
    assert said in str(error.value)


def test_nothing_is_started_twice_by_a_question() -> None:
    log = sequence(conditional, 4)
    assert sum(isinstance(event, Started) for event in log) == 4
