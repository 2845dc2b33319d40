"""SIGTERM as others send it: `timeout` to the process group, systemd, slurm and containers to everybody."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.system.conftest import Desk, await_no_process
from tests.system.test_main_job import check_whole


def test_who_is_told_to_end_ends_with_what_was_saved_and_is_never_taken_for_a_lost_cluster(desk: Desk) -> None:
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
    assert all(t["steps"] >= before for t, before in zip(desk.show("told")["trials"], steps, strict=True))
    assert sum(e["event"] == "opened" and e["by"] == "driver" for e in desk.events("told")) == 2, "no recovery was begun"

    desk.run("resume", "told")
    check_whole(desk, "told", 2)


def test_one_that_is_told_to_end_as_it_starts_says_so(desk: Desk) -> None:
    driver = desk.start("run", desk.write("early"))
    while driver.poll() is None and not (desk.folder / ".regrow" / ".services" / "prefect" / "server.json").exists():
        time.sleep(0.01)
    os.killpg(driver.pid, signal.SIGTERM)
    said, _ = driver.communicate(timeout=60)
    assert driver.returncode == 3, said
    assert said.splitlines()[-1] == "interrupted before the experiment began; nothing is lost"
    assert await_no_process(desk.folder, 60.0) == []


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
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for process in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == process]
    return found
