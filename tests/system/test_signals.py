"""Ctrl-C, and SIGTERM as others send it: `timeout` to the process group, systemd, slurm and containers
to everybody.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system.conftest import TRAIN, Desk, await_no_process
from tests.system.test_main_job import check_whole, mlflow, prefect

SLOW = TRAIN.replace("SECONDS", "0 if Path('hurry').exists() else 0.2")


def test_who_is_told_to_end_ends_with_what_was_saved_and_is_never_taken_for_a_lost_cluster(
    desk: Desk,
) -> None:
    file = desk.write("told", train=SLOW, max_steps=200, trials=2, checkpoint={"every_steps": 1000})
    tell_as_it_starts(desk, file, MOMENTS[:3])

    driver = desk.start("run", file)
    desk.await_events("told", "reported", 3, driver)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
    ended(desk, driver, "SIGINT")
    assert {s for (s,) in mlflow(desk, "select status from runs")} == {"KILLED"}
    steps = check_paused(desk, [0, 0])

    driver = desk.start("resume", "told")
    desk.await_events("told", "reported", desk_count(desk, "reported") + 3, driver)
    os.killpg(driver.pid, signal.SIGTERM)
    assert ended(desk, driver).count("0 of 2 trials ended (2 paused)") == 1
    steps = check_paused(desk, steps)

    driver = desk.start("resume", "told")
    desk.await_events("told", "reported", desk_count(desk, "reported") + 3, driver)
    for process in family(driver.pid):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    ended(desk, driver)
    after = [trial["steps"] for trial in desk.show("told")["trials"]]
    assert all(now >= before for now, before in zip(after, steps, strict=True))
    assert sum(e["event"] == "opened" and e["by"] == "driver" for e in desk.events("told")) == 3, (
        "no recovery was begun"
    )

    (desk.folder / "hurry").touch()
    desk.run("resume", "told")
    check_whole(desk, "told", 2)
    assert prefect(desk, "select state_type, run_count from flow_run") == [("COMPLETED", 4)]


def check_paused(desk: Desk, before: list[int]) -> list[int]:
    """Both trials were paused, having continued after the steps `before`, and nothing was lost.
    Returns the steps that they are at.
    """
    view = desk.show("told")
    last = [trial["attempts"][-1] for trial in view["trials"]]
    assert [one["outcome"] for one in last] == ["paused", "paused"]
    assert [one["from_step"] for one in last] == before
    assert view["wasted_steps"] == 0
    return [trial["steps"] for trial in view["trials"]]


def prefects_record(desk: Desk) -> Path:
    return desk.folder / ".regrow" / ".services" / "prefect" / "server.json"


MOMENTS: list[tuple[Callable[[Desk, int], bool], list[int]]] = [
    (lambda _, pid: heeds(pid), [signal.SIGTERM]),
    (lambda desk, _: prefects_record(desk).exists(), [signal.SIGINT, signal.SIGINT]),
    (lambda _, pid: "raylet" in names(pid), [signal.SIGINT]),
    (lambda _, pid: "gcs_server" in names(pid), [signal.SIGTERM, signal.SIGINT]),
    (lambda _, pid: "raylet" in names(pid), [signal.SIGTERM]),
]
"""When a driver is told to end as it starts, and how."""


@pytest.mark.nightly  # the test above tells it at the first three of them
def test_one_that_is_told_to_end_as_it_starts_says_so(desk: Desk) -> None:
    file = desk.write("early")
    tell_as_it_starts(desk, file, MOMENTS[3:])
    desk.run("run", file)


def tell_as_it_starts(
    desk: Desk, file: Path, moments: list[tuple[Callable[[Desk, int], bool], list[int]]]
) -> None:
    """Starts a driver for each of the moments, which is told to end then, and says so."""
    for has_come, numbers in moments:
        prefects_record(desk).unlink(missing_ok=True)
        driver = desk.start("run", file)
        while driver.poll() is None and not has_come(desk, driver.pid):
            time.sleep(0.005)
        told_at_once(driver, numbers)
        check_interrupted(desk, driver)


@pytest.mark.nightly  # a quarter of an hour; the moments above are those that were found by it
@pytest.mark.parametrize(
    "numbers", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]]
)
def test_one_that_is_told_to_end_at_any_moment_of_its_start_says_so(
    desk: Desk, numbers: list[int]
) -> None:
    file = desk.write("early", seconds=0.2, max_steps=30)
    for tenths in range(100):
        driver = desk.start("run", file)
        # until then it is Python that starts
        while driver.poll() is None and not heeds(driver.pid):
            time.sleep(0.005)
        time.sleep(tenths / 10)
        if desk.events("early"):
            break
        told_at_once(driver, numbers)
        if not desk.events("early"):
            check_interrupted(desk, driver)
    driver.kill()
    desk.run("resume", "early")


def told_at_once(driver: subprocess.Popen[str], numbers: list[int]) -> None:
    """Signals to its process group, as a terminal or `timeout` sends them."""
    for number in numbers:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, number)
        time.sleep(0.02)  # two that are pending are one


def check_interrupted(desk: Desk, driver: subprocess.Popen[str]) -> None:
    """It ended before its session began, in one line, and nothing of it is left."""
    said, _ = driver.communicate(timeout=90)
    assert driver.returncode == 3, said
    assert said.splitlines()[-1].startswith("interrupted before ")
    for word in ("Traceback", ".cc:", "*** SIG", "KeyboardInterrupt"):
        assert word not in said
    assert await_no_process(desk.folder, 60.0) == []


def heeds(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    with suppress(OSError):
        caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
        return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def names(pid: int) -> set[str]:
    """What the processes below one are called."""
    found = set()
    for process in family(pid)[1:]:
        with suppress(OSError):
            found.add(Path(f"/proc/{process}/comm").read_text().strip())
    return found


def ended(desk: Desk, driver: subprocess.Popen[str], name: str = "SIGTERM") -> str:
    """What a driver said that is to end as interrupted, with nothing left of it."""
    said, _ = driver.communicate(timeout=60)
    assert driver.returncode == 3, said
    assert name == "SIGINT" or "because it was terminated (SIGTERM)" in said
    assert said.strip().endswith("regrow resume told")
    for word in ("the Ray cluster was lost", "Traceback", ".cc:", "*** SIGTERM"):
        assert word not in said
    assert desk.show("told")["status"] == "interrupted"
    assert await_no_process(desk.folder, 60.0) == []
    return said


def desk_count(desk: Desk, kind: str) -> int:
    return sum(e["event"] == kind for e in desk.events("told"))


def family(root: int) -> list[int]:
    """A process and all below it, in whatever session."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    found = [root]
    for process in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == process]
    return found
