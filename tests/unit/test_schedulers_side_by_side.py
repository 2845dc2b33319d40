"""Decisions beside those of Ray Tune and Optuna, on the same results: equal, or different in the
one way that is named.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, SuccessiveHalvingPruner
from optuna.trial import TrialState

from regrow.search.hyperband_plan import brackets
from regrow.search.mode import Mode
from regrow.search.schedulers.base import Candidate, Verdict
from regrow.search.schedulers.pbt import explore
from regrow.search.space import Space
from tests.unit.scheduling import add, arrive, scheduler

MODES: tuple[Mode, Mode] = ("min", "max")


@pytest.fixture(scope="module")
def tune() -> Any:
    """Ray Tune's schedulers; seconds to import."""
    from ray.tune import schedulers
    from ray.tune.schedulers import hyperband, pbt

    return SimpleNamespace(schedulers=schedulers, hyperband=hyperband, pbt=pbt)


class Fake:
    """As much of Ray Tune's Trial as its schedulers look at."""

    def __init__(self, number: int) -> None:
        self.trial_id = self.experiment_tag = str(number)
        self.number = number
        self.status = "RUNNING"
        self.config: dict[str, Any] = {}

    def is_finished(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")


def controller(trials: list[Fake]) -> Any:
    return SimpleNamespace(get_trials=lambda: trials, get_live_trials=list)


def streams(
    seed: int, trials: int, steps: list[int], values: int = 40
) -> Iterator[tuple[int, int, float]]:
    """(trial, step, value): each trial comes to its next step at random times; small whole numbers,
    so there are ties.
    """
    rng = random.Random(seed)
    left = {trial: list(steps) for trial in range(trials)}
    while left:
        trial = rng.choice(sorted(left))
        yield trial, left[trial].pop(0), float(rng.randrange(values))
        if not left[trial]:
            del left[trial]


# ---- ASHA


def optuna_says(
    pruner: BasePruner, mode: Mode, trials: int
) -> tuple[optuna.Study, list[optuna.Trial]]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="minimize" if mode == "min" else "maximize", pruner=pruner
    )
    return study, [study.ask() for _ in range(trials)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("eta", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_asha_decides_as_optunas_successive_halving(seed: int, eta: int, mode: Mode) -> None:
    pruner = SuccessiveHalvingPruner(min_resource=2, reduction_factor=eta)
    _, theirs = optuna_says(pruner, mode, 40)
    ours = scheduler(
        {"asha": {"grace_period": 2, "reduction_factor": eta}}, max_steps=2 * eta**3, mode=mode
    )
    gone, continued = set(), 0
    for trial, step, value in streams(seed, 40, [2, 2 * eta, 2 * eta**2]):
        if trial in gone:
            continue
        theirs[trial].report(value, step)
        pruned = theirs[trial].should_prune()
        assert arrive(ours, (trial, step, value)) == ["stop" if pruned else "continue"]
        continued += not pruned
        if pruned:
            gone.add(trial)
    assert len(gone) > 20
    assert continued >= 10


@pytest.mark.parametrize("mode", MODES)
def test_async_hyperband_decides_as_optunas_hyperband_does_in_its_brackets(mode: Mode) -> None:
    pruner = HyperbandPruner(min_resource=1, max_resource=28, reduction_factor=3)
    study, theirs = optuna_says(pruner, mode, 120)
    pruner._try_initialization(study)
    ours = scheduler("async_hyperband", max_steps=28, mode=mode)
    # Optuna has no bracket that stops nothing: it is the one difference in how many trials a
    # bracket gets
    assert pruner._trial_allocation_budgets == [27, 12, 6, 4]
    assert [bracket.following(0) for bracket in ours._brackets] == [1, 3, 9, 27, None]
    frozen = study.get_trials()
    ours.bracket_of = lambda trial: ours._brackets[pruner._get_bracket_id(study, frozen[trial])]
    gone: set[int] = set()
    for trial, step, value in streams(5, 120, [1, 3, 9, 27]):
        if trial in gone or ours.first(trial, step - 1) != step:
            continue  # Optuna's trials are told of rungs only
        theirs[trial].report(value, step)
        pruned = theirs[trial].should_prune()
        assert arrive(ours, (trial, step, value)) == ["stop" if pruned else "continue"]
        if pruned:
            gone.add(trial)
    assert len(gone) > 60


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("eta", [2, 3])
def test_asha_cuts_at_a_rank_where_ray_tune_cuts_at_a_percentile_of_the_others(
    tune: Any, eta: int, mode: Mode
) -> None:
    ray = tune.schedulers.AsyncHyperBandScheduler(
        time_attr="training_iteration",
        metric="m",
        mode=mode,
        max_t=eta**3,
        grace_period=1,
        reduction_factor=eta,
    )
    ours = scheduler({"asha": {"reduction_factor": eta}}, max_steps=eta**3, mode=mode)
    sign = 1 if mode == "max" else -1
    rng = random.Random(7)
    before: list[float] = []
    different = 0
    for trial in range(300):
        fake, value = Fake(trial), rng.random()
        ray.on_trial_add(None, fake)
        theirs = ray.on_trial_result(None, fake, {"training_iteration": 1, "m": value})
        (mine,) = arrive(ours, (trial, 1, value))
        scores = sorted((sign * v for v in [*before, value]), reverse=True)
        rank_cut = scores[max(1, len(scores) // eta) - 1]
        cut = (
            float(np.percentile([sign * v for v in before], (1 - 1 / eta) * 100))
            if before
            else -math.inf
        )
        assert (theirs == "CONTINUE") == (sign * value >= cut)
        assert (mine == "continue") == (sign * value >= rank_cut)
        if (theirs == "CONTINUE") != (mine == "continue"):
            different += 1
            assert min(cut, rank_cut) <= sign * value <= max(cut, rank_cut)
        before.append(value)
    assert different < 12, "they part only where a value falls between the two cuts"


# ---- median


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_median_decides_as_ray_tune(tune: Any, seed: int, mode: Mode) -> None:
    ray = tune.schedulers.MedianStoppingRule(
        time_attr="training_iteration",
        metric="m",
        mode=mode,
        grace_period=1,
        min_samples_required=3,
    )
    ours = scheduler("median", max_steps=7, mode=mode)
    fakes = [Fake(trial) for trial in range(25)]
    values: dict[int, list[float]] = {trial: [] for trial in range(25)}
    gone: set[int] = set()
    for fake in fakes:
        ray.on_trial_add(controller(fakes), fake)
    for trial, step, value in streams(seed, 25, [1, 2, 3, 4, 5, 6]):
        if trial in gone:
            continue
        values[trial].append(value)
        theirs = ray.on_trial_result(
            controller(fakes), fakes[trial], {"training_iteration": step, "m": value}
        )
        verdict = ours.decide(trial, values[trial])
        ours.tell(trial, values[trial], verdict)
        assert verdict.action == {"STOP": "stop", "CONTINUE": "continue"}[theirs]
        if verdict.action == "stop":
            gone.add(trial)
    assert 3 < len(gone) < 23


@pytest.mark.parametrize("mode", MODES)
def test_median_decides_as_optuna_where_curves_are_flat_and_only_finished_trials_count(
    mode: Mode,
) -> None:
    study, theirs = optuna_says(MedianPruner(n_startup_trials=3, n_min_trials=3), mode, 40)
    ours = scheduler("median", max_steps=5, mode=mode)
    rng = random.Random(1)
    stopped = 0
    for trial in range(40):
        value = float(rng.randrange(20))
        for step in range(1, 5):
            theirs[trial].report(value, step)
            pruned = theirs[trial].should_prune()
            assert ours.decide(trial, [value] * step).action == ("stop" if pruned else "continue")
            if pruned:
                stopped += 1
                study.tell(theirs[trial], state=TrialState.PRUNED)
                break
        else:
            study.tell(theirs[trial], value)
            # told only now: Optuna doesn't count those that run or were pruned
            for step in range(1, 5):
                ours.tell(trial, [value] * step, Verdict())
    assert 8 < stopped < 35


# ---- HyperBand


@pytest.mark.parametrize(("most", "eta"), [(81, 3), (27, 3), (64, 4), (32, 2)])
def test_hyperband_has_ray_tunes_brackets_the_other_way_round(
    tune: Any, most: int, eta: int
) -> None:
    ray = tune.schedulers.HyperBandScheduler(
        metric="m", mode="max", max_t=most, reduction_factor=eta
    )
    theirs = [(ray._get_n0(s), ray._get_r0(s)) for s in range(ray._s_max_1)]
    assert theirs == [bracket[0] for bracket in reversed(brackets(most, eta))]


@pytest.mark.parametrize(
    ("n", "theirs", "ours"), [(81, 27, 27), (34, 12, 11), (8, 3, 2), (15, 5, 5)]
)
def test_ray_tune_keeps_the_ceiling_of_a_third_and_the_paper_the_floor(
    tune: Any, n: int, theirs: int, ours: int
) -> None:
    bracket = tune.hyperband._Bracket("training_iteration", n, 1, 81, 3, 4)
    rng = random.Random(n)
    values = [rng.random() for _ in range(n)]
    fakes = [Fake(trial) for trial in range(n)]
    for fake in fakes:
        bracket.add_trial(fake)
        bracket.update_trial_stats(fake, {"training_iteration": 1, "m": values[fake.number]})
    kept = {fake.number for fake in bracket.successive_halving("m", 1.0)[0]}
    assert len(kept) == theirs
    halving = scheduler({"successive_halving": {"n": n}}, max_steps=81)
    add(halving, n)
    promoted = {t for t in range(n) if arrive(halving, (t, 1, values[t])) == ["continue"]}
    while (trial := halving.promote(complete=False)) is not None:
        halving.started(trial)
        promoted.add(trial)
    assert len(promoted) == ours
    assert promoted <= kept
    assert promoted == set(sorted(range(n), key=lambda t: -values[t])[:ours])


# ---- population based training


def ray_pbt(
    tune: Any, mode: Mode, count: int, fraction: float
) -> tuple[Any, list[Fake], list[tuple[list[int], list[int]]]]:
    """One whose quantiles are noted, in place of an exploit, which needs Ray's checkpoints."""
    ray = tune.schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        metric="m",
        mode=mode,
        perturbation_interval=5,
        quantile_fraction=fraction,
        hyperparam_mutations={"x": [0.1, 0.2]},
    )
    fakes, seen = [Fake(trial) for trial in range(count)], []
    for fake in fakes:
        ray._trial_state[fake] = tune.pbt._PBTTrialState(fake)

    def note(trial: Fake, _: Any, upper: list[Fake], lower: list[Fake]) -> None:
        seen.append(([t.number for t in lower], [t.number for t in upper]))

    ray._checkpoint_or_exploit = note
    return ray, fakes, seen


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("count", "fraction"),
    [(2, 0.25), (5, 0.25), (12, 0.25), (3, 0.5), (7, 0.5), (10, 0.1), (4, 0.0)],
)
def test_pbt_has_ray_tunes_quantiles(tune: Any, count: int, fraction: float, mode: Mode) -> None:
    ray, fakes, seen = ray_pbt(tune, mode, count, fraction)
    ours = scheduler(
        {"pbt": {"perturbation_interval": 5, "quantile_fraction": fraction}},
        max_steps=100,
        trials=count,
        mode=mode,
    )
    for trial in range(count):
        ours.added(Candidate(trial=trial, config={"x": 0.5}))
    over: set[int] = set()
    for place, (trial, step, value) in enumerate(streams(3, count, list(range(1, 41)), values=9)):
        if trial in over:
            continue
        if place == 20 * count:  # half-way one trial is over
            over.add(trial)
            fakes[trial].status = "TERMINATED"
            ours.ended(trial, "done")
            continue
        ray.on_trial_result(
            controller(fakes), fakes[trial], {"training_iteration": step, "m": value}
        )
        if ours.first(trial, step - 1) != step:
            continue
        assert ours.quantiles(trial, ours.setting.sign * value) == seen[-1]
        verdict = ours.decide(trial, [value] * step)
        worst, best = seen[-1]
        expected = None
        if trial in worst:  # one of the best, as in Ray Tune; but not one that is no better
            drawn = best[int(ours._draw(trial, step, "source") * len(best))]
            expected = drawn if ours._members[drawn].cost < ours.setting.sign * value else None
        assert verdict.source == expected
        ours.tell(trial, [value] * step, Verdict())
    assert len(seen) >= 6 * count


SPACE = Space.parse(
    {
        "lr": {"loguniform": [1e-4, 1.0]},
        "momentum": {"uniform": [0, 1]},
        "layers": {"int": [1, 64]},
        "act": {"choice": ["relu", "tanh", "gelu"]},
    }
)


def both_explore(
    tune: Any,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    u: dict[str, float],
    p: float,
) -> tuple[Any, Any]:
    """Ray Tune's and ours, with the same chances: u["lr:resample"], u["lr:perturb"], ..."""
    names = list(config)
    sequence = [u[f"{name}:{what}"] for name in names for what in ("resample", "perturb")]
    monkeypatch.setattr(
        tune.pbt,
        "random",
        SimpleNamespace(
            random=lambda: sequence.pop(0),
            choice=lambda options: options[int(sequence.pop(0) * len(options))],
        ),
    )
    from ray.tune.search.sample import Float, Integer

    untyped: Any = SimpleNamespace(Float=Float, Integer=Integer)
    mutations = {
        "lr": untyped.Float(1e-4, 1.0).loguniform(),
        "momentum": untyped.Float(0.0, 1.0).uniform(),
        "layers": untyped.Integer(1, 65).uniform(),
        "act": ["relu", "tanh", "gelu"],
    }
    theirs, _ = tune.pbt._explore(config, mutations, p, (1.2, 0.8), None)
    ours = explore(
        SPACE,
        config,
        names,
        lambda name: u.get(name, 0.5),
        resample_probability=p,
        factors=(1.2, 0.8),
    )
    return theirs, ours


def test_pbt_explores_as_ray_tune(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(11)
    clipped = stepped = 0
    for _ in range(400):
        config = {
            "lr": 10 ** rng.uniform(-4, 0),
            "momentum": rng.random(),
            "layers": rng.randint(1, 64),
            "act": rng.choice(["relu", "tanh", "gelu"]),
        }
        u = {f"{name}:{what}": rng.random() for name in config for what in ("resample", "perturb")}
        theirs, ours = both_explore(tune, monkeypatch, config, u, 0.0)
        assert ours["act"] == theirs["act"]
        for name, low, high in (("lr", 1e-4, 1.0), ("momentum", 0.0, 1.0)):
            assert ours[name] == min(max(theirs[name], low), high), "Ray Tune leaves the range"
            clipped += ours[name] != theirs[name]
        # Ray Tune leaves the range, or leaves a small number as it is
        if ours["layers"] != theirs["layers"]:
            if theirs["layers"] == config["layers"]:
                assert abs(ours["layers"] - config["layers"]) == 1
                stepped += 1
            else:
                assert ours["layers"] in (1, 64)
                clipped += 1
    assert clipped > 20
    assert stepped > 5


@pytest.mark.parametrize("chance", [0.0, 0.2, 0.24, 0.26, 0.9])
def test_pbt_resamples_where_ray_tune_does(
    tune: Any, monkeypatch: pytest.MonkeyPatch, chance: float
) -> None:
    config = {"lr": 0.1, "momentum": 0.5, "layers": 8, "act": "relu"}
    u = {f"{name}:{what}": 0.9 for name in config for what in ("resample", "perturb", "value")}
    theirs, ours = both_explore(tune, monkeypatch, config, {**u, "act:resample": chance}, 0.25)
    assert ours == theirs
    assert ours["act"] == ("gelu" if chance < 0.25 else "tanh")
