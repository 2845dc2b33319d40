"""What a guard does once the process that it guards is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from regrow.infra.machine.processes import marked
from tests.unit.programs import await_true

DRIVER = """
import fcntl, os, sys, time
from pathlib import Path
from regrow.infra.machine.processes import ProcessGuard

locked, told, keeps = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
guard = ProcessGuard(f"REGROW_TEST={os.getpid()}")
guard.then([sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", told], unless_locked=locked, delay=1.0)
lock = locked.open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
if (child := os.fork()) == 0:  # keeps the lock and the guard's pipe after its parent's death
    time.sleep(keeps)
    os._exit(0)
print(guard._guard.pid, child, flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize(("keeps", "is_told"), [(0.5, True), (60.0, False)])
def test_the_last_command_runs_unless_somebody_has_the_lock_after_the_delay(
    tmp_path: Path, keeps: float, is_told: bool
) -> None:
    told = tmp_path / "told"
    arguments = [str(tmp_path / "lock"), str(told), str(keeps)]
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        guard, child = (int(word) for word in driver.stdout.readline().split())
        driver.kill()
        while runs(guard):
            time.sleep(0.02)
        assert told.exists() is is_told
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def runs(process: int) -> bool:
    """Whether it still runs; one that has ended may stay as a zombie where nobody adopts it."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


FINISHES = """
import os, time
from regrow.infra.machine.processes import ProcessGuard

guard = ProcessGuard("REGROW_TEST=2")
if (child := os.fork()) == 0:
    time.sleep(100)
guard.finish()
print(child, flush=True)
"""


def test_a_guard_ends_although_a_forked_process_still_has_its_pipe() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FINISHES], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        os.kill(int(driver.stdout.readline()), signal.SIGKILL)
    assert driver.returncode == 0


KILLED = """
import os
from regrow.infra.machine.processes import ProcessGuard

guard = ProcessGuard("REGROW_TEST=3")
guard._guard.kill()
guard._guard.wait()
guard.include([2**22 + 1])  # there is none
guard.then(["true"], unless_locked=os.devnull, delay=0.0)
guard.finish()
"""


def test_a_guard_that_was_killed_ends_nothing() -> None:
    subprocess.run([sys.executable, "-c", KILLED], check=True)


INCLUDES = """
import subprocess, sys, time
from regrow.infra.machine.processes import ProcessGuard

guard = ProcessGuard("REGROW_TEST=1")
sleeps = [sys.executable, "-c", "import time; time.sleep(100)"]
titled, another, ended = (subprocess.Popen(command, env={}, start_new_session=True) for command in (sleeps, sleeps, ["true"]))
guard.include([titled.pid, ended.pid])
ended.wait()
guard.include([2**22 + 1])  # there is none
print(titled.pid, another.pid, flush=True)
time.sleep(100)
"""


def test_processes_that_have_lost_the_mark_are_killed_if_they_were_named_and_no_others() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INCLUDES], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        titled, another = (int(word) for word in driver.stdout.readline().split())
        driver.kill()
        assert await_true(lambda: not runs(titled))
        assert runs(another)
        os.kill(another, signal.SIGKILL)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of another user")
def test_the_mark_of_another_users_process_is_not_believed() -> None:
    with subprocess.Popen(["sleep", "60"], env={"REGROW_TEST": "theirs"}, user=65534) as theirs:
        found = marked("REGROW_TEST=theirs")
        theirs.kill()
    assert found == []
