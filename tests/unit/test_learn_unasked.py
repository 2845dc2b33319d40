"""Learning from earlier experiments unasked: only from those that were seen to tell about each
other, decided once, and switched off in a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from regrow.infra.log.log import Log
from regrow.infra.state.experiments import Prepared, prepare
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import encode
from regrow.search.planning.agreement import LEAST, agreement, least_mean
from regrow.search.planning.learning import learnt_from
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.spec import Spec

ALIKE = ((0.3, 0.6), (0.35, 0.55), (0.25, 0.65), (0.3, 0.7), (0.2, 0.6))
APART = ((0.1, 0.9), (0.9, 0.1), (0.5, 0.5), (0.9, 0.9), (0.1, 0.1))


def spec(**changes: Any) -> Spec:
    given = {
        "name": "new",
        "trainable": "work.py:train",
        "metric": "loss",
        "mode": "min",
        "space": {"x": {"uniform": [0, 1]}, "y": {"uniform": [0, 1]}},
        "budget": 12,
        "max_steps": 9,
        **changes,
    }
    return Spec.parse(given)


def searched(name: str, best: tuple[float, float], **changes: Any) -> Simulation:
    of = spec(name=name, search="random", schedule="asha", **{"seed": len(name), **changes})

    def loss(config: dict[str, Any], step: int) -> float:
        return float((config["x"] - best[0]) ** 2 + (config["y"] - best[1]) ** 2 + 1 / step)

    return simulate(of, FunctionObjective(function=loss, spec=of), workers=2)


def filled(places: Places, tasks: Sequence[tuple[float, float]], **changes: Any) -> list[str]:
    names = ["abcdefgh"[: number + 1] for number in range(len(tasks))]
    for name, best in zip(names, tasks, strict=True):
        made = searched(name, best, **changes)
        log = Log.open(places.store(name))
        log.claim([encode(event) for event in made.events])
    return names


def new(places: Places, **changes: Any) -> Prepared:
    return prepare(places, "new", spec(**changes), trials=None, code=None)


def test_what_agrees_is_learnt_from_recorded_by_name_and_said_with_how_to_switch_it_off(
    places: Places,
) -> None:
    names = filled(places, ALIKE)
    found = new(places)
    assert sorted(found.spec.learn_from or ()) == names
    assert {known.origin.split(":")[0] for known in found.learnt} == set(names)
    (line,) = found.advisers
    assert line.endswith("learn_from: [] switches this off")
    assert found.asked.learn_from is None, "another process finds the same"
    assert "learn_from" in found.auto, "a copy is to choose anew"
    off = new(places, learn_from=[])
    assert (off.learnt, off.advisers, off.spec.learn_from) == ([], [], ())


@pytest.mark.parametrize(
    ("tasks", "changes", "asks"),
    [
        (APART, {}, {}),
        (ALIKE[:2], {}, {}),
        (ALIKE, {"budget": None, "trials": 6}, {}),
        (ALIKE, {}, {"mode": "max"}),
        (ALIKE, {}, {"space": {"x": {"uniform": [0, 1]}, "z": {"uniform": [0, 1]}}}),
        (ALIKE, {}, {"search": "tpe"}),
    ],
    ids=[
        "they tell nothing about each other",
        "two are too few",
        "few trials",
        "the other way round",
        "other parameters",
        "a named search",
    ],
)
def test_nothing_is_learnt_where_nothing_shows_that_it_helps(
    places: Places, tasks: Any, changes: dict[str, Any], asks: dict[str, Any]
) -> None:
    filled(places, tasks, **changes)
    found = new(places, **asks)
    assert (found.learnt, found.advisers, found.spec.learn_from) == ([], [], ())


def test_an_experiment_that_is_there_stays_as_it_is(places: Places) -> None:
    old = simulate(
        spec(search="random"),
        FunctionObjective(function=lambda config, _: config["x"], spec=spec()),
        workers=1,
    )
    Log.open(places.store("new")).claim([encode(event) for event in old.events])
    filled(places, ALIKE)
    again = prepare(places, "new", spec(search="random"), trials=None, code=None)
    assert again.learnt == []
    assert again.nothing_left
    with pytest.raises(SpecError, match="learn_from"):
        prepare(places, "new", spec(search="random", learn_from=["a"]), trials=None, code=None)


def test_one_that_runs_and_a_damaged_one_are_left_out(places: Places) -> None:
    names = filled(places, ALIKE)
    (segment, *_) = places.store(names[0]).list("log/")
    places.store(names[0]).delete([segment])
    places.store(names[0]).create(segment, b"no log\n")
    runs = searched("runs", ALIKE[0])
    Log.open(places.store("runs")).claim([encode(event) for event in runs.events[:-1]])
    assert sorted(new(places).spec.learn_from or ()) == names[1:]


def test_agreement_is_of_what_is_predicted_from_the_others_alone() -> None:
    def correlations(tasks: Sequence[tuple[float, float]]) -> list[float]:
        made = [searched("abcdefgh"[: n + 1], task) for n, task in enumerate(tasks)]
        known = [learnt_from(one.history, spec(), "a", "learn_from") for one in made]
        return agreement(spec(), known)

    alike, apart = correlations(ALIKE), correlations(APART)
    assert least_mean(alike) > LEAST > least_mean(apart)
    odd = correlations([*ALIKE[:4], (0.95, 0.05)])
    assert min(odd) == odd[-1] < 0
    assert least_mean([0.9, 0.9]) == -1.0
