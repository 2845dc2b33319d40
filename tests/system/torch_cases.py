"""What ranks do in tests/system/test_torch_parallel.py, beside the plain training of `parallel`."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import regrow as rg
from tests.system import parallel


def of_another_kind(mode: str, restored: Path) -> list[float]:
    """Steps 11 to 20, from a checkpoint of the other mode."""
    return parallel.train(mode, 20, restored=restored)


class Tied(nn.Module):
    """Chance, running means, and one weight at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.drop = nn.Dropout(0.5)
        self.again = nn.Linear(64, 64)
        self.again.weight = self.first.weight
        self.last = nn.Linear(64, 10)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes."""
        found: torch.Tensor = self.last(
            self.again(self.drop(self.norm(self.first(numbers)).relu()))
        )
        return found


def full(restored: Path | None, saved: Path | None) -> list[dict[str, Any]]:
    """Six steps with a checkpoint after the third, or the last three from it: what each rank has
    after each step.
    """
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)  # noqa: NPY002 - the global one is what is saved
    model = rg.torch.prepare(Tied())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "own": np.random.default_rng(rank),
        "shared": torch.Generator().manual_seed(5),
        "schedule": torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5]),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
        "data": rg.torch.shard(DataLoader(parallel.dataset(), batch_size=6, shuffle=True)),
    }
    state = rg.torch.State(**parts)
    if restored:
        random.seed(99)
        state.load(restored)
    scaler, found = parts["scaler"], []
    for step, (numbers, labels) in zip(
        range(4 if restored else 1, 7), parts["data"].endless(), strict=False
    ):
        optimizer.zero_grad()
        loss = cross_entropy(model(numbers), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        parts["schedule"].step()
        drawn = {
            "own": parts["own"].random(),
            "python": random.random(),
            "numpy": np.random.rand(),  # noqa: NPY002
            "torch": torch.rand(1).item(),
            "shared": torch.rand(1, generator=parts["shared"]).item(),
        }
        module: Any = getattr(model, "module", model)
        module.eval()  # rank 0's running means count, which each rank takes with the next batch
        with torch.inference_mode():
            running = module.norm.running_mean.clone()
            if dist.is_initialized():
                dist.broadcast(running, 0)
        module.train()
        found.append(
            {
                "loss": loss.item(),
                "rate": optimizer.param_groups[0]["lr"],
                "scale": scaler.get_scale(),
                "drawn": drawn,
                "weight": module.first.weight.sum().item(),
                "mean": running.sum().item() if step != 4 else 0.0,
            }
        )
        if saved and step == 3:
            state.save(saved / str(rank))
    return found


class Odd:
    """Its state is an object."""

    def state_dict(self) -> dict[str, Any]:
        """A path, which is code when it is unpickled."""
        return {"path": Path("x")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


class Nested(nn.Module):
    """Layers that are in no list."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.body = nn.Sequential(nn.Linear(2, 2), Inner())


class Inner(nn.Module):
    """A layer in a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)


def raised(function: Callable[[], Any]) -> str:
    """The error of a function, as `Kind: message`."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - which one it is, the test says
        return f"{type(error).__name__}: {error}"
    return "nothing"


def group(folder: Path, port: int) -> dict[str, Any]:
    """What becomes of a group, and of faults in it. `port` is for a second group of the same
    processes.
    """
    rank = int(os.environ["RANK"])
    os.environ.pop("OMP_NUM_THREADS", None)
    torch.set_num_threads(2)
    model = rg.torch.prepare(nn.Linear(4, 4))
    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    before = dist.group.WORLD
    parallel.variables(rank, 2, port, "two")  # as for another attempt in the same process
    model = rg.torch.prepare(nn.Linear(4, 4))
    found["again"] = dist.get_world_size() if dist.group.WORLD is not before else 0
    found["prepared twice"] = raised(lambda: rg.torch.prepare(model))
    found["frozen"] = type(rg.torch.prepare(nn.Linear(1, 1).requires_grad_(False))).__name__
    found["shared"] = shared(model)
    state = rg.torch.State(model=model)
    if rank:
        (folder / "file").touch()
    found["no folder"] = raised(
        lambda: state.save(folder / ("file" if rank else "good") / str(rank))
    )
    found["not loadable"] = raised(
        lambda: rg.torch.State(odd=Odd()).save(folder / "odd" / str(rank))
    )
    found["fsdp1"] = raised(
        lambda: rg.torch.State(
            model=FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
        )
    )
    lists = nn.Sequential(
        nn.Linear(2, 2), nn.ReLU(), nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))])
    )
    found["units"] = units(rg.torch.prepare(lists, fsdp=True))
    found["linear"] = units(rg.torch.prepare(Nested(), fsdp=nn.Linear))
    rg.torch.leave()
    found["left"] = dist.is_initialized()
    return found


def shared(model: Any) -> int:
    """How often gradients are sent to the other rank in a step of three parts."""
    calls = itertools.count()
    model.register_comm_hook(
        dist.group.WORLD, lambda state, bucket: (next(calls), allreduce_hook(state, bucket))[1]
    )
    rg.torch.accumulate(model, [torch.ones(1, 4)] * 3, lambda part: model(part).sum())
    return next(calls)


def units(model: nn.Module) -> list[str]:
    """The names of the modules that FSDP2 took as units."""
    names = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    return [*names[1:], names[0]]
