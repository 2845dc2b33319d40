"""SIGTERM as others send it: `timeout` to the process group, systemd, slurm and containers to
everybody.
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

from tests.system.conftest import Desk, await_no_process
from tests.system.test_main_job import check_whole


def test_who_is_told_to_end_ends_with_what_was_saved_and_is_never_taken_for_a_lost_cluster(
    desk: Desk,
) -> None:
    file = desk.write("told", seconds=0.2, max_steps=40, trials=2, checkpoint={"every_steps": 1})
    driver = desk.start("run", file)
    desk.await_events("told", "saved", 4, driver)
    os.killpg(driver.pid, signal.SIGTERM)
    said = ended(desk, driver)
    assert said.count("0 of 2 trials ended (2 paused)") == 1
    assert {a["outcome"] for t in desk.show("told")["trials"] for a in t["attempts"]} == {"paused"}
    steps = [t["steps"] for t in desk.show("told")["trials"]]

    driver = desk.start("resume", "told")
    desk.await_events("told", "saved", desk_count(desk, "saved") + 3, driver)
    for process in family(driver.pid):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    ended(desk, driver)
    assert all(
        t["steps"] >= before for t, before in zip(desk.show("told")["trials"], steps, strict=True)
    )
    assert sum(e["event"] == "opened" and e["by"] == "driver" for e in desk.events("told")) == 2, (
        "no recovery was begun"
    )

    desk.run("resume", "told")
    check_whole(desk, "told", 2)


def test_one_that_is_told_to_end_as_it_starts_says_so(desk: Desk) -> None:
    prefect = desk.folder / ".regrow" / ".services" / "prefect" / "server.json"
    moments: list[tuple[Callable[[int], bool], list[int]]] = [
        (heeds, [signal.SIGTERM]),
        (lambda _: prefect.exists(), [signal.SIGINT, signal.SIGINT]),
        (lambda pid: "gcs_server" in names(pid), [signal.SIGTERM, signal.SIGINT]),
        (lambda pid: "raylet" in names(pid), [signal.SIGTERM]),
        (lambda pid: "raylet" in names(pid), [signal.SIGINT]),
    ]
    file = desk.write("early")
    for has_come, numbers in moments:
        prefect.unlink(missing_ok=True)
        driver = desk.start("run", file)
        while driver.poll() is None and not has_come(driver.pid):
            time.sleep(0.005)
        told_at_once(driver, numbers)
        check_interrupted(desk, driver)
    desk.run("run", file)


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


def ended(desk: Desk, driver: subprocess.Popen[str]) -> str:
    """What a driver said that is to end as interrupted, with nothing left of it."""
    said, _ = driver.communicate(timeout=60)
    assert driver.returncode == 3, said
    assert "because it was told to end (SIGTERM)" in said
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
