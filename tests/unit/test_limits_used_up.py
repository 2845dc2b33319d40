"""Limits of money and time that leave nothing to do: refused, with what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regrow.infra.log.log import Log
from regrow.infra.ray.joining import check_room
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import encode
from regrow.search.planning.simulator import FunctionObjective, simulate
from regrow.search.spec import Spec
from regrow.show.live.text import raised
from tests.unit.test_limits import SPEC, run

PAST = "2001-01-01T00:00Z"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A state root with an experiment that its money has ended, decades ago."""
    found = Places.at(str(tmp_path))
    done = run({"dollars": 1.0}, "fifo")
    Log.open(found.store("limited")).claim([encode(event) for event in done.events])
    return found


def test_a_new_experiment_whose_deadline_is_over_is_refused(tmp_path: Path) -> None:
    spec = Spec.parse({**SPEC, "name": "new", "stop": {"deadline": PAST}})
    with pytest.raises(SpecError, match="is over; write a later time") as refused:
        prepare(Places.at(str(tmp_path)), "new", spec, trials=None, code=None)
    assert refused.value.key == "stop.deadline"


@pytest.mark.parametrize(
    ("stop", "key", "problem"),
    [
        ({"dollars": 0.5}, "stop.dollars", "spent already, .*; give more: --dollars"),
        ({"deadline": PAST}, "stop.deadline", "is over; give a later one: --deadline"),
        ({"deadline": "8h"}, "stop.deadline", "it counts from the creation, at 1970"),
    ],
    ids=str,
)
def test_a_changed_limit_that_is_used_up_is_refused(
    places: Places, stop: dict[str, Any], key: str, problem: str
) -> None:
    with pytest.raises(SpecError, match=problem) as refused:
        prepare(places, "limited", changed(stop), trials=None, code=None)
    assert refused.value.key == key


def changed(stop: dict[str, Any]) -> Spec:
    return Spec.parse({**SPEC, "schedule": "fifo", "stop": stop})


def test_more_money_is_taken(places: Places) -> None:
    assert prepare(places, "limited", None, trials=None, code=None).nothing_left
    more = prepare(places, "limited", changed({"dollars": 3.0}), trials=None, code=None)
    assert not more.nothing_left


def test_as_many_trials_as_limits_allow_have_no_total_to_raise(places: Places) -> None:
    with pytest.raises(SpecError, match=r"raise budget, stop.dollars or stop.deadline"):
        prepare(places, "limited", None, trials=40, code=None)


def test_all_limits_that_are_used_up_are_raised_by_one_command(tmp_path: Path) -> None:
    done = run({"dollars": 1.0, "deadline": "20min"}, "fifo")
    (line,) = raised(done.history, Places.at(str(tmp_path)))
    assert "--dollars 1.5" in line
    assert "--deadline 1970" in line


def test_a_machine_without_a_price_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_room(changed({"dollars": 1.0}))
    with pytest.raises(SpecError, match="price_per_hour"):
        check_room(Spec.parse({**SPEC, "price_per_hour": None, "stop": {"dollars": 1.0}}))


def test_a_budget_is_raised_and_one_that_is_used_up_refused(tmp_path: Path) -> None:
    found, given = Places.at(str(tmp_path)), {**SPEC, "schedule": "fifo", "max_steps": 9}
    spec = Spec.parse({**given, "budget": 4})
    done = simulate(spec, FunctionObjective(function=lambda *_: 1.0, spec=spec), workers=2)
    Log.open(found.store("limited")).claim([encode(event) for event in done.events])
    assert prepare(found, "limited", spec, trials=None, code=None).nothing_left
    less = Spec.parse({**given, "budget": {"steps": 20}})
    with pytest.raises(SpecError, match="is used up already, 36 of 20 steps; give more: --budget"):
        prepare(found, "limited", less, trials=None, code=None)
    more = prepare(found, "limited", Spec.parse({**given, "budget": 6}), trials=None, code=None)
    assert not more.nothing_left
    assert more.changes == ["budget.trainings was 4, and is 6 from now on"]
    (line,) = raised(done.history, found)
    assert "resume limited --budget 6" in line


def test_a_number_of_trials_that_is_little_work_is_remarked_upon(tmp_path: Path) -> None:
    def remarks(**changes: Any) -> list[str]:
        spec = Spec.parse({**SPEC, "schedule": "asha", **changes})
        return prepare(Places.at(str(tmp_path)), "new", spec, trials=None, code=None).shortened

    (line,) = remarks(trials=30)
    assert line.startswith("trials: 30 is the work of about ")
    assert line.endswith("write budget: 30 in its place")
    assert remarks(budget=30) == remarks(trials=9) == remarks(trials=30, schedule="fifo") == []
