"""Sweep files of W&B's by `regrow run`, with scripts as their users write them: killed, and nobody
could tell by the metrics.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from tests.system.conftest import Desk, await_no_process
from tests.system.reader import ROOT, read
from tests.system.test_losses import kill
from tests.system.test_scripts import script_of

pytestmark = pytest.mark.usefixtures("shared_prefect")

SWEEP = """
program: train.py
method: grid
project: digits
entity: somebody
metric: {name: val/loss, goal: minimize}
parameters:
  lr: {value: 0.1}
  optimizer:
    parameters:
      momentum: {value: 0.9}
  fold: {values: [0, 1]}
command: ["${env}", "OMP_NUM_THREADS=1", "${interpreter}", "${program}", "${args}", "--data=${envvar:DATA}"]
"""
TORCH = """
import argparse
import os
import time

import torch
import wandb

CHECKPOINT_PATH = "checkpoint.tar"

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--optimizer.momentum", type=float, default=0.0)
parser.add_argument("--fold", type=int, default=0)
parser.add_argument("--data", required=True)
args = parser.parse_args()

run = wandb.init(project="digits", config=args, resume=True)
torch.manual_seed(0)
inputs = torch.randn(64, 4)
targets = inputs @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=wandb.config.lr, momentum=wandb.config["optimizer"]["momentum"])
wandb.watch(model)
epoch = 0
if wandb.run.resumed:
    checkpoint = torch.load(wandb.restore(CHECKPOINT_PATH))
    model.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    epoch = checkpoint["epoch"]
while epoch < 20:
    time.sleep(0.25)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    wandb.log({"train/loss": loss, "weights": wandb.Histogram(model[0].weight.detach())}, step=epoch)
    with torch.no_grad():
        wandb.log({"val/loss": torch.nn.functional.mse_loss(model(-inputs), -targets), "epoch": epoch}, step=epoch)
    epoch += 1
    torch.save(
        {"epoch": epoch, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()},
        os.path.join(wandb.run.dir, CHECKPOINT_PATH),
    )
    wandb.save(os.path.join(wandb.run.dir, CHECKPOINT_PATH))
print(args.data, "data of fold", args.fold)
"""


def curves(desk: Desk, name: str) -> list[list[dict[str, Any]]]:
    """Of trials 0 and 1 what `trials --history` shows, by step."""
    found: list[list[dict[str, Any]]] = [[], []]
    for point in desk.points(name):
        found[point["trial"]].append(
            {
                key: value
                for key, value in point.items()
                if key not in ("trial", "attempt", "t", "seconds")
            }
        )
    return found


def test_a_sweep_with_a_script_of_pytorch_goes_on_after_its_script_and_its_worker_are_killed(
    desk: Desk,
) -> None:
    (desk.folder / "train.py").write_text(TORCH)
    file = desk.folder / "fold.yaml"
    file.write_text(SWEEP)
    process = desk.start("run", file, DATA="/data")
    await_saved(desk, "fold", 3, process)
    os.kill(script_of(desk, 0), signal.SIGKILL)
    await_saved(desk, "fold", 6, process)
    kill(desk.folder, "ray::trial-0000")
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert said.count("fold.yaml:5: entity: ignored, there are no accounts here\n") == 1
    assert (
        said.count("parameters.optimizer: nested, an argument is called by its dotted name\n") == 1
    )

    attempts = desk.show("fold")["trials"][0]["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["failed", "lost", "done"]
    assert [attempt["cause"] for attempt in attempts[:2]] == ["infrastructure", "infrastructure"]
    assert attempts[1]["from_step"] >= 2
    assert attempts[2]["from_step"] > attempts[1]["from_step"]
    killed, whole = curves(desk, "fold")
    assert killed == whole
    assert [(row["step"], row["epoch"]) for row in whole] == [(n + 1, n) for n in range(20)]
    assert whole[-1]["val/loss"] < whole[0]["val/loss"] / 2
    desk.look("verify", "fold")
    logs = desk.look("logs", "fold", 0)
    assert "/data data of fold 0" in logs
    assert "regrow: wandb: weights: Histogram is not recorded" in logs
    assert "/data" not in "".join(
        path.read_text() for path in (desk.folder / ".regrow" / "fold" / "log").glob("*.jsonl")
    )
    assert await_no_process(desk.folder) == []


def await_saved(desk: Desk, name: str, step: int, process: subprocess.Popen[str]) -> None:
    """Returns once trial 0 has saved a checkpoint of this step or a later one."""
    for count in range(1, 1000):
        desk.await_events(name, "saved", count, process)
        assert process.poll() is None, process.communicate()[0]
        if any(
            event["event"] == "saved" and event["trial"] == 0 and event["step"] >= step
            for event in desk.events(name)
        ):
            return


HYDRA = ROOT / ".venv" / "apart" / "hydra"
APP = """
import json
import time

import hydra
import wandb
from omegaconf import OmegaConf


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    run = wandb.init(config=OmegaConf.to_container(cfg, resolve=True), resume="allow")
    state = json.load(wandb.restore("state.json")) if run.resumed else {"epoch": 0, "score": 0.0}
    while state["epoch"] < cfg.epochs:
        time.sleep(0.2)
        state = {"epoch": state["epoch"] + 1, "score": state["score"] + cfg.net.width * cfg.lr}
        with open(run.dir + "/state.json", "w") as file:
            json.dump(state, file)
        wandb.save(run.dir + "/state.json")
        wandb.log({"score": state["score"], "layers": len(cfg.net.layers), "epoch": state["epoch"]})
    print("activation", repr(cfg.net.act), "dropout", cfg.net.dropout)


main()
"""
CONFIG = """
lr: 0.1
epochs: 9
net: {width: 1, act: relu, layers: [], dropout: 0.5}
defaults: [_self_]
hydra: {run: {dir: .}, output_subdir: null}
"""
APP_SWEEP = """
program: app.py
method: grid
metric: {name: score, goal: maximize}
parameters:
  lr: {values: [0.5, 0.25]}
  net:
    parameters:
      width: {value: 4}
      act: {value: "leaky relu, 0.1"}
      layers: {value: [8, 16]}
      dropout: {value: null}
command: ["${env}", "${interpreter}", "${program}", "${args.hydra}"]
"""


@pytest.mark.nightly
def test_an_app_of_hydras_in_a_sweep_goes_on_after_it_was_killed(desk: Desk) -> None:
    if not (HYDRA / "hydra").is_dir():
        pytest.skip("hydra-core is not installed; `make nightly` installs it")
    (desk.folder / "conf").mkdir()
    (desk.folder / "conf" / "config.yaml").write_text(CONFIG)
    (desk.folder / "train.py").write_text(APP)
    file = desk.folder / "app.yaml"
    file.write_text(APP_SWEEP.replace("app.py", "train.py"))
    process = desk.start("run", file, PYTHONPATH=str(HYDRA))
    await_saved(desk, "app", 3, process)
    os.kill(script_of(desk, 0), signal.SIGKILL)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    first, second = desk.show("app")["trials"][0]["attempts"]
    assert (first["cause"], second["outcome"]) == ("infrastructure", "done")
    assert second["from_step"] >= 3
    for trial, lr in enumerate((0.5, 0.25)):
        assert [
            (row["step"], row["epoch"], row["score"], row["layers"])
            for row in curves(desk, "app")[trial]
        ] == [(n, n, n * 4 * lr, 2) for n in range(1, 10)]
    desk.look("verify", "app")
    assert "activation 'leaky relu, 0.1' dropout None" in desk.look("logs", "app", 0)

    plain = (
        file.read_text()
        .replace("${args.hydra}", "${args_no_hyphens}")
        .replace("leaky relu, 0.1", "tanh")
    )
    file.write_text(plain.replace("dropout: {value: null}", "dropout: {value: 0.1}"))
    assert "activation 'tanh' dropout 0.1" in desk.run("try", file, PYTHONPATH=str(HYDRA)).stdout

    page = {
        block.title: block.body
        for block in read(ROOT / "docs" / "how-to" / "coming-from-hydra.md").blocks
    }
    for title in ("app.py", "app.yaml"):
        (desk.folder / title).write_text(page[title])
    said = desk.run(
        "try",
        desk.folder / "app.yaml",
        "--set",
        "lr=0.5",
        "--set",
        "net.act=leaky relu, 0.1",
        PYTHONPATH=str(HYDRA),
    ).stdout
    assert "step 27 " in said
    left = {path.name for path in desk.folder.iterdir()}
    assert not left & {"outputs", "app.log"}, "what Hydra writes is gone with the attempt"
    assert await_no_process(desk.folder) == []
