"""A machine with GPUs, by a stand-in for NVIDIA's driver: who gets which, and a full memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import stand_in
from tests.system.conftest import Desk

pytestmark = pytest.mark.usefixtures("shared_prefect")

TRAIN = """
import os

class OutOfMemoryError(RuntimeError):
    pass

OutOfMemoryError.__module__ = "torch"

def train(trial):
    if trial.config["batch_size"] > 40:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    for step in trial.steps():
        trial.report({"score": step, "part": float(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"])})
"""
PROGRAM = """
import sys
if int(sys.argv[1]) > 40:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
print('{"score": 1.0}')
"""


@pytest.fixture
def others(desk: Desk) -> Iterator[int]:
    """A process of another user."""
    if os.getuid():
        yield 1
        return
    with subprocess.Popen(["sleep", "600"], user=65534) as process:
        yield process.pid
        process.kill()


def gpus(desk: Desk, name: str) -> set[str]:
    return {event["gpus"] for event in desk.events(name) if event["event"] == "began"}


def test_trials_share_gpus_by_memory_and_leave_those_of_other_users(
    desk: Desk, others: int
) -> None:
    desk.environment |= stand_in.variables(
        Path(desk.environment["HOME"]),
        stand_in.line(uuid="GPU-0", users={others: 30}),
        stand_in.line(uuid="GPU-1"),
        stand_in.line(uuid="GPU-2"),
        stand_in.line(uuid="MIG-a", gib=10, part_of=2),
        stand_in.line(uuid="MIG-b", gib=10, part_of=2),
    )
    space = {"batch_size": {"grid": [32, 64, 100, 160]}, "lr": {"uniform": [0, 1]}}
    file = desk.write(
        "packed",
        train=TRAIN,
        space=space,
        trials=4,
        max_steps=2,
        concurrency=None,
        resources={"gpu_memory": "5GiB", "cpu": 0.1},
        on_oom={"batch_size": 0.5},
        checkpoint=None,
    )
    said = desk.run("run", file).stdout
    assert "GPU 0 (NVIDIA A100-SXM4-40GB) is used by process" in said
    assert "left out; --gpus 0 takes it" in said
    assert "3 GPUs here: 2 trials share each (gpu_memory: 5.4 GB)" in said
    assert gpus(desk, "packed") <= {"1", "MIG-a", "MIG-b"}
    assert len(gpus(desk, "packed")) > 1, "all on one"
    ends = [
        (event["trial"], event["outcome"], event.get("cause"))
        for event in desk.events("packed")
        if event["event"] == "ended"
    ]
    assert sorted(ends) == sorted(
        [(n, "done", None) for n in range(4)] + [(n, "failed", "oom") for n in (1, 2, 3, 3)]
    )
    assert "trial 1 continues with batch_size 32 from its beginning" in said
    best = {p["part"] for p in desk.points("packed")}
    assert best == {0.5}
    assert ", GPU " in desk.run("trial", "packed", "1").stdout
    desk.run("verify", "packed")


def test_gpus_are_named_and_one_that_is_not_there_is_refused(desk: Desk) -> None:
    desk.environment |= stand_in.variables(
        Path(desk.environment["HOME"]), *(stand_in.line(uuid=f"GPU-{n}") for n in range(3))
    )
    (desk.folder / "program.py").write_text(PROGRAM)
    file = desk.write(
        "named",
        trainable=None,
        command=["python", "program.py", "{batch_size}"],
        space={"batch_size": {"grid": [32, 64]}},
        trials=2,
        max_steps=None,
        concurrency=None,
        resources={"gpu": 1, "cpu": 0.1},
        checkpoint=None,
    )
    error = desk.run("run", file, "--gpus", "0,7", expect=2).stderr
    assert "'7' is no GPU of this machine; there are: 0 (NVIDIA A100-SXM4-40GB), 1 (" in error
    said = desk.run("run", file, "--gpus", "2").stdout
    assert gpus(desk, "named") == {"2"}
    assert "CUDA out of memory" in said
    assert "try a smaller batch, as on_oom: {batch_size: 0.5} does" in said
    [failed] = [e for e in desk.events("named") if e.get("outcome") == "failed"]
    assert failed["cause"] == "oom"
