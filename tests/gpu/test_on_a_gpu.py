"""What only a real GPU shows: `make gpu`, which skips what the machine has too few devices for."""

from __future__ import annotations

import pytest

from regrow.infra.machine import gpus
from tests.system.conftest import Desk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpus.found(), reason="NVIDIA's driver knows no GPU here"),
]

FULL = """
import torch

def train(trial):
    batch = trial.config["batch_size"]
    torch.zeros(int(torch.cuda.get_device_properties(0).total_memory * batch / 100), dtype=torch.uint8, device="cuda")
    for step in trial.steps():
        trial.report({"score": batch, "device": torch.cuda.current_device()})
"""
TRAIN = """
import os, signal
from pathlib import Path

import torch
from torch import nn

import regrow as rg

KILLED = Path(__file__).parent / "killed"

def train(trial):
    torch.manual_seed(0)
    amp, model = trial.config["amp"], nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    model = rg.torch.prepare(model)
    place = next(model.parameters()).device
    assert place.type == "DEVICE"
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(place.type, enabled=amp)
    state = rg.torch.State(model=model, optimizer=optimizer, scaler=scaler)
    if trial.restored:
        state.load(trial.restored)
    for step in trial.steps():
        data = torch.randn(32, 16, device=place)
        optimizer.zero_grad()
        with torch.autocast(place.type, enabled=amp):
            loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        trial.report({"score": loss.item()}, checkpoint=state.save)
        if trial.config["killed"] and step == 6 and not KILLED.exists() and not int(os.environ.get("RANK", 0)):
            KILLED.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def device() -> gpus.Gpu:
    """The first GPU that trials may use."""
    return gpus.usable(gpus.found())[0]


def test_a_trial_is_kept_to_its_part_of_the_memory_and_continues_with_less(desk: Desk) -> None:
    file = desk.write(
        "full",
        train=FULL,
        space={"batch_size": {"grid": [90, 30]}},
        trials=2,
        max_steps=2,
        concurrency=None,
        resources={"gpu_memory": device().memory // 2, "cpu": 0.5},
        on_oom={"batch_size": 0.3},
        checkpoint=None,
    )
    said = desk.run("run", file).stdout
    assert "2 trials share each" in said
    causes = [event["cause"] for event in desk.events("full") if event.get("cause")]
    assert causes == ["oom"], "90 % of the memory do not fit into half of it, 27 and 30 do"
    assert {event["gpus"] for event in desk.events("full") if event["event"] == "began"} != {""}


@pytest.mark.parametrize(
    ("amp", "resources", "needed"),
    [
        pytest.param(False, {"gpu": 1}, 1, id="one"),
        pytest.param(True, {"gpu": 1}, 1, id="amp"),
        pytest.param(False, {"gpu": 0.5, "workers": 2}, 1, id="two processes of one card"),
        pytest.param(True, {"gpu": 1, "workers": 2}, 2, id="nccl"),
    ],
)
def test_a_killed_training_continues_with_the_same_losses(
    desk: Desk, amp: bool, resources: dict[str, float], needed: int
) -> None:
    there = len(gpus.usable(gpus.found()))
    if there < needed:
        pytest.skip(f"needs {needed} GPUs, there is {there}")
    curves = []
    for name in ("calm", "killed"):
        file = desk.write(
            name,
            train=TRAIN.replace("DEVICE", "cuda"),
            metric="score",
            mode="min",
            space={"amp": amp, "killed": name == "killed"},
            trials=1,
            max_steps=12,
            concurrency=None,
            resources={"cpu": 0.5, **resources},
            checkpoint={"every_steps": 2},
        )
        desk.run("run", file)
        curves.append([point["score"] for point in desk.points(name)])
    assert (desk.folder / "killed").exists()
    assert len(curves[0]) == 12
    assert curves[0] == pytest.approx(curves[1], rel=1e-6)
