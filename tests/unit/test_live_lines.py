"""An experiment that is followed where there is no terminal: lines for people, events for
programs.
"""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from regrow.search.events import AnyEvent, encode
from regrow.search.planning.simulator import Simulation
from regrow.show.live.terminal import Events
from regrow.show.live.viewer import Viewer
from tests.unit.watched import simulated


def segments(events: list[AnyEvent], size: int = 50) -> list[tuple[int, list[bytes]]]:
    coded = [encode(event) for event in events]
    return [
        (n + 1, coded[place : place + size]) for n, place in enumerate(range(0, len(coded), size))
    ]


def test_where_there_is_no_terminal_lines_are_printed_once() -> None:
    found = segments(simulated("fifo", most=None).events)
    out = io.StringIO()
    viewer = Viewer(Console(file=out, width=80, highlight=False))
    viewer.apply(found[:3])
    viewer.restart()  # the cluster was lost: another coordinator tells the log from its beginning
    viewer.apply(found)
    printed = out.getvalue().splitlines()
    ends = [
        line
        for line in printed
        if re.match(r"\[\d+/40\] trial \d+ done at step 27, accuracy 0\.\d+( \*)?$", line)
    ]
    assert len(ends) == len(set(ends)) == 40
    assert any(
        re.match(r"trial \d+ lost on worker-\d after step \d+: the node was lost$", line)
        for line in printed
    )
    assert any(re.match(r"trial \d+ continues ", line) for line in printed)
    assert "\x1b" not in out.getvalue()


def test_what_earlier_sessions_did_is_not_told_again() -> None:
    run = simulated("fifo", most=700, lose=False)
    before, count = run.history.ended, len(run.events)
    assert before > 0
    again = Simulation(spec=run.spec, objective=run.objective, workers=4).open(run.events).run()
    first = segments(again.events[:count])
    rest = [(n + len(first), lines) for n, lines in segments(again.events[count:])]
    out = io.StringIO()
    viewer = Viewer(Console(file=out, width=80, highlight=False))
    viewer.apply([*first, *rest])
    assert len(re.findall(r"^\[", out.getvalue(), re.MULTILINE)) == 40 - before


def test_of_a_long_log_that_comes_in_parts_the_newest_session_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = simulated("fifo", most=700, lose=False)
    before, count = run.history.ended, len(run.events)
    again = (
        Simulation(spec=run.spec, objective=run.objective, workers=4)
        .open(run.events)
        .run(most_events=count + 300)
    )
    found = segments(again.events)
    out = io.StringIO()
    viewer = Viewer(Console(file=out, width=80, highlight=False))
    # there is more behind each of these
    monkeypatch.setattr("regrow.infra.log.log.ANSWER_BYTES", 1)
    for segment in found[:-1]:
        viewer.apply([segment])
        assert not out.getvalue(), "nobody knows yet which session is the newest"
    monkeypatch.undo()
    viewer.apply(found[-1:])
    assert len(re.findall(r"^\[", out.getvalue(), re.MULTILINE)) == again.history.ended - before > 0


def test_progress_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    viewer = Viewer(Console(file=out, width=80, highlight=False))
    found = segments(simulated("fifo", most=900, lose=False).events)
    viewer.skip(found[-1][0])
    viewer.apply(found)
    viewer.progress()
    assert out.getvalue() == ""
    at = time.monotonic() + 61.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    viewer.progress()
    viewer.progress()
    assert re.fullmatch(
        r"digits: \d+ %, \d+ of 40 trials, \d+ steps, ran .*, best accuracy 0\.\d+ \(trial \d+\)\n",
        out.getvalue(),
    )


def test_events_come_as_they_are_in_the_log() -> None:
    import os

    found = segments(simulated("fifo", most=500).events)
    reading, writing = os.pipe()
    viewer = Viewer(Console(file=io.StringIO()), events=Events(writing))
    viewer.apply(found[:4])
    os.close(writing)
    with os.fdopen(reading, "rb") as read:
        assert read.read() == b"".join(line + b"\n" for _, some in found[:4] for line in some)


def test_nobody_who_reads_events_is_no_error() -> None:
    import os

    found = segments(simulated("fifo", most=500).events)
    reading, writing = os.pipe()
    events = Events(writing)
    viewer = Viewer(Console(file=io.StringIO()), events=events)
    os.close(reading)
    viewer.apply(found)
    os.close(writing)
    assert events.failed
    assert len(viewer.board.history.trials) > 0
