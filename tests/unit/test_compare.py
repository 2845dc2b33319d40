"""`regrow compare` on simulated experiments whose logs lie in folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regrow.cli.compare import compare
from regrow.infra.log.log import Log
from regrow.infra.stores.local import LocalStore
from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Ended,
    Excluded,
    Opened,
    Proposed,
    Reported,
    Row,
    Started,
    encode,
)
from regrow.search.history import History
from regrow.search.planning.simulator import Availability, FunctionObjective, simulate
from regrow.search.spec import Spec
from regrow.show.views.comparison import BestSoFarCurve, Course
from regrow.tasks.errors import UserError
from tests.unit.told import kept


def simulated(
    name: str, *, power: float = 1.0, lose: bool = False, **changes: Any
) -> list[AnyEvent]:
    given = {
        "name": name,
        "trainable": "a.py:f",
        "metric": "score",
        "mode": "max",
        "search": "random",
        "trials": 8,
        "max_steps": 9,
        "space": {
            "x": {"uniform": [0, 1]},
            "net": {"lr": {"loguniform": [1e-4, 1]}, "kind": "[b]mlp[/b]"},
        },
        **changes,
    }
    spec = Spec.parse(given)
    name = spec.objective.name
    objective = FunctionObjective(
        function=lambda config, step: {name: power * config["x"] * step / (step + 1)}, spec=spec
    )
    machines = [Availability(changes=(0.0, 4.5, 6.0)), Availability()] if lose else ()
    return simulate(spec, objective, workers=2, availability=machines).events


def written(root: Path, events: list[AnyEvent], name: str) -> None:
    log = Log.open(LocalStore(root / name))
    log.claim([encode(event) for event in events[:10]])
    for place in range(10, len(events), 100):
        log.append([encode(event) for event in events[place : place + 100]])


def course(events: list[AnyEvent]) -> Course:
    best_so_far = BestSoFarCurve(history := History())
    for event in events:
        history.apply(event)
        best_so_far.applied(event)
    return best_so_far.course("a")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "state"
    monkeypatch.setenv("REGROW_STATE", str(root))
    written(root, simulated("plain", price_per_hour=3600.0), "plain")
    written(root, simulated("asha", schedule={"asha": {}}, seed=1), "asha")
    return root


def test_the_course_of_a_best_value_is_that_of_the_rows() -> None:
    found = course(simulated("a"))
    rows = [row for its in kept(simulated("a")).values() for _, row in its]
    for t in (1.0, 5.0, 20.0, 36.0):
        assert found.at("seconds", t) == max(
            row.metrics["score"] or 0.0 for row in rows if row.t <= t
        )
    assert found.at("steps", 0) is None
    assert found.at("steps", 72) == found.at("seconds", 36.0)


def test_what_a_trial_led_that_was_dropped_later_does_not_count() -> None:
    events = simulated("a")
    found = course(events)
    leader = found.history.best
    assert leader is not None
    best = found.points[-1].value
    dropped = course([*events, Excluded(t=events[-1].t, trial=leader)])
    assert best not in [one.value for one in dropped.points]
    now = dropped.history.leader
    assert now is not None
    assert now.best is not None
    assert dropped.points[-1].value == now.best[0]
    kept = [Excluded(t=events[-1].t, trial=leader, excluded=on) for on in (True, False)]
    assert course([*events, *kept]).points[-1].value == best


def test_steps_that_were_done_again_are_spent_each_time() -> None:
    events = simulated("a", lose=True, checkpoint={"every_steps": 3})
    found = course(events)
    assert found.history.lost_steps > 0
    assert found.spent[0] == 8 * 9 + found.history.lost_steps
    leader = found.history.trials[found.history.best or 0].best
    assert leader is not None
    assert found.at("steps", found.spent[0]) == leader[0] == found.at("seconds", found.spent[1])
    reported = [e for e in events if isinstance(e, Reported)]
    last = found.points[-1]
    before, until = (sum(e.t < last.seconds + more for e in reported) for more in (0.0, 1e-9))
    assert before < last.steps <= until  # each reports one step
    spent = [(one.steps, one.seconds) for one in found.points]
    assert spent == sorted(spent)
    assert spent == sorted(spent, key=lambda pair: pair[1])


def test_time_is_counted_from_the_first_attempts_beginning_in_each_session() -> None:
    """Ray and the workers took 20 s to be there in the first session, 5 s in the second, and
    nothing began in the third.
    """
    lease: dict[str, Any] = {"trial": 0}
    given = {
        "name": "a",
        "trainable": "a.py:f",
        "metric": "score",
        "space": {"x": {"uniform": [0, 1]}},
        "search": "random",
    }
    events: list[AnyEvent] = [
        Created(t=0.0, id="1", spec=given | {"mode": "max", "trials": 1}),
        Opened(t=0.0, by="driver", driver="a", slots=1, trials=1),
        Proposed(t=0.0, trial=0, config={"x": 0.5}),
        Started(t=0.0, attempt=1, **lease),
        Began(t=22.0, ago=2.0, attempt=1, node="n", **lease),
        Reported(t=30.0, attempt=1, rows=[Row(1, 30.0, {"score": 1.0})], **lease),
        Opened(t=100.0, by="driver", driver="b", slots=1, trials=1),
        Ended(t=100.0, attempt=1, outcome="lost", cause="preempted", by="planner", **lease),
        Started(t=100.0, attempt=2, **lease),
        Began(t=105.0, attempt=2, node="n", **lease),
        Reported(t=109.0, attempt=2, rows=[Row(1, 109.0, {"score": 2.0})], **lease),
        Opened(t=200.0, by="driver", driver="c", slots=1, trials=1),
        Ended(t=203.0, attempt=2, outcome="lost", cause="preempted", by="planner", **lease),
    ]
    found = course(events)
    points = [(one.seconds, one.value) for one in found.points]
    assert points == [(10.0, 1.0), (10.0, None), (14.0, 2.0)]
    assert found.spent[1] == 14.0
    assert found.history.elapsed() == 42.0


def test_what_each_reached_and_what_it_took_is_side_by_side(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(["plain", "asha"])
    printed = capsys.readouterr().out
    rows = {line.split("  ")[0].strip(): line for line in printed.splitlines() if line.strip()}
    assert "plain" in printed.splitlines()[0]
    assert "8 of 8" in rows["trials"]
    assert "72" in rows["steps"]
    assert rows["steps"].count("*") == 1
    assert rows["steps"].rstrip().endswith("*")  # fewest
    assert "72.00" in rows["cost"]  # 72 steps of a second at one a second
    assert "net.lr *" in rows
    assert "net.kind" in rows
    assert "[b]mlp[/b]" in rows["net.kind"]
    assert "reached after steps" in printed
    times = printed.partition("reached after time")[2].splitlines()[1:]
    spans = [" ".join(line.split()[:2]) for line in times]
    assert len(spans) > 1
    assert spans == [f"{float(span[:-2]):.1f} s" for span in spans], "not 0:00 and 0:00"
    assert len(set(spans)) == len(spans)


def test_machines_get_the_same(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(["plain", "asha"], as_json=True)
    view = json.loads(capsys.readouterr().out)
    plain, asha = view["experiments"]
    assert (view["metric"], view["mode"]) == ("score", "max")
    assert (plain["name"], plain["steps"], plain["cost"], asha["cost"]) == ("plain", 72, 72.0, None)
    budgets = view["by_steps"]
    assert budgets[-1]["steps"] == asha["steps"] < 72
    assert budgets[-1]["values"][1] == asha["best"]["value"]
    assert [row["values"][0] for row in budgets] == sorted(row["values"][0] for row in budgets)
    assert plain["best"]["config"]["net"]["kind"] == "[b]mlp[/b]"


def test_experiments_of_other_roots_are_named_with_theirs(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    written(other, simulated("plain", power=2.0), "plain")
    compare(["plain", f"plain@{other}"], as_json=True)
    view = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in view["experiments"]] == ["plain", f"plain@{other}"]
    first, second = (one["best"]["value"] for one in view["experiments"])
    assert second == pytest.approx(2 * first)


def test_what_cannot_be_compared_is_told(state: Path) -> None:
    written(state, simulated("other", metric="loss", mode="min"), "other")
    with pytest.raises(UserError, match=r"2 objectives \(plain: max score; other: min loss\)"):
        compare(["plain", "other"])
    with pytest.raises(UserError, match="two or more"):
        compare(["plain"])
    with pytest.raises(UserError, match=r"there is no experiment 'plian'.*did you mean"):
        compare(["plain", "plian"])
    with pytest.raises(UserError, match="no state root after the @"):
        compare(["plain", "asha@"])


def test_one_without_a_number_of_trials_has_no_total(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(state, simulated("long", trials=None, budget={"steps": 40}), "long")
    compare(["plain", "long"])
    (trials,) = (line for line in capsys.readouterr().out.splitlines() if "trials" in line)
    assert trials.split()[:4] == ["trials", "8", "of", "8"]
    assert trials.split()[4].isdecimal()
    assert len(trials.split()) == 5


def test_one_without_a_value_is_compared_all_the_same(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(state, simulated("new")[:2], "new")
    compare(["plain", "new"])
    assert "interrupted" in capsys.readouterr().out
