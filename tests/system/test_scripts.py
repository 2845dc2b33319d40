"""An experiment over a script as it is: its worker is killed, the script is killed, a decision ends
it; nothing is lost or left.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.system.conftest import Desk, await_no_process, running
from tests.system.test_losses import kill
from tests.system.test_main_job import check_whole

pytestmark = pytest.mark.usefixtures("shared_prefect")

SCRIPT = """
import argparse, json, os, subprocess, time
from pathlib import Path

import regrow as rg

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--epochs", type=int)
args = parser.parse_args()
here = Path(os.environ["REGROW_CHECKPOINT"])
state = {"epoch": 0, "total": 0.0}
if os.environ["REGROW_RESTORED"]:
    state = json.loads((Path(os.environ["REGROW_RESTORED"]) / "state.json").read_text())
loader = subprocess.Popen(["sleep", "1000"])  # as a data loader's process, which nobody ends
while state["epoch"] < args.epochs:
    time.sleep(0.2)
    state = {"epoch": state["epoch"] + 1, "total": state["total"] + args.x}
    (here / "state.json").write_text(json.dumps(state))
    print("epoch", state["epoch"], "of trial", os.environ["REGROW_TRIAL"])
    rg.report({"score": state["total"], "epoch": state["epoch"]})
"""


def script_of(desk: Desk, trial: int) -> int:
    """The process of a trial's script, once it runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process, words in running(desk.folder, "", f"REGROW_TRIAL={trial}").items():
            if words[1:2] == ["train.py"]:
                return process
        time.sleep(0.05)
    raise AssertionError(f"no script of trial {trial} runs")


def test_scripts_go_on_from_their_own_checkpoints_and_end_with_their_trials(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(SCRIPT)
    points = [{"x": 0.5, "kind": "a"}, {"x": 0.4, "kind": "a"}, {"x": 0.1, "kind": "a"}]
    file = desk.write(
        "scripts",
        trainable=None,
        command=["python", "train.py", "--x", "{x}", "--epochs", "{max_steps}"],
        trials=3,
        max_steps=9,
        points=points,
        schedule={"asha": {"grace_period": 3, "reduction_factor": 3}},
    )
    process = desk.start("run", file)
    for count in range(1, 9):  # until both have saved something
        desk.await_events("scripts", "saved", count, process)
        if {e["trial"] for e in desk.events("scripts") if e["event"] == "saved"} >= {0, 1}:
            break
    orphan = script_of(desk, 0)
    kill(desk.folder, "ray::trial-0000")
    os.kill(script_of(desk, 1), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{orphan}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{orphan}").exists(), "the script of a killed worker continues"
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said

    view = check_whole(desk, "scripts", 3)
    assert view["trials"][0]["attempts"][0]["outcome"] == "lost"
    killed = view["trials"][1]["attempts"][0]
    assert (killed["outcome"], killed["cause"]) == ("failed", "infrastructure")
    for trial in view["trials"][:2]:
        assert trial["attempts"][1]["from_step"] >= 1, "it continued from its checkpoint"
    assert [t["state"] for t in view["trials"]].count("stopped") >= 1
    for point in desk.points("scripts"):  # an uncut run would have reported the same
        assert point["epoch"] == point["step"]
        assert abs(point["score"] - point["step"] * points[point["trial"]]["x"]) < 1e-9
    assert "epoch 1 of trial 2" in desk.look("logs", "scripts", 2)
    assert await_no_process(desk.folder) == []
