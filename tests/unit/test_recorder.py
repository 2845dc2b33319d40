"""The recorder as an object, without its actor: what it says when it can't continue."""

from __future__ import annotations

import time
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import ray
from msgspec import structs

from regrow.flows.recording import ending
from regrow.flows.recording import recorder as recording
from regrow.flows.recording.recorder import Recorder
from regrow.infra.mlflow.in_trial import Tracked
from regrow.infra.ray import coordinator_log
from regrow.infra.ray.coordinator_log import CoordinatorLog
from regrow.infra.state.places import Places
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Ended,
    Proposed,
    Reported,
    Row,
    Started,
    encode,
)
from regrow.show.report import report
from tests.unit.simulated import created, opened


class Gone:
    """The handle of an actor that does not answer as it should."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def follow(self) -> Gone:
        return self

    def remote(self, *_: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ray.exceptions.RayActorError(), "the coordinator is gone"),
        (ValueError("a line that is no event"), "ValueError: a line that is no event"),
    ],
)
def test_nobody_waits_for_a_recorder_that_gave_up(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setattr(ray, "get_actor", lambda _: Gone(error))
    trouble = Recorder("coordinator", Places(root="/nowhere"), "name", "sqlite://", None).drained(
        7, 60.0
    )
    assert trouble is not None
    assert trouble.startswith(said)


class Rehearsals:
    """The coordinator's `rehearsed`: what it was called with, in seconds."""

    def __init__(self) -> None:
        self.seconds = Queue[float]()

    def remote(self, seconds: float) -> None:
        self.seconds.put(seconds)


class Coordinator:
    """Its `follow`, over segments that are there: what is asked beyond them is answered with
    nothing.
    """

    def __init__(self, segments: list[list[AnyEvent]]) -> None:
        self.segments = segments
        self.rehearsed = Rehearsals()

    @property
    def follow(self) -> Coordinator:
        return self

    def remote(self, after: int, timeout: float) -> list[tuple[int, list[bytes]]]:
        found = [
            (n, [encode(e) for e in events])
            for n, events in enumerate(self.segments, start=1)
            if n > after
        ]
        if not found:
            time.sleep(min(timeout, 0.01))
        return found


def began(attempt: int, restored: int = 0) -> list[AnyEvent]:
    return [
        Started(t=3.0, trial=0, attempt=attempt),
        Began(t=4.0, trial=0, attempt=attempt, node="n", restored=restored),
    ]


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Coordinator, Recorder]:
    """A recorder into a real file, and the coordinator that it follows."""
    coordinator = Coordinator(
        [[created(), opened(1.0)], [Proposed(t=2.0, trial=0, config={"x": 0.5, "kind": "a"})]]
    )
    monkeypatch.setattr(ray, "get_actor", lambda _: coordinator)
    monkeypatch.setattr(ray, "get", lambda answer, **_: answer)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    return coordinator, Recorder(
        "coordinator", Places(root=str(tmp_path)), "simulated", uri, str(tmp_path / "artifacts")
    )


def asked(recorder: Recorder, attempt: int) -> Tracked:
    """As a worker asks, until there is an answer."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found, trouble = recorder.run_of(0, attempt)
        assert trouble is None
        if found is not None:
            return found
    raise TimeoutError


def interrupted(attempt: int) -> list[AnyEvent]:
    """The end of a session in which trial 0 has this attempt."""
    return [
        Closing(t=7.0, status="interrupted", why="", by="user"),
        Ended(t=7.0, trial=0, attempt=attempt, outcome="paused"),
        Closed(t=8.0, status="interrupted"),
    ]


def test_an_attempt_is_told_its_run_once_that_is_there_and_after_a_rewind_the_new_one(
    recorder: tuple[Coordinator, Recorder],
) -> None:
    coordinator, followed = recorder
    assert followed.run_of(0, 1) == (None, None), "it has not begun"
    coordinator.segments.append(
        [*began(1), Reported(t=5.0, trial=0, attempt=1, rows=[Row(1, 5.0, {"score": 0.5})])]
    )
    first = asked(followed, 1)
    lost = Ended(t=6.0, trial=0, attempt=1, outcome="lost", cause="preempted")
    coordinator.segments.append([lost, *began(2)])
    second = asked(followed, 2)
    assert second.run_id != first.run_id
    assert second == structs.replace(first, run_id=second.run_id)
    assert (first.experiment_name, first.id) == (
        "simulated",
        "00000000-0000-0000-0000-000000000001",
    )
    coordinator.segments.append(interrupted(2))
    assert followed.drained(len(coordinator.segments), 120.0) is None
    assert followed.run_of(0, 4) == (None, None)


def test_the_end_of_a_session_with_a_deadline_is_rehearsed_while_trials_run(
    recorder: tuple[Coordinator, Recorder],
) -> None:
    coordinator, followed = recorder
    now = time.time()
    first = structs.replace(created(stop={"deadline": "8h"}), t=now)
    coordinator.segments[0] = [first, opened(now)]
    coordinator.segments.append(began(1))
    loaded = coordinator.rehearsed.seconds.get(timeout=120.0)
    assert coordinator.rehearsed.seconds.get(timeout=120.0) > loaded > 0
    coordinator.segments.append(interrupted(1))
    assert followed.drained(len(coordinator.segments), 120.0) is None
    assert coordinator.rehearsed.seconds.empty(), "it is made once"


def test_a_report_that_cannot_be_made_is_told_and_everything_else_is_recorded(
    recorder: tuple[Coordinator, Recorder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: Any, **__: Any) -> str:
        raise ValueError("no such figure")

    monkeypatch.setattr(report, "html", broken)
    coordinator, followed = recorder
    coordinator.segments += [
        [
            *began(1),
            Reported(
                t=5.0, trial=0, attempt=1, rows=[Row(n, 5.0, {"score": 0.5}) for n in range(1, 10)]
            ),
        ],
        [
            Ended(t=7.0, trial=0, attempt=1, outcome="done", step=9),
            Closing(t=9.0, status="finished", why="", by="user"),
        ],
        [Closed(t=9.0, status="finished")],
    ]
    assert followed.drained(len(coordinator.segments), 120.0) is None
    assert followed.remarks() == [
        "report.html could not be made for MLflow: ValueError: no such figure"
    ]
    kept = {path.name for path in (tmp_path / "artifacts").rglob("*") if path.is_file()}
    assert kept == {"spec.yaml", "optimization_history.png", "learning_curves.png"}


@pytest.mark.parametrize("late", [False, True], ids=["in time", "too late"])
def test_the_end_of_a_short_session_has_the_drivers_files_if_they_come_in_time(
    late: bool,
    recorder: tuple[Coordinator, Recorder],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(recording, "AWAITED_SECONDS", 0.1 if late else 120.0)
    coordinator, followed = recorder
    assert followed.finish()
    coordinator.segments.append([Closed(t=9.0, status="interrupted")])
    given = {ending.REPORT_FILE: b"given", ending.picture_file("learning_curves"): b"drawn"}
    if not late:
        followed.give((given, ["a figure could not be made"]))
    assert followed.drained(len(coordinator.segments), 120.0) is None
    (made,) = (tmp_path / "artifacts").rglob(ending.REPORT_FILE)
    assert (made.read_bytes() == b"given") is not late
    assert followed.pictures() == ({} if late else {"learning_curves": b"drawn"})
    assert followed.remarks() == ([] if late else ["a figure could not be made"])
    assert not followed.finish(), "MLflow is loaded: it makes its files itself"


def test_a_coordinator_that_is_busy_has_no_news_and_is_asked_for_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([ray.exceptions.GetTimeoutError("busy"), None])

    def get(answer: Any, **_: Any) -> Any:
        if (error := next(answers)) is not None:
            raise error
        return answer

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(coordinator_log, "BUSY_SECONDS", 0.0)
    log = CoordinatorLog(Coordinator([[created()]]), wait=0.0)
    assert log.read() == []
    assert [number for number, _ in log.read()] == [1]
    assert log.after == 1
