"""Population based training, its explore step, and the replay of a schedule that it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.mode import Mode
from regrow.search.samplers.random_search import RandomSearch
from regrow.search.schedulers.base import Candidate, Verdict
from regrow.search.schedulers.pbt import explore, mutable
from regrow.search.space import Space
from tests.unit.scheduling import Run, scheduler, setting

SPACE = Space.parse(
    {
        "lr": {"loguniform": [1e-4, 1.0]},
        "drop": {"quniform": [0, 1, 0.1]},
        "layers": {"int": [1, 8]},
        "width": {"int": [16, 512], "step": 16},
        "act": {"choice": ["relu", "tanh", "gelu"]},
        "slope": {"uniform": [0, 1], "when": {"act": "tanh"}},
        "shift": {"normal": [0, 1]},
        "data": {"grid": ["a", "b"]},
        "size": 3,
    }
)
CONFIG = {
    "lr": 0.1,
    "drop": 0.5,
    "layers": 2,
    "width": 64,
    "act": "relu",
    "shift": -2.0,
    "data": "b",
    "size": 3,
}


def draws(**by_name: float) -> Callable[[str], float]:
    """Draws by "NAME_what"; what isn't given is 0.9: no resampling, the last factor, the right
    neighbour.
    """
    return lambda name: by_name.get(name.replace(":", "_"), 0.9)


def explored(
    names: list[str],
    resample_probability: float = 0.25,
    config: Mapping[str, Any] = CONFIG,
    **u: float,
) -> Any:
    return explore(
        SPACE,
        config,
        names,
        draws(**u),
        resample_probability=resample_probability,
        factors=(1.2, 0.8),
    )


# ---- explore


def test_numbers_are_multiplied_by_a_factor() -> None:
    assert explored(["lr"])["lr"] == 0.1 * 0.8
    assert explored(["lr"], lr_perturb=0.1)["lr"] == 0.1 * 1.2
    assert explored(["shift"])["shift"] == -2.0 * 0.8
    assert {k: v for k, v in explored(["lr"]).items() if k != "lr"} == {
        k: v for k, v in CONFIG.items() if k != "lr"
    }


def test_numbers_keep_to_their_bounds_and_steps() -> None:
    assert explored(["lr"], config={**CONFIG, "lr": 0.9}, lr_perturb=0.1)["lr"] == 1.0
    assert explored(["lr"], config={**CONFIG, "lr": 1.1e-4})["lr"] == 1e-4
    assert explored(["drop"])["drop"] == 0.4
    assert explored(["drop"], config={**CONFIG, "drop": 1.0}, drop_perturb=0.1)["drop"] == 1.0
    assert explored(["width"], config={**CONFIG, "width": 320})["width"] == 256
    assert explored(["width"], config={**CONFIG, "width": 512}, width_perturb=0.1)["width"] == 512


def test_a_whole_number_that_rounds_back_to_itself_moves_by_one_step() -> None:
    assert explored(["layers"], layers_perturb=0.1)["layers"] == 3  # 2 * 1.2 = 2.4
    assert explored(["layers"])["layers"] == 1  # 2 * 0.8 = 1.6
    assert explored(["layers"], config={**CONFIG, "layers": 1})["layers"] == 1
    # 25.6 is nearest to 32
    assert explored(["width"], config={**CONFIG, "width": 32})["width"] == 16


def test_a_choice_becomes_its_neighbour() -> None:
    assert explored(["act"], config={**CONFIG, "act": "tanh", "slope": 0.3})["act"] == "gelu"
    assert explored(["act"], act_perturb=0.1)["act"] == "relu"
    assert explored(["act"])["act"] == "tanh"


def test_conditions_are_kept() -> None:
    found = explored(["act"], slope_value=0.25)
    assert (found["act"], found["slope"]) == ("tanh", 0.25)
    assert "slope" not in explored(["act"], config={**CONFIG, "act": "tanh", "slope": 0.3})


def test_with_a_probability_a_value_is_drawn_anew() -> None:
    assert explored(["lr"], lr_resample=0.2, lr_value=0.5)["lr"] == pytest.approx(1e-2)
    assert explored(["lr"], lr_resample=0.3)["lr"] == 0.1 * 0.8
    assert (
        explored(["act"], lr_resample=0.3, resample_probability=1.0, act_value=0.99)["act"]
        == "gelu"
    )
    assert explored(["layers"], resample_probability=1.0, layers_value=0.99)["layers"] == 8


def test_constants_and_grids_stay_unless_a_grid_is_named() -> None:
    assert mutable(SPACE) == ["lr", "drop", "layers", "width", "act", "slope", "shift"]
    assert explored(["data"], data_perturb=0.1)["data"] == "a"


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_what_is_explored_is_in_the_space(seed: int, probability: float) -> None:
    config: dict[str, Any] = RandomSearch(setting(space=SPACE)).ask(seed, seed).config
    for turn in range(3):
        config = explore(
            SPACE,
            config,
            mutable(SPACE),
            lambda name, turn=turn: uniform_draw(seed, f"{turn}{name}"),  # type: ignore[misc]
            resample_probability=probability,
            factors=(1.2, 0.8),
        )
        assert set(config) == set(SPACE.active(config))
        assert all(p.domain.contains(config[p.name]) for p in SPACE.flat if p.name in config)


# ---- exploit


def population(scores: list[float], mode: Mode = "max", interval: int = 5, **options: Any) -> Any:
    """One trial per score, all told at the first decision. Its configuration has its number in
    x.
    """
    pbt = scheduler(
        {"pbt": {"perturbation_interval": interval, **options}},
        max_steps=100,
        mode=mode,
        trials=len(scores),
    )
    for trial in range(len(scores)):
        pbt.added(Candidate(trial=trial, config={"x": trial / 100}))
    for trial, score in enumerate(scores):
        pbt.tell(trial, [score] * interval, Verdict())
    return pbt


def test_the_worst_quarter_exploits_one_of_the_best_quarter() -> None:
    scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    pbt = population(scores)
    sources = []
    for trial in range(8):
        verdict = pbt.decide(trial, [scores[trial]] * 10)
        sources.append(verdict.source)
        assert (verdict.action == "restart") == (trial < 2)
    assert set(sources[:2]) <= {6, 7}
    assert sources[2:] == [None] * 6
    verdict = pbt.decide(0, [0.1] * 10)
    assert verdict.why == f"exploits trial {verdict.source} ({scores[verdict.source]:g} at step 5)"
    assert pbt.decide(2, [0.3] * 10).until == 15


def test_the_newest_score_of_the_trial_itself_counts() -> None:
    pbt = population([0.1, 0.2, 0.3, 0.4])
    assert pbt.decide(0, [9.0] * 10).action == "continue"
    assert pbt.decide(3, [0.0] * 10).source == 2


def test_both_quantiles_leave_out_those_without_a_score_and_those_that_are_over() -> None:
    pbt = population([0.1, 0.2, 0.3, 0.4])
    pbt.ended(3, "failed")
    assert pbt.decide(0, [0.1] * 10).source == 2
    pbt.ended(2, "done")
    assert pbt.decide(0, [0.1] * 10).source == 1
    pbt.ended(1, "stopped")
    assert pbt.decide(0, [0.1] * 10).action == "continue"
    late = scheduler("pbt", max_steps=100, trials=3)
    for trial in range(3):
        late.added(Candidate(trial=trial, config={"x": 0.5}))
    assert late.decide(0, [0.1] * 5).action == "continue", "nobody else has a score"


def test_nobody_exploits_an_equal() -> None:
    pbt = population([0.5, 0.5, 0.5, 0.5])
    assert [pbt.decide(t, [0.5] * 10).action for t in range(4)] == ["continue"] * 4
    assert pbt.quantiles(0, -0.5) == ([0], [3])


def test_where_the_source_had_no_checkpoint_the_trial_stays_as_it_is() -> None:
    pbt = population([0.1, 0.2, 0.3, 0.4], resample_probability=0.0)
    pbt.tell(0, [0.1] * 10, Verdict(action="continue", until=15))
    pbt.tell(0, [0.9] * 15, Verdict())
    verdict = pbt.decide(1, [0.2] * 10)
    assert (verdict.source, verdict.config) == (0, {"x": 0.0})


def test_what_a_trial_took_over_is_what_others_take_from_it() -> None:
    pbt = population([0.1, 0.2, 0.3, 0.4], resample_probability=0.0, perturbation_factors=[1.0])
    first = pbt.decide(0, [0.1] * 10)
    assert (first.source, first.config) == (3, {"x": 0.03})
    pbt.tell(0, [0.1] * 10, first)
    pbt.tell(0, [0.9] * 15, Verdict())
    second = pbt.decide(1, [0.2] * 15)
    assert (second.source, second.config) == (0, {"x": 0.03})
    assert second.why == "exploits trial 0 (0.9 at step 15)"


def test_only_the_named_parameters_change() -> None:
    pbt = scheduler({"pbt": {"mutate": ["lr"]}}, space=SPACE, trials=2, max_steps=50)
    for trial in range(2):
        pbt.added(Candidate(trial=trial, config=dict(CONFIG)))
        pbt.tell(trial, [float(trial)] * 5, Verdict())
    config = pbt.decide(0, [0.0] * 10).config
    assert {name for name in config if config[name] != CONFIG[name]} == {"lr"}


def test_the_draws_depend_on_the_seed_the_trial_and_the_step_alone() -> None:
    def taken(seed: int) -> list[Any]:
        pbt = scheduler("pbt", space=SPACE, trials=12, max_steps=500, seed=seed)
        for trial in range(12):
            pbt.added(Candidate(trial=trial, config=dict(CONFIG)))
            pbt.tell(trial, [float(trial)] * 5, Verdict())
        return [
            (v.source, v.config) for step in range(10, 300, 5) if (v := pbt.decide(0, [0.0] * step))
        ]

    assert taken(1) == taken(1)
    assert taken(1) != taken(2)
    assert len({source for source, _ in taken(1)}) == 3
    assert len({repr(config) for _, config in taken(1)}) > 40


# ---- more trials than slots


def test_a_population_larger_than_the_slots_takes_turns() -> None:
    run = Run(
        scheduler({"pbt": {"quantile_fraction": 0.0}}, max_steps=20, trials=5),
        lambda t, s, c: float(t),
        5,
        2,
    )
    run.go(rounds=12)
    spread = [len(v) for v in run.values.values()]
    assert len(spread) == 5
    assert max(spread) - min(spread) <= 5
    assert run.go().outcome == dict.fromkeys(range(5), "done")
    assert run.starts[:5] == [0, 1, 2, 3, 4]


def test_with_a_slot_for_each_none_pauses() -> None:
    run = Run(scheduler("pbt", max_steps=20, trials=4), lambda t, s, c: float(t), 4, 4).go()
    # at step 5 trial 0 is first: nobody else has a score
    assert Counter(verdict.action for _, _, verdict in run.log) == {"continue": 10, "restart": 2}
    assert run.outcome == dict.fromkeys(range(4), "done")


def test_an_exploit_is_a_pause_where_others_have_their_turn() -> None:
    pbt = scheduler("pbt", max_steps=100, trials=3)
    for trial in range(2):
        pbt.added(Candidate(trial=trial, config={"x": 0.5}))
    pbt.tell(1, [0.9] * 5, Verdict())
    verdict = pbt.decide(0, [0.1] * 5)
    assert (verdict.action, verdict.source) == ("pause", 1)
    assert verdict.config is not None
    assert pbt.promote(complete=False) is None, "a new one comes first"
    pbt.tell(0, [0.1] * 5, verdict)
    pbt.added(Candidate(trial=2, config={"x": 0.5}))
    assert pbt.promote(complete=False) == 0
    pbt.started(0)
    assert pbt.promote(complete=True) is None


def test_the_one_with_the_fewest_steps_goes_on() -> None:
    pbt = scheduler("pbt", max_steps=100, trials=3)
    for trial in range(3):
        pbt.added(Candidate(trial=trial, config={"x": 0.5}))
    pbt.tell(0, [0.1] * 10, Verdict(action="pause"))
    pbt.tell(1, [0.1] * 5, Verdict(action="pause"))
    assert pbt.promote(complete=True) == 1
    assert pbt.decide(2, [0.1] * 5).action == "continue", "none has fewer"
    assert pbt.decide(2, [0.2] * 10).why == "trial 1 has its turn"
    pbt.dropped(1)
    pbt.ended(1, "stopped")
    assert pbt.promote(complete=True) == 0


@pytest.mark.parametrize("slots", [1, 2, 5, 9])
def test_failures_and_losses_stop_nobody_else(slots: int) -> None:
    run = Run(
        scheduler({"pbt": {"perturbation_interval": 2}}, max_steps=11, trials=9),
        lambda t, s, c: c["x"] + t % 4,
        9,
        slots,
        configs=[{"x": t / 10} for t in range(9)],
        breaks={3: 1, 7: 5},
        lost={(0, 3), (5, 2)},
    ).go()
    assert Counter(run.outcome.values()) == {"done": 7, "failed": 2}
    assert all(len({s for s, _ in run.verdicts(t)}) == len(run.verdicts(t)) for t in run.values)
    assert any(verdict.source is not None for _, _, verdict in run.log)


def test_the_lineage_can_be_followed() -> None:
    run = Run(
        scheduler({"pbt": {"perturbation_interval": 2}}, max_steps=11, trials=6),
        lambda t, s, c: float(t),
        6,
        6,
    ).go()
    for trial, _, verdict in run.log:
        if verdict.source is not None:
            source, score = verdict.source, float(verdict.source)
            assert source > trial
            assert verdict.why.startswith(f"exploits trial {source} ({score:g} at step ")
    assert run.config[0] == [v.config for t, _, v in run.log if t == 0 and v.config][-1]


@pytest.mark.parametrize(
    "options",
    [
        {"perturbation_interval": 0},
        {"quantile_fraction": 0.6},
        {"quantile_fraction": -0.1},
        {"resample_probability": 1.5},
        {"perturbation_factors": []},
        {"perturbation_factors": [0]},
        {"perturbation_factors": 1.2},
        {"mutate": "x"},
        {"mutate": ["y"]},
        {"burn_in": 3},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=rf"schedule\.pbt\.{next(iter(options))}"):
        scheduler({"pbt": options})


# ---- replay


def test_a_schedule_is_followed() -> None:
    policy = [[3, {"lr": 0.01}], [6, {"lr": 0.001, "act": "gelu"}]]
    seen = []

    def curve(trial: int, step: int, config: Mapping[str, Any]) -> float:
        seen.append((step, config["lr"], config["act"]))
        return 0.0

    run = Run(
        scheduler({"pbt_replay": {"policy": policy}}, space=SPACE, max_steps=8, trials=1),
        curve,
        1,
        2,
        configs=[CONFIG],
        lost={(0, 7)},
    ).go()
    assert seen == [(s, 0.1, "relu") for s in (1, 2, 3)] + [
        (s, 0.01, "relu") for s in (4, 5, 6)
    ] + [(s, 0.001, "gelu") for s in (7, 8)]
    assert run.outcome == {0: "done"}
    assert [verdict.why for _, _, verdict in run.log] == [
        "the policy changes at step 3",
        "the policy changes at step 6",
    ]
    assert all(verdict.source is None for _, _, verdict in run.log)


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (None, "is missing"),
        ([], "is not a list"),
        ([[1]], "configuration"),
        ([[0, {}]], "is not a step"),
        ([[5, {}], [5, {}]], "is not a step"),
        ([[True, {}]], "is not a step"),
        ([[9, {}]], "max_steps"),
        ([[3, {"lrr": 0.1}]], "did you mean 'lr'"),
        ([[3, {"lr": 7}]], "is not a value"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(policy: Any, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        scheduler({"pbt_replay": {"policy": policy}}, space=SPACE, max_steps=9)


def test_a_schedule_is_for_one_trial() -> None:
    with pytest.raises(SpecError, match="trials: 2"):
        scheduler({"pbt_replay": {"policy": [[1, {}]]}}, trials=2)
