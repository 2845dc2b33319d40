"""Samplers of Optuna in a study that is rebuilt from results: their own proposals, and no trace of
the order of telling.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIIISampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from regrow.search.errors import SpecError
from regrow.search.samplers import check_installed, make
from regrow.search.samplers.base import Result, Sampler
from regrow.search.samplers.optuna_study import StudySampler, TpeStudy
from regrow.search.samplers.tpe_axes import axis
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from tests.unit.replaying import Replayed, best, on_paper, seed_of

SPACE = Space.parse(
    {
        "lr": {"loguniform": [1e-5, 1e-1]},
        "momentum": {"uniform": [0.5, 0.99], "when": {"optimizer": "sgd"}},
        "optimizer": {"choice": ["sgd", "adam", "lamb"]},
        "layers": {"int": [1, 6]},
        "drop": {"quniform": [0, 0.6, 0.05]},
        "init": {"normal": [1, 2]},
        "g": {"grid": [1, 2, 3]},
        "c": "k",
    }
)
FLAT = Space.parse(
    {"x": {"uniform": [0, 1]}, "k": {"int": [1, 9]}, "c": {"choice": ["a", "b", "d"]}}
)
DISTRIBUTIONS = {
    "x": FloatDistribution(0, 1),
    "k": IntDistribution(1, 9),
    "c": CategoricalDistribution((0, 1, 2)),
}
ONE = Setting(space=SPACE, modes=("min",), max_steps=9)
LIMITED = Setting(space=SPACE, modes=("min",), constraints=1)
TWO = Setting(space=SPACE, modes=("min", "max"), constraints=2)
SMALL = {"population_size": 6}


def of_optuna(name: str, **options: Any) -> dict[str, Any]:
    return {"optuna": {"sampler": f"optuna.samplers:{name}", "options": options}}


def loss(config: Mapping[str, Any]) -> float:
    return float(
        abs(math.log10(config["lr"]) + 3)
        + {"sgd": 0.0, "adam": 0.5, "lamb": 1.0}[config["optimizer"]]
        + abs(config.get("momentum", 0.7) - 0.9)
        + abs(config["layers"] - 3) / 3
        + config["drop"]
        + abs(config["init"])
    )


def flat_values(config: Mapping[str, Any], count: int) -> list[float]:
    one = abs(config["x"] - 0.3) + config["k"] / 9 + "abd".index(config["c"])
    return [one, abs(config["x"] - 0.8) - config["k"] / 9][:count]


# ---- the samplers' own proposals


@pytest.mark.parametrize(
    ("search", "theirs", "modes"),
    [
        (
            {"nsga2": SMALL},
            lambda seed: NSGAIISampler(population_size=6, seed=seed),
            ("min", "min"),
        ),
        ({"nsga2": SMALL}, lambda seed: NSGAIISampler(population_size=6, seed=seed), ("max",)),
        (
            {"nsga3": SMALL},
            lambda seed: NSGAIIISampler(population_size=6, seed=seed),
            ("min", "max"),
        ),
        (
            of_optuna("TPESampler", n_startup_trials=4),
            lambda seed: TPESampler(n_startup_trials=4, seed=seed),
            ("min",),
        ),
        (
            of_optuna("TPESampler", n_startup_trials=4),
            lambda seed: TPESampler(n_startup_trials=4, seed=seed),
            ("min", "max"),
        ),
    ],
)
@pytest.mark.parametrize("constraints", [0, 1])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_synchronous_trials_are_those_of_a_plain_study(
    search: Any, theirs: Any, modes: Any, constraints: int
) -> None:
    ours = make(search, Setting(space=FLAT, modes=modes, constraints=constraints))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        directions=["minimize" if m == "min" else "maximize" for m in modes]
    )
    for number in range(30):
        study.sampler = theirs(seed_of(number))
        trial = study.ask()
        expected: dict[str, Any] = {
            "x": trial.suggest_float("x", 0, 1),
            "k": trial.suggest_int("k", 1, 9),
        }
        expected["c"] = "abd"[trial.suggest_categorical("c", range(3))]
        proposal = on_paper(ours.ask(number, seed_of(number)))
        assert proposal.config == expected, f"trial {number}"
        values, violations = (
            flat_values(proposal.config, len(modes)),
            [proposal.config["x"] - 0.7] * constraints,
        )
        for violation in violations:
            trial.set_constraint("0", violation)
        result: dict[str, Any] = {
            "number": number,
            "config": proposal.config,
            "state": proposal.state,
            "violations": tuple(violations),
        }
        if number % 5 == 4:
            study.tell(trial, state=TrialState.FAIL)
            ours.tell(Result(**result, status="failed"))
        else:
            study.tell(trial, values)
            ours.tell(Result(**result, status="done", value=values[0], values=tuple(values)))


@pytest.mark.parametrize(
    ("search", "setting"),
    [
        ({"nsga2": SMALL}, ONE),
        ({"nsga2": SMALL}, TWO),
        ({"nsga3": SMALL}, TWO),
        (of_optuna("TPESampler"), ONE),
        (of_optuna("TPESampler", group=True), LIMITED),
        (of_optuna("RandomSampler"), TWO),
    ],
    ids=str,
)
def test_a_replay_proposes_the_same(search: Any, setting: Setting) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Replayed(search=search, setting=setting, objective=loss, every=4).run().compared > 20


@pytest.mark.parametrize("setting", [ONE, TWO], ids=["one", "two"])
def test_a_replay_of_gaussian_processes_proposes_the_same(setting: Setting) -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        space = Setting(space=FLAT, modes=setting.modes)
        search = {"gp": {"n_startup_trials": 4}}
        run = Replayed(
            search=search,
            setting=space,
            objective=lambda c: flat_values(c, 1)[0],
            count=6,
            every=5,
            earlier=0,
            in_flight=1,
        ).run()
        assert any("trial" in r.state for r in run.told)  # the model has proposed
        assert run.compared == 4
    finally:
        torch.set_num_threads(threads)


def test_gaussian_processes_without_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regrow.search.samplers.find_spec", lambda name: None)
    make("gp", ONE)  # as reading a log does
    with pytest.raises(
        SpecError, match=r"needs PyTorch, which is not installed; pip install 'regrow\[torch\]'"
    ):
        check_installed("gp")


def test_tpe_of_several_metrics_finds_the_front_where_the_constraints_are_met() -> None:
    """The front is at lr from 1e-3 to 1e-2, and 10**-2.5 is the largest that is allowed."""
    late = []
    for sampler in (TpeStudy(TWO, n_startup_trials=5), make("random", TWO)):
        lrs = []
        for number in range(60):
            proposal = on_paper(sampler.ask(number, seed_of(number)))
            lrs.append(lr := math.log10(proposal.config["lr"]))
            sampler.tell(
                Result(
                    number=number,
                    config=proposal.config,
                    state=proposal.state,
                    status="done",
                    value=abs(lr + 2),
                    values=(abs(lr + 2), -abs(lr + 3)),
                    violations=(lr + 2.5, -1.0),
                )
            )
        late.append(sum(-3.5 <= lr <= -2.5 for lr in lrs[20:]) / 40)
    assert late[0] > 0.5
    assert late[1] < 0.35


@pytest.mark.parametrize(
    "search", ["nsga3", of_optuna("TPESampler", group=True, n_startup_trials=2)], ids=str
)
def test_optunas_logging_and_warnings_are_as_they_were(
    search: Any, caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    optuna.logging.enable_propagation()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sampler = make(search, TWO)
            for number in range(5):
                proposal = on_paper(sampler.ask(number, number))
                told: dict[str, Any] = {"values": (math.inf, 1.0), "violations": (0.0, 0.0)}
                sampler.tell(
                    Result(
                        number=number,
                        config=proposal.config,
                        state=proposal.state,
                        status="done",
                        **told,
                    )
                )
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
        assert not caplog.records
    finally:
        optuna.logging.disable_propagation()


@pytest.mark.parametrize("search", ["nsga2", "nsga3"])
def test_genetic_samplers_beat_random_search(search: str) -> None:
    found = [
        best({search: {"population_size": 10}}, ONE, loss, 150),
        best("random", ONE, loss, 150),
    ]
    assert found[0] < found[1] * 0.7


# ---- what a result is in the study


def trials(sampler: Sampler) -> list[optuna.trial.FrozenTrial]:
    assert isinstance(sampler, StudySampler)
    sampler.ask(99, 1)
    assert sampler._model is not None
    return sampler._model._storage.get_all_trials(0)


FIT = {"x": 0.5, "k": 2, "c": "b"}


@pytest.mark.parametrize(
    ("result", "state", "values"),
    [
        ({"status": "running"}, "RUNNING", None),
        ({"status": "failed", "value": 1.0}, "FAIL", None),
        ({"status": "done", "value": 1.0}, "COMPLETE", [1.0]),
        ({"status": "done"}, "FAIL", None),
        ({"status": "done", "value": math.nan}, "FAIL", None),
        (
            {"status": "stopped", "value": 1.0, "intermediate": [(1, 1.0), (3, 2.0)]},
            "PRUNED",
            [2.0],
        ),
        ({"status": "stopped"}, "PRUNED", None),
        ({"status": "done", "value": 1.0, "config": {"x": 0.5}}, "FAIL", None),
        ({"status": "done", "value": 1.0, "config": FIT | {"k": 10}}, "FAIL", None),
    ],
)
def test_a_result_is_a_trial(result: dict[str, Any], state: str, values: Any) -> None:
    sampler = make(of_optuna("RandomSampler"), Setting(space=FLAT, modes=("min",)))
    whole: dict[str, Any] = {"number": 0, "config": FIT} | result
    sampler.tell(Result(**whole))
    trial = trials(sampler)[0]
    assert (trial.state.name, trial.values) == (state, values)
    if state != "FAIL":
        assert trial.params == {"x": 0.5, "k": 2, "c": 1}
        assert trial.distributions == DISTRIBUTIONS
    assert trial.intermediate_values == dict(result.get("intermediate", ()))


def test_several_metrics_and_constraints_have_to_be_known() -> None:
    setting = Setting(space=FLAT, modes=("min", "max"), constraints=1)
    sampler = make("nsga2", setting)
    told: list[dict[str, Any]] = [
        {"status": "done", "values": (1.0, 2.0), "violations": (0.5,)},
        {"status": "stopped", "values": (1.0, 2.0), "violations": (-0.5,)},
        {"status": "done", "values": (1.0, 2.0)},
        {"status": "done", "value": 1.0, "violations": (-0.5,)},
        {"status": "done", "values": (1.0, math.nan), "violations": (-0.5,)},
        {"status": "done", "values": (1.0, 2.0), "violations": (math.nan,)},
    ]
    for number, result in enumerate(told):
        sampler.tell(Result(number=number, config=FIT, **result))
    found = trials(sampler)[:6]
    assert [t.state.name for t in found] == ["COMPLETE", "COMPLETE", "FAIL", "FAIL", "FAIL", "FAIL"]
    assert [t.constraints for t in found[:2]] == [{"0": 0.5}, {"0": -0.5}]


def test_trials_are_placed_by_number_earlier_results_first() -> None:
    sampler = make({"nsga2": SMALL}, Setting(space=FLAT, modes=("min",)))
    for number in (3, -2, 1, -4):
        sampler.tell(Result(number=number, config=FIT, status="done", value=float(number)))
    found = trials(sampler)
    assert len(found) == 99 + 4
    assert [t.number for t in found] == [t._trial_id for t in found] == list(range(len(found)))
    done = {t.number: t.value for t in found if t.state is TrialState.COMPLETE}
    assert done == {0: -4.0, 2: -2.0, 5: 1.0, 7: 3.0}
    assert {t.system_attrs["NSGAIISampler:generation"] for t in found if t.number in done} == {0}


def test_a_parent_that_fails_after_its_pause_is_no_end_of_the_search() -> None:
    sampler = make({"nsga2": {"population_size": 2}}, Setting(space=FLAT, modes=("min",)))

    def tell(number: int, status: Any) -> None:
        proposal = on_paper(sampler.ask(number, number))
        parts: dict[str, Any] = {"config": proposal.config, "state": proposal.state}
        sampler.tell(Result(number=number, **parts, status=status, value=1.0))

    for number in range(2):
        tell(number, "paused")
    tell(2, "running")
    for number in range(2):
        tell(number, "failed")
    for number in range(3, 8):
        tell(number, "done")


def test_what_optuna_draws_near_the_end_of_a_range_is_a_plain_number() -> None:
    """There its random draw is one of numpy, which no log takes."""
    found = axis(FLAT.flat[0].domain).value(np.float64(0.5))
    assert type(found) is float


def test_a_generation_is_closed_by_stopped_trials_and_never_stalled_by_failed_ones() -> None:
    sampler = make({"nsga2": {"population_size": 3}}, Setting(space=FLAT, modes=("min",)))
    ends = [
        "failed",
        "stopped",
        "done",
        "failed",
        "done",
        "running",
        "failed",
        "failed",
        "stopped",
        "stopped",
        "done",
        "done",
    ]
    generations = []
    for number, status in enumerate(ends):
        proposal = on_paper(sampler.ask(number, number))
        generations.append(proposal.state["trial"]["NSGAIISampler:generation"])
        parents = proposal.state.get("study", {})
        if number == 5:
            assert sorted(parents["NSGAIISampler:parent:1"]) == [1, 2, 4]
        result: dict[str, Any] = {
            "number": number,
            "config": proposal.config,
            "state": proposal.state,
        }
        sampler.tell(Result(**result, status="running"))
        if status != "running":
            sampler.tell(
                Result(**result, status=status, value=1.0, intermediate=[(1, float(number))])  # type: ignore[arg-type]  # a status
            )
    assert generations == [0] * 5 + [1] * 6 + [2]


# ---- which samplers can be used


class Seedless(RandomSampler):
    def __init__(self) -> None:
        super().__init__(seed=1)


class Remembering(RandomSampler):
    def after_trial(self, *args: Any) -> None:
        self.last = args


class NoSampler:
    pass


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ("TPESampler", "is not an import path; write optuna.samplers:TPESampler"),
        ("optuna.samplers:TPESamples", "has no 'TPESamples'; did you mean 'TPESampler'"),
        (
            "optuna.samplers:CmaEsSampler",
            "cannot be made anew for each proposal; write search: cmaes",
        ),
        ("optuna.samplers:QMCSampler", "write search: qmc"),
        ("optuna.samplers:GridSampler", "write search: grid"),
        ("optuna.samplers:BruteForceSampler", "write search: brute_force"),
        ("theirs:Seedless", "takes no seed"),
        ("theirs:Remembering", "has an after_trial of its own, which is not called"),
        ("theirs:NoSampler", "is no sampler of Optuna"),
    ],
)
def test_samplers_that_cannot_be_used(
    sampler: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "theirs", sys.modules[__name__])
    with pytest.raises(SpecError, match=message):
        make({"optuna": {"sampler": sampler}}, ONE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"n_startup": 3},
            "search.optuna.options: .*are refused: .*unexpected keyword argument 'n_startup'",
        ),
        (
            {"multivariate": False, "group": True},
            "are refused: ``group`` option can only be enabled",
        ),
        ({"seed": 3}, "search.optuna.options.seed: 3: is given by the experiment"),
    ],
)
def test_options_that_optuna_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make(of_optuna("TPESampler", **options), ONE)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"nsga2": {"population_size": 1}}, "search.nsga2.population_size: 1: is below 2"),
        (
            {"nsga3": {"crossover_prob": 1.5}},
            "search.nsga3.crossover_prob: 1.5: is not between 0 and 1; write a probability",
        ),
        (
            {"nsga2": {"mutation_prob": "often"}},
            "search.nsga2.mutation_prob: .*write a probability",
        ),
        ({"nsga3": {"dividing_parameter": 0}}, "search.nsga3.dividing_parameter: 0: is below 1"),
    ],
)
def test_options_of_genetic_samplers(search: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make(search, ONE)


def test_a_samplers_notes_at_the_study_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(RandomSampler):
        """Counts its proposals in the study, and puts the count into the trial."""

        def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            count = study._storage.get_study_system_attrs(study._study_id).get("count", 0)
            study._storage.set_study_system_attr(study._study_id, "count", count + 1)
            study._storage.set_trial_system_attr(trial._trial_id, "count", count)

    module = type(sys)("theirs")
    module.Counting = Counting  # type: ignore[attr-defined]  # a module of the user's
    monkeypatch.setitem(sys.modules, "theirs", module)
    search = {"optuna": {"sampler": "theirs:Counting"}}
    assert issubclass(Counting, BaseSampler)
    run = Replayed(search=search, setting=ONE, objective=loss, count=20).run()
    proposed = [r for r in run.told if r.state and r.status == "running"]
    assert [r.state["trial"]["count"] for r in proposed] == list(range(len(proposed)))
