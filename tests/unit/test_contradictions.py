"""A log whose lines are whole, and that contradicts itself: readers say where, and show what is
before. So do they for any bytes.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from regrow.cli.app import app
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.infra.log.log import Contradiction, CorruptLog, Log
from regrow.infra.log.reading import read_events, replay, replayed, survey
from regrow.infra.log.segments import Extent, extents
from regrow.search.events import Began, Closed, Proposed, Reported, Row, Started, decode, encode
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove
from regrow.search.planning.simulator import FunctionObjective, simulate
from regrow.search.spec import Spec
from regrow.tasks.ports.store import Store
from tests.memory_store import MemoryStore
from tests.unit import showing
from tests.unit.office import opening_of
from tests.unit.paged import logged
from tests.unit.simulated import SPEC, created, opened
from tests.unit.stores import replace
from tests.unit.told import folded

READABLE = [
    "show",
    "trials",
    "trials --history",
    "best",
    "report -o report.html",
    "export --tensorboard boards",
    "logs 0",
]


def unsigned() -> list[bytes]:
    """As an earlier version left it where a trial reported 2**64 - 1 as its step: closed, with the
    trial running.
    """
    lease: dict[str, Any] = {"t": 2.0, "trial": 0, "attempt": 1}
    rows = [Row(step, 2.0, {"score": step / 4, "epoch": step}) for step in (1, 2)]
    return [
        encode(created(schedule="fifo", step_metric="epoch", trials=1)),
        encode(opened(1.0, trials=1)),
        encode(Proposed(t=1.0, trial=0, config={"x": 0.5})),
        encode(Started(t=1.0, trial=0, attempt=1)),
        encode(Began(**lease, node="a", task_run="run-0")),
        encode(Reported(**lease, rows=rows)),
        encode(Reported(**lease, rows=[Row(3, 2.0, {"score": 1.0, "epoch": float(2**64 - 1)})])),
        encode(Closed(t=3.0, status="failed")),
    ]


def written(store: Store, lines: list[bytes], each: int = 1) -> Store:
    """A log of these lines, `each` so many in a segment."""
    log = Log.open(store)
    log.claim(lines[:2])
    for place in range(2, len(lines), each):
        log.append(lines[place : place + each])
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A state root with such a log, and a sound one."""
    logged(tmp_path, "broken", [decode(line) for line in unsigned()])
    logged(tmp_path, "sound", [created(), opened(1.0)])
    return tmp_path


def regrow(
    root: Path, monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[Exception | None, str]:
    """What a command raises, and what it printed before."""
    monkeypatch.chdir(root)
    done = CliRunner().invoke(app, [*words, "--state", str(root)])
    assert done.exit_code != 0
    assert isinstance(done.exception, Exception)
    return done.exception, done.output


@pytest.mark.parametrize("words", READABLE)
def test_what_is_before_is_shown_and_where_it_ends_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    command, *options = words.split()
    raised, said = regrow(root, monkeypatch, command, "broken", *options)
    assert isinstance(raised, Contradiction)
    told = "experiment 'broken' in .* is damaged at log/0000000002.jsonl: segment 2, line 5: attempt 1 of trial 0, in state 'running', cannot"
    assert re.search(told, str(raised)), str(raised)
    assert "report 1.8446744073709552e+19 as a step" in str(raised)
    assert said.strip()
    if command in ("show", "best"):
        assert "0.5" in said, "the value of step 2, which is before that"


def test_the_list_has_the_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised, said = regrow(root, monkeypatch, "ls")
    assert isinstance(raised, Contradiction)
    assert [line.split()[:2] for line in said.splitlines()[1:3]] == [
        ["broken", "damaged"],
        ["sound", "interrupted"],
    ]


def test_it_does_not_go_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised, _ = regrow(root, monkeypatch, "resume", "broken")
    assert isinstance(raised, Contradiction)
    assert "start it under another name" in str(raised)


def test_a_coordinator_that_finds_one_says_so_to_its_driver_and_writes_nothing() -> None:
    store = written(MemoryStore(), unsigned())
    before = store.list("")
    opening = opening_of(Spec.parse(SPEC), id="x")
    coordinator = Coordinator(store, opening, "driver-2")
    with pytest.raises(Contradiction, match="segment 6, line 1"):
        asyncio.run(coordinator.instructions(0.0))
    assert store.list("") == before


def test_it_says_where_also_after_pickling() -> None:
    error = Contradiction("log/0000000002.jsonl", "segment 2, line 5: no", "/state/x", 2, 5)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.segment, again.line) == (str(error), 2, 5)


def test_rows_end_where_the_history_does() -> None:
    lines = unsigned()
    more = encode(Reported(t=2.0, trial=0, attempt=1, rows=[Row(1, 2.0, {"score": 9.0})]))
    met: list[CorruptLog] = []
    rows = replayed(written(MemoryStore(), [*lines[:7], more]), on_damage=met.append)
    assert [row.metrics["score"] for _, row in rows.of(0)] == [0.25, 0.5]


# Any bytes


def simulated() -> list[bytes]:
    """A short experiment's log."""
    spec = Spec.parse({**SPEC, "trials": 4})
    done = simulate(
        spec,
        FunctionObjective(function=lambda config, step: {"score": config["x"] * step}, spec=spec),
        workers=2,
    )
    return [encode(event) for event in done.events]


LINES = simulated()
ANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def must_say_where(store: Store) -> None:
    """All readers show what they can, or say where it ends."""
    met: list[CorruptLog] = []
    for reader in (survey, read_events, replay):
        try:
            reader(store)
        except CorruptLog as damage:
            met.append(damage)
    try:
        if replay(store, on_damage=met.append).created is not None:
            assert showing.lines(store, met.append)
    except CorruptLog as damage:
        met.append(damage)
    assert all("log/0" in str(damage) for damage in met)


@ANY
@given(st.data())
def test_a_segment_of_any_bytes_is_read_as_far_as_it_goes(data: st.DataObject) -> None:
    store = written(MemoryStore(), LINES, 40)
    key = data.draw(st.sampled_from([extent.key for extent in extents(store.list("log/"))]))
    good = store.read(key)
    at, upto = sorted(
        place % (len(good) + 1) for place in data.draw(st.tuples(*[st.integers(0, 100_000)] * 2))
    )
    change = data.draw(st.sampled_from(["flip", "cut", "repeat", "insert", "lose", "empty"]))
    changed = {
        "flip": good[:at]
        + bytes(byte ^ 1 + data.draw(st.integers(0, 254)) for byte in good[at : at + 2])
        + good[at + 2 :],
        "cut": good[:at],
        "repeat": good[:upto] + good[at:],
        "insert": good[:at] + data.draw(st.binary(max_size=9)) + good[at:],
        "lose": good[:at] + good[upto:],
        "empty": b"",
    }[change]
    replace(store, key, changed)
    must_say_where(store)


def test_a_first_line_whose_specification_is_none_is_read_no_further() -> None:
    store = written(MemoryStore(), [LINES[0].replace(b'"metric"', b'"met~ic"'), *LINES[1:]], 40)
    with pytest.raises(CorruptLog, match="met~ic"):
        replay(store, on_damage=lambda _: None)


@ANY
@given(st.data())
def test_whole_lines_of_any_content_are_read_as_far_as_they_go(data: st.DataObject) -> None:
    lines = [*LINES]
    for _ in range(data.draw(st.integers(1, 3))):
        place, other = data.draw(st.tuples(*[st.integers(0, len(lines) - 1)] * 2))
        kind = data.draw(st.sampled_from(["drop", "repeat", "swap", "number", "byte", "key"]))
        if kind == "drop":
            del lines[place]
        elif kind == "repeat":
            lines.insert(other, lines[place])
        elif kind == "swap":
            lines[place], lines[other] = lines[other], lines[place]
        elif kind == "byte":
            byte = data.draw(st.integers(32, 126))
            at = data.draw(st.integers(0, 10_000)) % max(1, len(lines[place]))
            lines[place] = lines[place][:at] + bytes([byte]) + lines[place][at + 1 :]
        else:
            lines[place] = data.draw(changed(lines[place], drop=kind == "key"))
    must_say_where(written(MemoryStore(), lines, 40))


@st.composite
def changed(draw: st.DrawFn, line: bytes, *, drop: bool) -> bytes:
    """An event with a number, or a key, that is another one."""
    try:
        event = json.loads(line)
    except ValueError:
        return line
    key = draw(st.sampled_from(sorted(event)))
    if drop:
        del event[key]
    elif key != "event":
        event[key] = draw(
            st.sampled_from([-1, 0, 1, 2, 7, 2**63, 2**70, 1e308, None, "", "x", [], {}, [0], True])
        )
    return json.dumps(event).encode()


@ANY
@given(st.lists(st.integers(0, len(LINES) - 1), max_size=60))
def test_a_history_refuses_what_cannot_follow_and_stays_as_it_was(order: list[int]) -> None:
    history, taken = History(), list[bytes]()
    for line in (LINES[0], LINES[1], *(LINES[place] for place in order)):
        try:
            history.apply(decode(line))
        except IllegalMove:
            continue
        taken.append(line)
    again = folded(map(decode, taken))
    assert vars(again)["trials"] == history.trials
    assert (again.by_state, again.held, again.best, again.occupied) == (
        history.by_state,
        history.held,
        history.best,
        history.occupied,
    )


def test_a_segment_is_named_by_the_object_that_holds_it() -> None:
    store = written(MemoryStore(), unsigned())
    parts = b"".join(store.read(Extent(number, number).key) for number in range(2, 6))
    store.create(Extent(2, 5).key, parts)
    store.delete([Extent(number, number).key for number in range(2, 6)])
    with pytest.raises(Contradiction, match=r"log/0000000006.jsonl: segment 6, line 1"):
        replay(store)
