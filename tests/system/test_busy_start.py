"""A start of Ray that makes no progress: it is announced, and tried a second time. The raylet is
really stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

PATIENCE = 240.0
SPEC = """
name: busy
trainable: work.py:train
metric: score
mode: max
space: {x: {uniform: [0, 1]}}
trials: 1
max_steps: 2
"""
WORK = """
def train(trial):
    for step in trial.steps():
        trial.report({"score": step})
"""


def raylet_of(pid: int) -> psutil.Process | None:
    """The raylet that a command has started."""
    try:
        found = psutil.Process(pid).children(recursive=True)
        return next((child for child in found if child.name() == "raylet"), None)
    except psutil.Error:
        return None


@pytest.mark.nightly
def test_a_start_that_ray_gives_up_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "busy.yaml").write_text(SPEC)
    regrow = str(Path(sys.executable).with_name("regrow"))
    process = subprocess.Popen(
        [regrow, "run", "busy.yaml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    stopped: list[int] = []

    def stop_the_first() -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and process.poll() is None:
            if (raylet := raylet_of(process.pid)) is not None:
                os.kill(raylet.pid, signal.SIGSTOP)
                stopped.append(raylet.pid)
                return
            time.sleep(0.002)

    watcher = threading.Thread(target=stop_the_first)
    watcher.start()
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        watcher.join()
    assert stopped, "the raylet was not met"
    assert process.returncode == 0, said
    assert said.count("once more") == 1, said
    assert "waiting for Ray to start" in said
    assert "Ray did not start here: it made no progress for 30 s; the machine has a load" in said
    assert "Traceback" not in said, said
    assert not psutil.pid_exists(stopped[0]), "what the first try had started is still there"
