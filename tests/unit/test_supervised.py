"""Processes that are started, awaited, ended and restarted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regrow.infra.machine import awaiting, locks
from regrow.infra.machine.supervised import Backoff, Supervised, await_ready, last_line, spawn

Start = Callable[[str], Supervised]
ENDLESS = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {ENDLESS}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Python program whose log is `log`."""
    started = list[Supervised]()

    def begin(program: str) -> Supervised:
        command = [sys.executable, "-I", "-S", "-c", program]
        started.append(Supervised.of(spawn(command, tmp_path / "log", environment=os.environ)))
        return started[-1]

    yield begin
    for one in started:
        one.signal(signal.SIGKILL)
        assert one.is_gone_in(30)


def is_up(folder: Path) -> bool:
    return last_line(folder / "log") == "up"


def test_one_that_is_ready_is_waited_for_no_longer(start: Start, tmp_path: Path) -> None:
    process = start(ENDLESS)
    assert await_ready(lambda _: is_up(tmp_path), process.is_alive, seconds=60) == ""
    assert process.is_alive()


def test_one_that_ends_first_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    process = start("print('sorry\\n'); raise SystemExit(3)")
    why = await_ready(lambda _: False, process.is_alive, seconds=1e6)
    assert why == "ended while it started"
    assert last_line(tmp_path / "log") == "sorry"


def test_the_last_line_of_a_log_is_found_without_reading_all_of_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 40)  # without blocks on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last one\n")
    assert last_line(log) == "the last one"


def test_one_that_is_late_is_not_waited_for(start: Start) -> None:
    process = start(ENDLESS)
    why = await_ready(lambda _: False, process.is_alive, seconds=0.0, what="serve")
    assert why == "did not serve in 0 s"


def test_one_that_works_is_waited_for_longer(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaiting, "_WORK_SECONDS", 0.05)
    work = "import time\nwhile time.process_time() < 4: pass\nprint('up', flush=True)"
    busy = start(f"{work}\ntime.sleep(600)")
    answer = await_ready(lambda _: is_up(tmp_path), busy.is_alive, seconds=2.0, pid=busy.pid)
    assert answer == ""
    why = await_ready(lambda _: False, busy.is_alive, seconds=2.0, pid=busy.pid)
    assert why == "did not answer in 2 s"


@pytest.mark.parametrize(("program", "grace"), [(ENDLESS, 1e6), (STUBBORN, 0.1)])
def test_it_ends_also_if_it_does_not_want_to(
    start: Start, tmp_path: Path, program: str, grace: float
) -> None:
    process = start(program)
    await_ready(lambda _: is_up(tmp_path), process.is_alive, seconds=60)
    assert process.end(grace=grace)
    assert not process.is_alive()
    assert process.child is not None
    assert process.child.returncode == -(signal.SIGTERM if grace > 1 else signal.SIGKILL)


def test_another_process_with_its_pid_is_not_taken_for_it(start: Start, tmp_path: Path) -> None:
    process = start(ENDLESS)
    known = Supervised(pid=process.pid, lock=tmp_path / "lock")
    assert Supervised(pid=process.pid).is_alive()
    assert not known.is_alive()
    known.signal(signal.SIGKILL)
    assert process.is_alive()
    lock = locks.acquire(tmp_path / "lock")
    assert lock is not None
    with lock:
        assert known.is_alive()


def test_a_session_of_its_own_and_a_private_log(start: Start, tmp_path: Path) -> None:
    process = start(ENDLESS)
    assert os.getsid(process.pid) == process.pid
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_delays_grow_up_to_a_bound_until_it_has_run_for_long() -> None:
    backoff = Backoff(0.5, 3.0, steady=60.0)
    assert [backoff.after(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [backoff.after(61.0), backoff.after(1.0)] == [0.5, 1.0]
    backoff.reset()
    assert backoff.after(1.0) == 0.5
