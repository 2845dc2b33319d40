"""Learning from experiments on other tasks: what is kept of them, what is tried first, and what a
sampler makes of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.log.log import Log
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import Created, decode, encode
from regrow.search.measured import Known
from regrow.search.planning.learning import (
    MOST_TRIALS,
    by_experiment,
    first_configurations,
    learnt_from,
)
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.samplers import make
from regrow.search.samplers.base import Advised, Result
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from tests.unit.replaying import on_paper, seed_of

LINE = Space.parse({"x": {"uniform": [0, 1]}})


def spec(**changes: Any) -> Spec:
    given = {
        "name": "new",
        "trainable": "work.py:train",
        "metric": "loss",
        "mode": "min",
        "space": LINE.to_json(),
        "search": "mobster",
        "schedule": "asha",
        "trials": 24,
        "max_steps": 9,
        **changes,
    }
    return Spec.parse(given)


def task(best: float, scale: float = 1.0) -> Any:
    """A task whose best x is `best`; the values of two tasks are as far apart as their scales."""

    def curve(config: Mapping[str, Any], step: int) -> Mapping[str, float]:
        return {"loss": scale * ((config["x"] - best) ** 2 + 0.1 / step)}

    return curve


def searched(name: str, best: float, scale: float = 1.0, **changes: Any) -> Simulation:
    of = spec(name=name, search="random", **changes)
    return simulate(of, FunctionObjective(function=task(best, scale), spec=of), workers=2)


def learnt(*tasks: tuple[str, float, float]) -> list[Known]:
    return [
        known
        for name, best, scale in tasks
        for known in learnt_from(searched(name, best, scale).history, spec(), name, "learn_from")
    ]


def others(*tasks: tuple[str, float, float]) -> list[list[Result]]:
    return by_experiment(Created(t=0, id="i", spec={}, learnt=learnt(*tasks)))


def test_each_experiment_is_kept_with_its_best_first_and_no_more_than_that() -> None:
    history = searched("a", 0.3, trials=200).history
    kept = learnt_from(history, spec(), "a", "learn_from")
    assert len(kept) <= MOST_TRIALS
    assert {one.origin.partition(":")[0] for one in kept} == {"a"}
    ended = [trial for trial in history.trials if trial.step == 9]
    assert [one.config["x"] for one in kept[:2]] == [
        t.config["x"] for t in sorted(ended, key=lambda t: min(t.values))[:2]
    ]
    assert decode(encode(Created(t=0, id="i", spec={}, learnt=kept))) == Created(
        t=0, id="i", spec={}, learnt=kept
    )


def test_what_is_tried_first_does_well_in_each_of_them() -> None:
    found = [
        config["x"]
        for config in first_configurations(spec(), others(("a", 0.2, 1.0), ("b", 0.8, 1000.0)))
    ]
    assert len(found) <= 6, "a quarter of the trials"
    assert any(abs(x - 0.2) < 0.1 for x in found[:3])
    assert any(abs(x - 0.8) < 0.1 for x in found[:3])
    assert first_configurations(spec(trials=3), others(("a", 0.2, 1.0))) == []


def test_an_advised_sampler_begins_where_the_others_were_best_and_leaves_when_it_is_wrong() -> None:
    setting = Setting(space=LINE, modes=("min",), max_steps=9)
    greedy = {"mobster": {"random_fraction": 0.0}}
    sampler, alone = make(greedy, setting), make(greedy, setting)
    assert isinstance(sampler, Advised)
    sampler.advise(others(("a", 0.2, 1.0), ("b", 0.25, 1000.0)))
    for one in (sampler, alone):
        for number, x in enumerate((0.5, 0.9)):
            one.tell(
                Result(
                    number=number, config={"x": x}, status="done", value=x, intermediate=[(9, x)]
                )
            )
    proposed = [on_paper(sampler.ask(n, seed_of(n))).config["x"] for n in range(2, 12)]
    assert statistics.median(abs(x - 0.22) for x in proposed) < 0.1
    assert on_paper(alone.ask(2, seed_of(2))).config != on_paper(sampler.ask(2, seed_of(2))).config
    for number in range(2, 14):
        x = (number - 1.5) / 12
        sampler.tell(
            Result(number=number, config={"x": x}, status="done", value=-x, intermediate=[(9, -x)])
        )
    later = [on_paper(sampler.ask(n, seed_of(n))).config["x"] for n in range(14, 24)]
    assert statistics.median(later) > 0.7


@pytest.mark.parametrize("search", ["mobster", "random", "tpe", "cmaes"])
def test_every_decision_can_be_recomputed_and_the_first_are_what_was_learnt(search: str) -> None:
    of = spec(search=search)
    found = learnt(("a", 0.2, 1.0), ("b", 0.8, 1000.0))
    run = Simulation(spec=of, objective=FunctionObjective(function=task(0.25), spec=of), workers=2)
    run.events = []
    run.open([Created(t=0, id="i", spec=of.to_json(), learnt=found)]).run()
    assert verify(run.events).difference is None
    first = first_configurations(of, by_experiment(Created(t=0, id="i", spec={}, learnt=found)))
    assert [trial.config for trial in run.history.trials[: len(first)]] == first


def test_parameters_that_are_others_are_said_with_what_it_can_do_about_them() -> None:
    of = spec(space={**LINE.to_json(), "z": {"uniform": [0, 1]}})
    with pytest.raises(
        SpecError,
        match="had no parameter 'z'; it learns from experiments of the same parameters; warm_start has",
    ):
        learnt_from(searched("a", 0.3).history, of, "a", "learn_from.0")


def put(places: Places, history_of: Simulation) -> None:
    Log.open(places.store(history_of.spec.name)).claim(
        [encode(event) for event in history_of.events]
    )


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(root=str(tmp_path / "state"))
    put(found, searched("a", 0.2))
    put(found, searched("b", 0.8))
    put(found, searched("c", 0.5, mode="max"))
    return found


def origins(known: list[Known]) -> set[str]:
    return {one.origin.partition(":")[0] for one in known}


def test_they_are_read_when_the_experiment_is_created(places: Places) -> None:
    named = prepare(places, "new", spec(learn_from=["b"]), trials=None, code=None)
    assert origins(named.learnt) == {"b"}
    fitting = prepare(places, "new", spec(learn_from="auto"), trials=None, code=None)
    assert origins(fitting.learnt) == {"a", "b"}, "the third one's metric is to become larger"
    assert fitting.advisers == ["a: 24 trials", "b: 24 trials"]
    plain = prepare(places, "new", spec(), trials=None, code=None)
    assert not plain.learnt
    assert not plain.advisers
    (told,) = prepare(
        Places(root=f"{places.root}-2"), "new", spec(learn_from="auto"), trials=None, code=None
    ).advisers
    assert told.startswith("nothing: ")


@pytest.mark.parametrize(
    ("names", "said"),
    [(["nobody"], 'learn_from.0: "nobody"'), (["a", "c"], 'learn_from.1: "c": optimised max loss')],
)
def test_one_that_is_named_and_has_nothing_to_say_is_refused(
    places: Places, names: list[str], said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        prepare(places, "new", spec(learn_from=names), trials=None, code=None)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"search": "dehb", "schedule": "dehb"},
        {"search": "grid", "space": {"x": {"grid": [1, 2, 3]}}, "trials": 3},
        {"search": "define_by_run", "space": {}},
    ],
)
def test_where_a_search_says_itself_what_comes_first_it_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"learn_from: .*does not go with"):
        spec(learn_from=["a"], **changes)


def test_one_name_may_stand_alone_and_a_wrong_form_is_told() -> None:
    assert spec(learn_from="a").learn_from == ("a",)
    with pytest.raises(SpecError, match=r"learn_from.*write a list of names, or auto"):
        spec(learn_from=3)


def test_what_broke_a_constraint_and_what_has_its_turn_are_not_tried_first() -> None:
    of = spec(name="a", search="random", constraints=["size <= 0.5"])

    def sized(config: Mapping[str, Any], step: int) -> Mapping[str, float]:
        return {"loss": config["x"], "size": 1.0 - config["x"]}

    history = simulate(of, FunctionObjective(function=sized, spec=of), workers=2).history
    kept = learnt_from(
        history, spec(constraints=["size <= 0.5"], search="random"), "a", "learn_from"
    )
    assert min(one.config["x"] for one in kept) >= 0.5
    gridded = spec(space={**LINE.to_json(), "g": {"grid": [1, 2]}})
    assert first_configurations(gridded, others(("a", 0.2, 1.0))) == []


def test_repeats_count_and_values_are_of_the_new_space() -> None:
    assert (
        len(
            first_configurations(
                spec(repeats=3), others(("a", 0.2, 1.0), ("b", 0.8, 1.0), ("c", 0.5, 1.0))
            )
        )
        <= 2
    )
    old = spec(name="a", search="random", space={"n": {"quniform": [1, 9, 1]}})
    new = spec(space={"n": {"int": [1, 9]}})
    history = simulate(
        old, FunctionObjective(function=lambda c, s: {"loss": c["n"]}, spec=old), workers=2
    ).history
    kept = learnt_from(history, new, "a", "learn_from")
    (first, *_) = first_configurations(
        new, by_experiment(Created(t=0, id="i", spec={}, learnt=kept))
    )
    assert isinstance(first["n"], int)


def test_a_log_does_not_grow_by_curves_and_a_damaged_one_is_passed_over(places: Places) -> None:
    (kept, *_) = learnt_from(
        searched("a", 0.3, max_steps=500, schedule="fifo", trials=4).history,
        spec(),
        "a",
        "learn_from",
    )
    assert len(kept.curve) < 20
    assert kept.curve[-1][0] == 500
    assert kept.curve[-1][1] == pytest.approx(kept.value)
    (segment, *_) = places.store("b").list("log/")
    places.store("b").delete([segment])
    places.store("b").create(segment, b"no log\n")
    assert origins(
        prepare(places, "new", spec(learn_from="auto"), trials=None, code=None).learnt
    ) == {"a"}
    with pytest.raises(SpecError, match="names one twice"):
        spec(learn_from=["a", "a"])


@pytest.mark.parametrize("search", ["grid", "brute_force"])
def test_auto_leaves_a_search_alone_that_tries_each_once(places: Places, search: str) -> None:
    cells = {"x": {"choice": [0.25, 0.5]}}
    put(places, searched("cells", 0.5, space=cells, trials=8))
    found = prepare(
        places,
        "new",
        spec(learn_from="auto", search=search, space=cells, trials=2),
        trials=None,
        code=None,
    )
    assert found.learnt == []
    assert origins(
        prepare(
            places,
            "new",
            spec(learn_from="auto", search="random", space=cells),
            trials=None,
            code=None,
        ).learnt
    ) == {"cells"}


def test_an_experiment_of_one_trial_teaches_what_it_can() -> None:
    kept = learnt_from(searched("a", 0.3, trials=1).history, spec(), "a", "learn_from")
    (first,) = first_configurations(
        spec(), by_experiment(Created(t=0, id="i", spec={}, learnt=kept))
    )
    assert first == kept[0].config
