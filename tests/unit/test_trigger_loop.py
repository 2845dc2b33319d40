"""The loop of triggers: whatever comes, by whatever name, what comes after it starts its run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prefect.exceptions import PrefectHTTPStatusError

from regrow.apps.station.triggers.aside import MOST_KEPT, found, lines, set_aside
from regrow.apps.station.triggers.inbox import files, folder_of, put
from regrow.apps.station.triggers.journal import Journal
from regrow.apps.station.triggers.loop import TriggerLoop
from regrow.apps.station.triggers.payloads import is_unicode
from regrow.apps.station.triggers.tries import TRIES
from regrow.infra.state import hooks
from regrow.infra.state.places import Places
from regrow.tasks.output.traces import one_line

SCHEDULE = str(uuid4())
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Server:
    """Prefect's client as far as the loop asks it: it takes what Prefect takes, and answers as its
    server would.
    """

    def __init__(self, when: Any, *others: Any) -> None:
        self.made: list[dict[str, Any]] = []
        self.answers: dict[str, int] = {}
        """What it answers to events with these payloads."""
        now = SimpleNamespace(timestamp=lambda: time.time() - 3600)
        self._schedules = [
            SimpleNamespace(
                id=SCHEDULE if n == 0 else uuid4(),
                name=f"s{n}",
                parameters={"when": w},
                created=now,
                paused=False,
            )
            for n, w in enumerate((when, *others))
        ]

    def read_deployments(self, **_: Any) -> list[Any]:
        return self._schedules

    def create_flow_run_from_deployment(
        self, _: Any, *, parameters: dict[str, Any], idempotency_key: str
    ) -> Any:
        code = self.answers.get(str(parameters["event"].get("payload")))
        if code is not None:
            request = httpx.Request("POST", "http://localhost")
            error = httpx.HTTPStatusError(
                "refused", request=request, response=httpx.Response(code, request=request)
            )
            raise PrefectHTTPStatusError.from_httpx_error(error)
        # what cannot be written as UTF-8 fails here, as it does there
        httpx.Request("POST", "http://localhost", json=parameters)
        self.made.append(parameters["event"])
        return SimpleNamespace(id=uuid4(), name=idempotency_key[:6])


@contextmanager
def looping(places: Places, server: Server) -> Iterator[TriggerLoop]:
    journal = Journal(folder_of(places) / "journal.jsonl")
    try:
        yield TriggerLoop(places, server, journal, threading.Event())  # type: ignore[arg-type]
    finally:
        journal.close()


@contextmanager
def place() -> Iterator[Places]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Places.at(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NAME = st.binary(min_size=1, max_size=40).filter(
    lambda name: not {0, ord("/")} & {*name} and name not in (b".", b"..")
)


@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(JSON, max_size=4), damaged=st.lists(st.binary(max_size=60), max_size=3))
@example(
    bodies=["\ud800", {"\udfff": 1}, 1 << 64, float("inf")],
    damaged=[
        b"[" * 20_000,
        b"{}",
        b'{"name": 1, "event": []}',
        b'{"name": "s0", "event": {"id": "1"}}',
    ],
)
def test_whatever_came_before_the_next_event_starts_its_run(
    bodies: list[Any], damaged: list[bytes]
) -> None:
    with (
        place() as places,
        looping(
            places, server := Server({"hook": True}, "no map", {"files": "\0"}, {"after": "\ud800"})
        ) as loop,
    ):
        for body in bodies:
            put(places, "s0", body, None)
        for n, content in enumerate(damaged):
            (folder_of(places) / "inbox").mkdir(parents=True, exist_ok=True)
            (folder_of(places) / "inbox" / f"{n}.json").write_bytes(content)
        put(places, "s0", "good", None)
        loop._round()
        assert [event["payload"] for event in server.made].count("good") == 1
        assert len(server.made) + len(found(places)) == len(bodies) + len(damaged) + 1
        assert files(places) == []
        "\n".join(lines(places)).encode()


@settings(max_examples=60, deadline=None)
@given(names=st.sets(NAME, min_size=1, max_size=5))
@example(names={b"\xff.csv", b"line\nend", b"\x1b]0;x\x07", b"-rf", b" "})
def test_each_file_is_told_or_set_aside_whatever_its_name(names: set[bytes]) -> None:
    with (
        place() as places,
        TemporaryDirectory(dir=MEMORY) as data,
        looping(places, server := Server({"files": data, "settle": 0.001})) as loop,
    ):
        watch_until(loop, lambda: begun(loop))
        for name in names:
            (Path(data) / os.fsdecode(name)).write_bytes(b"1")
        paths = [
            os.path.join(data, os.fsdecode(name)) for name in names if not name.startswith(b".")
        ]  # as a shell has it
        good = {path for path in paths if is_unicode(path)}
        bad = {one_line(path) for path in paths if not is_unicode(path)}
        watch_until(
            loop, lambda: (heard(server), {one.what for one in found(places)}) == (good, bad)
        )


def begun(loop: TriggerLoop) -> bool:
    return bool((loop._journal.cursor(SCHEDULE, "files") or {}).get("", {}).get("begun"))


def heard(server: Server) -> set[str]:
    return {file["path"] for event in server.made for file in event["files"]}


def watch_until(loop: TriggerLoop, holds: Any) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        loop._round()
        for watch in loop._watches.values():
            watch._due = 0.0
            if watch._thread is not None:
                watch._thread.join()


def test_what_the_server_refuses_is_set_aside_and_what_it_fails_at_is_tried_so_many_times(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("regrow.apps.station.triggers.tries.time.monotonic", lambda: clock[0])
    server = Server({"hook": True})
    server.answers = {"bad": 422, "failing": 500, "passing": 503}
    for payload in ("bad", "failing", "passing", "good"):
        put(places, "s0", payload, None)
    with looping(places, server) as loop:
        loop._round()
        assert [event["payload"] for event in server.made] == ["good"]
        assert [one.reason.partition(":")[0] for one in found(places)] == ["PrefectHTTPStatusError"]
        for tried in range(1, TRIES):
            if tried == 3:
                server.answers.pop("passing")
            assert len(found(places)) == 1
            clock[0] += 600.0
            loop._round()
        assert [event["payload"] for event in server.made] == ["good", "passing"]
        assert len(found(places)) == 2
        assert loop._journal.pending() == []
    with looping(places, again := Server({"hook": True})) as loop:
        loop._round()
    assert again.made == []


def test_a_watcher_that_is_started_again_goes_on_counting(places: Places) -> None:
    server = Server({"hook": True})
    server.answers = {"failing": 500}
    put(places, "s0", "failing", None)
    for _ in range(TRIES):
        assert found(places) == []
        with looping(places, server) as loop:
            loop._round()
            loop._journal.compact()
    assert [one.what.partition(" ")[0] for one in found(places)] == ["hook"]
    with looping(places, server) as loop:
        assert loop._journal.pending() == []


def test_what_is_in_the_way_is_told_until_it_is_not(places: Places) -> None:
    hooks.place(places).parent.mkdir(parents=True)
    hooks.place(places).write_text("{")
    with looping(places, Server({})) as loop:
        loop._round()
        loop._publish()
        [line] = lines(places)
        assert line.startswith(f"no hook is answered: {hooks.place(places)} cannot be read")
        assert line.endswith("it is tried again")
        hooks.place(places).unlink()
        loop._parts._failed.clear()
        loop._publish()
        assert list(lines(places)) == []


def test_a_clock_that_was_ahead_when_a_schedule_was_made_hides_nothing_later(
    places: Places, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with looping(places, server := Server({"files": str(data), "settle": 0.001})) as loop:
        loop._journal.begin("", "", {"begun": time.time() + 1e9})
        loop._journal.begin(
            SCHEDULE, "files", {"": {"given": str(data), "since": time.time() + 1e9}}
        )
        watch_until(loop, lambda: begun(loop))
        assert float((loop._journal.cursor(SCHEDULE, "files") or {})[""]["since"]) <= time.time()
        (data / "new").write_text("1")
        watch_until(loop, lambda: heard(server) == {str(data / "new")})


def test_only_so_many_are_kept_and_one_that_is_set_aside_twice_is_one(places: Places) -> None:
    for number in range(MOST_KEPT + 3):
        for _ in range(2):
            set_aside(places, "s0", f"hook {number}", "\x1b[31m", {"text": "\ud800"})
    assert len(found(places)) == MOST_KEPT
    assert {one.reason for one in found(places)} == {"\\x1b[31m"}
    assert "90 more are set aside in" in "\n".join(lines(places, ["s0"]))
    assert list(lines(places, ["other"])) == []
