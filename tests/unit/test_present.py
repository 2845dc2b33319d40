"""What Prefect is told of an experiment: the lines and events of its log, and the page of its
result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.flows.recording import artifacts
from regrow.infra.prefect import events
from regrow.infra.prefect.events import PrefectEvent, PrefectEvents
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent, Began, Closing, Ended, Opened, Reported, Row, Started
from regrow.search.history import History
from tests.unit.lost_trial import TRACE, beginning, ending, loss
from tests.unit.told import folded


def told(*parts: list[AnyEvent]) -> list[PrefectEvent]:
    fold = PrefectEvents()
    return [one for events in parts for event in events for one in fold.apply(event)]


def test_a_loss_a_recovery_a_failure_and_each_best_are_told_as_events_and_as_lines() -> None:
    found = told(beginning(), loss(), ending())
    assert [(h.event.removeprefix("regrow."), h.trial) for h in found] == [
        ("experiment.started", None),
        ("trial.best", 0),
        ("trial.lost", 0),
        ("trial.recovered", 0),
        ("trial.failed", 1),
        ("trial.best", 0),
        ("", None),
        ("experiment.finished", None),
    ]
    assert [h.line for h in found] == [
        "started: 2 trials, up to 2 at a time",
        "new best: trial 0, score 0.5 at step 1",
        "trial 0, attempt 1 on east: lost at step 1: it was killed",
        "trial 0 continues as attempt 2 on west, after step 1, from its checkpoint (2.5 s later)",
        "[1/2] trial 1 failed at step 0: ValueError: bad | luck",
        "new best: trial 0, score 0.75 at step 2",
        "[2/2] trial 0 done at step 3, score 0.75",
        "finished: 2 of 2 trials ended (1 done, 1 failed); best: trial 0, score 0.75 at step 2",
    ]
    assert all(h.payload["text"] == h.line for h in found if h.event)
    by_name = {
        h.event: {key: value for key, value in h.payload.items() if key != "text"} for h in found
    }
    assert by_name["regrow.trial.lost"] == {
        "experiment": "told",
        "trial": 0,
        "attempt": 1,
        "step": 1,
        "cause": "infrastructure",
        "message": "it was killed",
        "node": "east",
    }
    assert by_name["regrow.trial.recovered"] == {
        "experiment": "told",
        "trial": 0,
        "attempt": 2,
        "step": 1,
        "seconds": 2.5,
        "node": "west",
    }
    assert by_name["regrow.trial.best"] == {
        "experiment": "told",
        "trial": 0,
        "attempt": 2,
        "step": 2,
        "value": 0.75,
        "metric": "score",
        "mode": "max",
        "config": {"x": 0.5, "kind": "a|b"},
    }
    assert by_name["regrow.experiment.finished"]["counts"] == {"done": 1, "failed": 1}


def test_the_same_log_gives_the_same_ids_so_that_nothing_is_told_twice() -> None:
    first, second = told(beginning(), loss(), ending()), told(beginning(), loss(), ending())
    assert [h.id for h in first] == [h.id for h in second]
    assert len({h.id for h in first}) == len(first)


def test_a_further_session_is_told_as_one_and_its_orphans_as_lost() -> None:
    again: list[AnyEvent] = [
        Opened(t=10.0, by="driver", driver="d2", slots=2, trials=2),
        Ended(
            t=10.0,
            trial=0,
            attempt=1,
            outcome="lost",
            cause="preempted",
            message="its driver was lost",
            by="planner",
        ),
        Started(t=10.0, trial=0, attempt=2, checkpoints=["manifests/0/1/1.json"]),
        Began(t=11.0, trial=0, attempt=2, node="west", task_run="r0"),
        Closing(t=12.0, status="stopped", why="stopped by the user", by="user"),
    ]
    found = told(beginning(), again)[2:]
    assert [h.event for h in found] == [
        "regrow.experiment.resumed",
        "regrow.trial.lost",
        "regrow.trial.recovered",
        "",
    ]
    assert (
        found[0].line
        == "continues: 0 of 2 trials ended (2 running); best: trial 0, score 0.5 at step 1"
    )
    assert "from the beginning" in found[2].line
    assert found[3].line == "ending: stopped by the user"


def test_progress_counts_steps_of_running_trials() -> None:
    fold = PrefectEvents()
    assert fold.progress == 0.0
    for event in beginning():
        fold.apply(event)
    assert fold.progress == pytest.approx(100 * (1 / 3) / 2)
    for event in [*loss(), *ending()]:
        fold.apply(event)
    assert fold.progress == 100.0


def test_every_event_is_in_the_table_of_their_names() -> None:
    table = events.__doc__ or ""
    sources = [h.event for h in told(beginning(), loss(), ending())]
    for name in filter(None, sources):
        short = name.rpartition(".")[2]
        assert f"`{name}`" in table or f"`.{short}`" in table


@pytest.fixture
def history() -> History:
    return folded([*beginning(), *loss(), *ending()])


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///somewhere.db")
    return Places.at(str(tmp_path))


def section(page: str, heading: str) -> Iterator[str]:
    """The lines below a heading."""
    lines = iter(page.splitlines())
    for line in lines:
        if line == f"## {heading}":
            break
    for line in lines:
        if line.startswith("## "):
            return
        if line:
            yield line


def test_the_page_tells_the_result_and_each_loss(history: History, places: Places) -> None:
    page = artifacts.markdown(history, places)
    assert "**finished**: 2 of 2 trials (1 done, 1 failed)." in page
    assert '**Best: trial 0, score = 0.75 at step 2**\n\n```yaml\nx: 0.5\nkind: "a|b"\n```' in page
    assert f"Its checkpoint: `{places.root}/told/manifests/0/1/1.json`" in page
    assert list(section(page, "Lost and recovered"))[2:] == [
        "| 0 | 1 | lost | east | 1 | it was killed | after step 1, 2.5 s later, on west |"
    ]
    assert list(section(page, "Failed")) == [
        r"* trial 1, attempt 1, at step 0: ValueError: bad \| luck",
        *(f"      {line}" for line in TRACE.splitlines()),
    ]


def test_what_users_write_is_no_markup(history: History, places: Places) -> None:
    rows = list(section(artifacts.markdown(history, places), "Trials"))[2:]
    assert rows == [
        r"| 0 | done | 0.75 | 2 | 3 | 2 | a\|b | 0.5 |",
        "| 1 | failed |  |  | 0 | 1 | &lt;i&gt; | 0.25 |",
    ]


def test_figures_are_on_the_page_itself(history: History, places: Places) -> None:
    page = artifacts.markdown(history, places, {"learning_curves": b"\x89PNG"})
    assert (
        next(section(page, "Learning curves"))
        == "![Learning curves](data:image/png;base64,iVBORw==)"
    )
    assert "Optimisation history" not in page


def test_no_password_is_shown(
    history: History, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hidden-word@127.0.0.1:1/x")
    assert "hidden-word" not in artifacts.markdown(history, places)


def test_a_key_is_one_that_prefect_takes() -> None:
    assert artifacts.artifact_key("My Sweep_2.0") == "regrow-my-sweep-2-0"
    assert re.fullmatch(r"[a-z0-9-]+", artifacts.artifact_key("x_", "progress"))


def test_a_reported_value_that_is_no_better_is_not_told() -> None:
    worse: list[AnyEvent] = [
        Reported(t=4.0, trial=0, attempt=1, rows=[Row(2, 4.0, {"score": 0.1})])
    ]
    assert [h.event for h in told(beginning(), worse)][2:] == []


def test_what_is_left_after_a_loss_is_no_new_best() -> None:
    rows = [Row(step, 4.0, {"score": score}) for step, score in ((2, 0.6), (3, 0.9))]
    again = [
        Row(step, 9.0, {"score": score})
        for step, score in ((1, 0.5), (2, 0.7), (3, 0.9), (4, 0.95))
    ]
    events: list[AnyEvent] = [
        Reported(t=4.0, trial=0, attempt=1, rows=rows),
        Ended(
            t=5.0, trial=0, attempt=1, outcome="lost", cause="infrastructure", step=3, by="driver"
        ),
        Started(t=6.0, trial=0, attempt=2),
        Began(t=7.0, trial=0, attempt=2, node="b", restored=0),
        *(Reported(t=row.t, trial=0, attempt=2, rows=[row]) for row in again),
    ]
    values = [
        h.payload["value"] for h in told(beginning(), events) if h.event == "regrow.trial.best"
    ]
    assert values[-2:] == [0.9, 0.95]
    assert values == sorted(values)
