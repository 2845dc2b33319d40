"""`search: auto`: what is chosen for which specification, that it is chosen once, and that logs
older than it say what they said.
"""

from __future__ import annotations

from typing import Any

import pytest

from regrow.flows.coordinator.claim import claimed
from regrow.infra.log.reading import read_events, replay
from regrow.infra.mlflow.parent_run import note
from regrow.infra.state.experiments import Prepared, prepare
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import Created, Decided, decode, encode
from regrow.search.history import History
from regrow.search.planning.simulator import FunctionObjective, simulate
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec, auto
from regrow.show.live import text
from regrow.show.live.board import Board
from regrow.show.views import summaries
from tests.unit.office import opening_of
from tests.unit.simulated import Simulation, created, score

GIVEN: dict[str, Any] = {
    "name": "simulated",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {
        "x": {"uniform": [0.0, 1.0]},
        "size": {"logint": [1, 64]},
        "kind": {"choice": ["a", "b"]},
    },
    "trials": 40,
    "max_steps": 27,
}
CHOSEN: tuple[Any, Any] = (
    {"mobster": {"by_step": True, "augmented": True}},
    {"hyperband": {"grace_period": 1, "guard": 0.2}},
)
"""What `search: auto` makes of GIVEN."""
CELLS: dict[str, Any] = {"x": {"grid": [0.1, 0.5, 0.9]}, "kind": {"grid": ["a", "b"]}}
TWO = {"metric": [{"name": "score", "mode": "max"}, {"name": "size", "mode": "min"}], "mode": None}


def spec(**changes: Any) -> Spec:
    return Spec.parse({**GIVEN, **changes})


@pytest.mark.parametrize(
    ("changes", "search", "schedule"),
    [
        ({}, "mobster", "hyperband"),
        ({"search": "auto", "schedule": "auto"}, "mobster", "hyperband"),
        ({"trials": auto.MOST_TRIALS}, "mobster", "hyperband"),
        ({"trials": auto.MOST_TRIALS + 1}, "tpe", "hyperband"),
        (
            {"space": {f"x{n}": {"uniform": [0, 1]} for n in range(auto.MOST_DIMENSIONS)}},
            "mobster",
            "hyperband",
        ),
        (
            {"space": {f"x{n}": {"uniform": [0, 1]} for n in range(auto.MOST_DIMENSIONS + 1)}},
            "tpe",
            "hyperband",
        ),
        (
            {"space": {"x": {"uniform": [0, 1]}, **{f"c{n}": n for n in range(99)}}},
            "mobster",
            "hyperband",
        ),
        ({"max_steps": None}, "mobster", "fifo"),
        ({"max_steps": 1}, "mobster", "fifo"),
        ({"repeats": 2}, "mobster", "fifo"),
        ({"score": "final"}, "mobster", "hyperband"),
        ({"step_metric": "epoch"}, "mobster", "hyperband"),
        (TWO, "tpe", "fifo"),
        ({"constraints": ["size <= 10"]}, "tpe", "fifo"),
        ({"space": CELLS, "trials": None}, "grid", "fifo"),
        ({"space": CELLS, "trials": 4}, "grid", "fifo"),
        ({"space": CELLS, "trials": 12, "repeats": 2}, "grid", "fifo"),
        ({"space": CELLS, "trials": 7}, "random", "fifo"),
        ({"space": CELLS, "trials": 2, "points": [{"x": 0.9, "kind": "b"}]}, "random", "fifo"),
        ({"space": {**CELLS, "y": {"uniform": [0, 1]}}}, "mobster", "hyperband"),
        ({"space": {"x": 1}, "trials": 1}, "random", "fifo"),
        ({"schedule": "fifo"}, "mobster", "fifo"),
        ({"schedule": "hyperband"}, "mobster", "hyperband"),
        ({"schedule": {"pbt": {"perturbation_interval": 3}}}, "random", "pbt"),
        ({"schedule": "pb2", "space": {"x": {"uniform": [0.0, 1.0]}}}, "random", "pb2"),
        ({"schedule": {"resource_changing": {"schedule": "pbt"}}}, "random", "resource_changing"),
        ({"schedule": "dehb"}, "dehb", "dehb"),
        ({"search": "tpe"}, "tpe", "fifo"),
        ({"search": "random", "schedule": "asha"}, "random", "asha"),
    ],
)
def test_what_is_chosen(changes: dict[str, Any], search: str, schedule: str) -> None:
    given = spec(**changes)
    choice = given.choice
    assert choice.describe().partition(" (")[0] == f"search: {search}, schedule: {schedule}"
    assert set(choice.why) == {
        key for key in ("search", "schedule") if getattr(given, key) == "auto"
    }
    assert all(choice.why.values()), "each has a reason"
    again = Spec.parse(given.resolved.to_json())
    assert (again.search, again.schedule, again.choice.why) == (
        choice.search,
        choice.schedule,
        {},
    ), "what was chosen is said"
    again.check_imports()
    assert Spec.parse(given.to_json()) == given, "written and read it is still left to regrow"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"search": {"auto": {"n": 1}}},
            'search.auto: {"n": 1}: has no options; write search: auto, or name one and its options',
        ),
        (
            {"search": "tpe", "schedule": "auto"},
            'schedule: "auto": goes with search: auto alone; leave it out, which is fifo, or name',
        ),
        ({"search": "atuo"}, "did you mean 'auto'?"),
        ({"trials": None}, "trials: is missing; write the total number of trials"),
        ({"enqueue": [{"x": 0.5}]}, "is for search: define_by_run"),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "decided"),
    [
        ({}, True),
        ({"constraints": ["size <= 10"], "trials": 12}, False),
        ({"space": CELLS, "trials": None}, False),
    ],
)
def test_the_choice_stands_in_the_log_and_every_decision_follows_from_it(
    changes: dict[str, Any], decided: bool
) -> None:
    given = spec(**changes)

    def curve(config: dict[str, Any], step: int) -> dict[str, float]:
        return {"score": score(config, step), "size": float(config.get("size", 1))}

    events = simulate(given, FunctionObjective(function=curve, spec=given), workers=2).events
    first = decode(encode(events[0]))
    assert isinstance(first, Created)
    assert first.auto == given.choice.why
    assert (first.spec["search"], first.spec["schedule"]) == (
        given.choice.search,
        given.choice.schedule,
    )
    verified = verify(events)
    assert verified.difference is None
    assert verified.history.closed is not None
    assert bool(verified.kinds.get("decided")) == decided


def test_another_rule_changes_nothing_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    given = spec(trials=9)
    events = simulate(given, FunctionObjective(function=score, spec=given), workers=2).events
    monkeypatch.setattr(auto, "MOST_TRIALS", 1)
    assert given.choice.search == "tpe"
    verified = verify(events)
    assert verified.difference is None
    assert verified.history.choice.search == CHOSEN[0]


def test_a_log_that_names_no_search_is_of_a_version_whose_defaults_were_tpe_and_fifo() -> None:
    old = created()
    del old.spec["search"], old.spec["schedule"]
    line = encode(old)
    assert b"auto" not in line, "it has none of the new fields"
    history = History()
    history.apply(decode(line))
    assert history.choice == auto.SearchChoice(search="tpe", schedule="fifo")
    assert Spec.parse(history.spec.to_json()).search == "tpe", "written again it says so"
    run = Simulation(events=[old]).open().run()
    verified = verify(decode(encode(event)) for event in run.events)
    assert (verified.difference, verified.history.closed is not None) == (None, True)


def session(places: Places, given: Spec | None, driver: str, trials: int | None = None) -> Prepared:
    """The beginning of a session, as the flow makes it of what `regrow run` hands to it."""
    first = prepare(places, GIVEN["name"], given, trials=trials, code=None)
    handed = None if given is None else Spec.parse(first.asked.to_json())
    prepared = prepare(places, GIVEN["name"], handed, trials=trials, code=None)
    assert (prepared.choice, prepared.spec) == (first.choice, first.spec), (
        "the flow finds what was found before it"
    )
    opening = opening_of(prepared.spec, trials=prepared.trials, auto=prepared.auto)
    claimed(prepared.store, opening, driver)
    return prepared


def test_a_session_with_more_trials_than_the_rule_would_have_keeps_the_choice(
    places: Places,
) -> None:
    begun = session(places, spec(), "d1")
    assert begun.choice is not None
    assert begun.choice.describe() == (
        "search: mobster, schedule: hyperband (auto: 40 trials, 3 parameters; trials of at most 27 steps)"
    )
    for driver, given, trials in (
        ("d2", spec(trials=3000), None),
        ("d3", spec(), 4000),
        ("d4", None, 5000),
    ):
        prepared = session(places, given, driver, trials)
        assert (prepared.choice, prepared.changes) == (None, []), "nothing is chosen again"
        history = replay(prepared.store)
        assert (history.choice, history.total) == (begun.choice, prepared.trials)
    assert verify(read_events(begun.store)).difference is None


def test_what_the_log_has_is_taken_whatever_it_is(places: Places) -> None:
    session(places, spec(search="tpe", schedule="asha"), "d1")
    prepared = session(places, spec(), "d2")
    assert (prepared.spec.search, prepared.spec.schedule, prepared.auto) == ("tpe", "asha", {})
    with pytest.raises(SpecError, match='schedule: "hyperband": differs from the experiment'):
        prepare(places, GIVEN["name"], spec(schedule="hyperband"), trials=None, code=None)


def test_a_search_that_is_named_has_to_be_the_one_that_was_chosen(places: Places) -> None:
    session(places, spec(), "d1")
    session(places, spec(search=CHOSEN[0], schedule=CHOSEN[1]), "d2")
    with pytest.raises(
        SpecError, match=r'search: "random": differs from the experiment .* which has {"mobster":'
    ):
        prepare(
            places,
            GIVEN["name"],
            spec(search="random", schedule=CHOSEN[1]),
            trials=None,
            code=None,
        )


def test_it_is_shown_with_its_reasons(places: Places) -> None:
    history = replay(session(places, spec(), "d1").store)
    told = "search: mobster, schedule: hyperband (auto: 40 trials, 3 parameters; trials of at most 27 steps)"
    assert told in text.summary(history, places, alive=False, now=0.0)
    view = summaries.show(history, alive=False, now=0.0)
    assert (view["search"], view["schedule"]) == CHOSEN
    assert view["auto"] == {
        "search": "40 trials, 3 parameters",
        "schedule": "trials of at most 27 steps",
    }
    assert "(search `mobster`, schedule `hyperband`, auto)" in note(history, None, None, "")


def test_from_which_step_on_trials_are_judged_is_said_and_stands_in_the_log(places: Places) -> None:
    """The first step says the contrary of the last one."""

    def curve(config: Any, step: int) -> float:
        return float(config["x"]) * (1 if step > 1 else -1)

    given = spec(trials=40)
    events = simulate(given, FunctionObjective(function=curve, spec=given), workers=4).events
    board = Board()
    lines = [line for event in events for line in board.apply(event) if "judged" in line]
    told = "step 1 is not seen to tell the end: trials are first judged at"
    assert lines[:2] == [f"{told} 9", f"{told} 3"]
    assert lines[-1] in text.summary(board.history, places, alive=False, now=0.0)
    assert verify(events).difference is None
    decided = [event for event in events if isinstance(event, Decided)]
    assert {event.verdict for event in decided if event.step == 1} == {"continue"}
