"""What of a trial's lines is handed on to people, and in which batches."""

from __future__ import annotations

import logging
import threading

import pytest

from regrow.tasks.output import logs
from regrow.tasks.output.logs import MOST_CHARACTERS, MOST_LINES, LogRelay
from regrow.tasks.ports.messages import LogLine


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_what_is_left_at_the_end_is_taken_once() -> None:
    relay = LogRelay(lambda lines: None)
    relay.add("stdout", "one", 1.0)
    relay.add("a.b", "two", 2.0, logging.ERROR)
    assert relay.drain() == [
        LogLine("stdout", logging.INFO, "one", 1.0),
        LogLine("a.b", logging.ERROR, "two", 2.0),
    ]
    assert relay.drain() == []
    relay.close()


def test_of_a_flood_the_number_is_told() -> None:
    relay = LogRelay(lambda lines: None)
    for n in range(MOST_LINES + 1234):
        relay.add("stdout", str(n), float(n))
    relay.close()
    lines = texts(relay.drain())
    assert lines[:MOST_LINES] == [str(n) for n in range(MOST_LINES)]
    assert lines[MOST_LINES:] == ["... and 1,234 more lines, which `regrow logs` shows"]


def test_a_line_is_cut_and_has_no_nul_and_an_empty_one_is_none() -> None:
    relay = LogRelay(lambda lines: None)
    relay.add("stdout", "x" * (MOST_CHARACTERS + 1), 0.0)
    relay.add("stdout", "a\0b  ", 0.0)
    relay.add("stdout", " ", 0.0)
    relay.close()
    first, second = texts(relay.drain())
    assert first == "x" * MOST_CHARACTERS + f"... ({MOST_CHARACTERS + 1:,} characters)"
    assert second == "ab"


def test_while_the_trial_runs_lines_are_sent_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "RELAY_SECONDS", 0.01)
    sent: list[str] = []
    came = threading.Event()

    def send(lines: list[LogLine]) -> None:
        sent.extend(texts(lines))
        if len(sent) == 3:
            came.set()

    relay = LogRelay(send)
    for text in ("one", "two", "three"):
        relay.add("stdout", text, 0.0)
    assert came.wait(60)
    assert sent == ["one", "two", "three"]
    assert relay.drain() == []
    relay.close()
