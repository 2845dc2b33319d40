"""The same data-parallel training for the three sides of `data_parallel.py`: ours, Ray Train's and
torchrun's.

Each rank of two trains an MLP by DDP (gloo) for STEPS steps of BATCH samples, with a checkpoint at
each EVERY-th; rank 0 notes each step in FOLDER/steps.jsonl: when it was done, how long its training
and how long its report with the checkpoint took.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS, EVERY, BATCH, WIDTH = 60, 5, 64, 512
FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))


class Training:
    """The model and what it learns from; the same on all sides."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.rank = dist.get_rank()
        layers = [
            torch.nn.Linear(64, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.ReLU(),
        ]
        net = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))
        self.model = torch.nn.parallel.DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step = 0
        (FOLDER / f"rank-{self.rank}.pid").write_text(str(os.getpid()))

    def load(self, file: Path) -> None:
        """Takes the state back."""
        import torch

        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def save(self, file: Path) -> None:
        """Writes the state, which is the same on all ranks."""
        import torch

        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        torch.save(state, file)

    def train(self, report: Callable[[float], object]) -> None:
        """All steps that are left; `report` is told the loss of each."""
        import torch

        while self.step < STEPS:
            begun = time.perf_counter()
            self.step += 1
            data = torch.randn(
                BATCH, 64, generator=torch.Generator().manual_seed(self.step * 97 + self.rank)
            )
            loss = (self.model(data) - data.sum(1, keepdim=True)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            value, trained = loss.item(), time.perf_counter()
            report(value)
            if self.rank == 0:
                note = {
                    "step": self.step,
                    "t": time.time(),
                    "train": trained - begun,
                    "report": time.perf_counter() - trained,
                }
                with (FOLDER / "steps.jsonl").open("a") as file:
                    file.write(json.dumps(note) + "\n")
            time.sleep(0.05)  # what a real step has beside the CPU of this machine


def ours(trial: Any) -> None:
    """As a trainable of regrow."""
    work = Training()
    if trial.restored is not None:
        work.load(trial.restored / "state.pt")
        work.step = trial.step

    def save(folder: Path) -> None:
        if work.rank == 0:
            work.save(folder / "state.pt")

    work.train(lambda loss: trial.report({"loss": loss}, checkpoint=save))


def of_ray_train(_: dict[str, Any]) -> None:
    """As the loop of a TorchTrainer."""
    from ray import train

    work = Training()
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            work.load(Path(folder) / "state.pt")

    def report(loss: float) -> None:
        if work.step % EVERY:
            train.report({"loss": loss})
            return
        with tempfile.TemporaryDirectory() as folder:
            if work.rank == 0:
                work.save(Path(folder) / "state.pt")
            train.report(
                {"loss": loss},
                checkpoint=train.Checkpoint.from_directory(folder) if work.rank == 0 else None,
            )

    work.train(report)


def ray_train() -> None:
    """Ray Train's command."""
    import ray
    from ray import train
    from ray.train.torch import TorchConfig, TorchTrainer

    env = {"BENCH_FOLDER": str(FOLDER), "PYTHONPATH": str(Path(__file__).parent)}
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": env},
    )
    TorchTrainer(
        of_ray_train,
        train_loop_config={},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=train.RunConfig(
            name="bench",
            storage_path=str(FOLDER / "storage"),
            failure_config=train.FailureConfig(max_failures=3),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


def torchrun() -> None:
    """The script that torchrun starts on each rank: the checkpoint is a file, replaced as a
    whole.
    """
    work, file = Training(), FOLDER / "state.pt"
    if file.exists():
        work.load(file)

    def report(_: float) -> None:
        if work.step % EVERY == 0 and work.rank == 0:
            work.save(file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)

    work.train(report)


if __name__ == "__main__":
    {"ray": ray_train, "torchrun": torchrun}[sys.argv[1]]()
