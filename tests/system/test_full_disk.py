"""Disks that are full for a while: told at once, with what is full and by how much, and told when
it is over.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import disk_of, fill
from tests.system.conftest import Desk
from tests.system.test_main_job import check_whole

HEAVY = """
import os, time
from pathlib import Path


def train(trial):
    for step in trial.steps():
        time.sleep(0.3)
        content = os.urandom(300_000)
        trial.report({"score": step * trial.config["x"]}, checkpoint=lambda folder: (folder / "model").write_bytes(content))
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    with disk_of(64, tmp_path / "small") as place:
        yield place


def awaited(driver: subprocess.Popen[str], word: str) -> str:
    """What the driver says up to a line with this word."""
    assert driver.stdout is not None
    said = ""
    while word not in said:
        line = driver.stdout.readline()
        assert line, said
        said += line
    return said


def test_a_full_state_disk_is_told_once_and_so_is_its_end_and_nothing_is_lost(
    desk: Desk, small: Path
) -> None:
    file = desk.write("full", train=HEAVY, trials=2, max_steps=25, checkpoint={"every_steps": 1})
    state = ("--state", small / "state")
    driver = desk.start("run", file, *state)
    awaited(driver, "MLflow:")
    log = small / "state" / "full" / "log"
    while driver.poll() is None and not any(
        b'"saved"' in segment.read_bytes() for segment in log.glob("*.jsonl")
    ):
        time.sleep(0.01)
    ballast = fill(small)
    said = awaited(driver, "Not everything can be saved")
    line = said.splitlines()[-1]
    assert f"no space left on {small}: " in line
    assert line.partition("free of ")[2].startswith("67 MB")
    ballast.unlink()
    said = awaited(driver, "Everything can be saved again.")
    assert "Not everything" not in said
    rest, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0, rest
    assert "full finished: 2 of 2 trials (2 done)" in rest
    desk.environment["REGROW_STATE"] = str(small / "state")
    assert check_whole(desk, "full", 2)["wasted_steps"] == 0
