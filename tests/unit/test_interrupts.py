"""What ends a session before its time, in a process of its own."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regrow.flows import interrupts
from regrow.infra.ray.start import signals_held

ENDED = """
import sys, time
from regrow.flows.interrupts import catching_interrupts

with catching_interrupts() as asked:
    asked.handle_signals()
    print("ready", flush=True)
    while asked.begun is None:
        time.sleep(0.01)
    print("the terminal may be gone", flush=True)
    with catching_interrupts() as inner:
        open(sys.argv[1], "w").write(f"{inner.begun} {inner.urgent}")
"""
STUBBORN = """
import time
from regrow.flows import interrupts

interrupts.LAST_SECONDS = 0.1
with interrupts.catching_interrupts() as asked:
    asked.handle_signals()
    print("ready", flush=True)
    while asked.begun is None:
        time.sleep(0.01)
    print("told", flush=True)
    while True:
        time.sleep(1)
"""
NOT_BEGUN = """
import time
from regrow.flows.interrupts import catching_interrupts

with catching_interrupts():
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_closed_terminal_is_asked_to_end_well_and_writing_there_is_no_failure(
    tmp_path: object,
) -> None:
    found = f"{tmp_path}/found"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ENDED, found],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    assert os.read(ours, 100).startswith(b"ready")
    os.close(ours)  # the terminal is gone: writing there fails from now on
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 0
    with open(found) as file:
        assert file.read() == "('interrupted', 'its terminal was closed (SIGHUP)') False"


def test_nohup_stays_nohup(tmp_path: object) -> None:
    nohup = [
        sys.executable,
        "-c",
        f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{ENDED}",
        f"{tmp_path}/found",
    ]
    with subprocess.Popen(nohup, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with open(f"{tmp_path}/found") as file:
        assert "SIGTERM" in file.read()


def test_who_does_not_end_after_a_second_sigterm_is_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"  # two that are pending are one
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 3


def test_the_sigterm_of_its_agent_and_that_of_slurm_are_one() -> None:
    asked = interrupts.Interrupts("node1-1")
    asked.handle_signals()
    asked.ask(signal.SIGTERM, None)
    asked.ask(signal.SIGTERM, None)
    assert asked.begun == ("interrupted", "agent node1-1, which led, leaves")
    assert not asked.urgent
    asked.ask(signal.SIGINT, None)
    assert asked.urgent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_anything_has_begun_is_raised(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NOT_BEGUN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
    assert "Interrupted" in told


SWALLOWED = """
import os, signal, sys
from regrow.flows.interrupts import catching_interrupts
from regrow.tasks.process.interrupted import InterruptedBySignal, interrupt


def caught(where):
    try:
        where()
    except InterruptedBySignal:
        return True


with catching_interrupts() as asked:
    assert caught(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert not caught(lambda: os.kill(os.getpid(), signal.SIGTERM)), "what was begun is being taken back"
    assert caught(asked.handle_signals), "the first one, which was lost"
with catching_interrupts() as asked:
    assert not caught(asked.handle_signals), "it was that of the block before"
signal.signal(signal.SIGTERM, interrupt)
assert caught(lambda: exec("os.kill(os.getpid(), signal.SIGTERM)"))
assert caught(lambda: catching_interrupts().__enter__()), "lost before the block"
sys.exit(7)
"""


def test_a_signal_that_was_raised_where_nobody_minds_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "swallowed.py").write_text(SWALLOWED)
    # as a module: a bare KeyboardInterrupt in `exec` would have it end by SIGINT
    done = subprocess.run(
        [sys.executable, "-m", "swallowed"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr


def test_signals_wait_while_ray_starts() -> None:
    told: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: told.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with signals_held():
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            assert told == []
        assert told == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
