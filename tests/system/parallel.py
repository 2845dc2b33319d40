"""Real processes that form a group as torchrun's do, quickly: forked of one process that has
PyTorch, and what they train.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import regrow as rg

SECONDS = 60.0
"""How long a group may take, on a machine that does other things, too."""
SAMPLES, STEP = 330, 48
"""An epoch has 6 steps, so that step 10 is inside of one."""


@contextmanager
def server() -> Iterator[None]:
    """Within the block, groups are forked of a process that has imported PyTorch (3 s, which each
    process would take).
    """
    multiprocessing.set_forkserver_preload(
        ["tests.system.parallel", "regrow.torch", "torch._dynamo"]
    )
    yield
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined] # it would stay as long as pytest


def run(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returns on each rank of a group. Raises AssertionError with the
    traceback of one that raises.
    """
    context = multiprocessing.get_context("forkserver")
    port, ends, processes = free_port(), [], []
    for rank in range(size):
        end, other = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(other, rank, size, port, function, arguments))
        process.start()
        other.close()
        ends.append(end)
        processes.append(process)
    try:
        return _results(ends)
    finally:
        for process in processes:
            process.kill()
            process.join()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _results(ends: list[Connection[Any, Any]]) -> list[Any]:
    found: dict[int, Any] = {}
    deadline = time.monotonic() + SECONDS
    while len(found) < len(ends):
        ready = wait(
            [end for rank, end in enumerate(ends) if rank not in found],
            timeout=deadline - time.monotonic(),
        )
        assert ready, f"ranks {sorted({*range(len(ends))} - found.keys())} are silent"
        for rank, end in enumerate(ends):
            if end in ready:
                good, found[rank] = end.recv()
                assert good, f"rank {rank} of {len(ends)}:\n{found[rank]}"
    return [found[rank] for rank in range(len(ends))]


def _rank(
    end: Connection[Any, Any],
    rank: int,
    size: int,
    port: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    variables(rank, size, port)
    torch.set_num_threads(1)
    try:
        end.send((True, function(*arguments)))
    except BaseException:  # noqa: BLE001 - told where it is waited for
        end.send((False, traceback.format_exc()))
    rg.torch.leave()


def variables(rank: int, size: int, port: int, run_id: str = "one") -> None:
    """Torchrun's."""
    values = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": run_id,
    }
    os.environ.update({name: str(value) for name, value in values.items()})


def net(seed: int = 0) -> nn.Sequential:
    """A small network; each seed another one."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def dataset() -> TensorDataset:
    """Images of noise, which can be learned by heart."""
    numbers = torch.randn(SAMPLES, 64, generator=torch.Generator().manual_seed(7))
    return TensorDataset(numbers, numbers[:, :10].argmax(1))


def mean(value: torch.Tensor) -> float:
    """Over all ranks."""
    value = value.clone()
    if dist.is_initialized():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value.item()


def train(
    mode: str,
    last: int,
    *,
    restored: Path | None = None,
    saved: Path | None = None,
    save_at: int = 10,
) -> list[float]:
    """The losses of the steps up to `last`. `mode` is ddp or fsdp, with bf16 for autocast; each
    rank has a folder below `saved`.
    """
    rank = int(os.environ["RANK"])
    model = rg.torch.prepare(net(seed=rank), fsdp="fsdp" in mode)  # all begin with rank 0's
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    # As 4 workers with 12 samples each would: 48 a step on any number of them.
    data = rg.torch.shard(
        DataLoader(dataset(), batch_size=STEP // 4, shuffle=True, drop_last=True), seed=3, workers=4
    )
    state = rg.torch.State(model=model, optimizer=optimizer, schedule=schedule, data=data)
    if restored:
        for parameter in model.parameters():
            parameter.detach().fill_(9.0)
        state.load(restored)
        divided = {getattr(parameter, "placements", None) for parameter in model.parameters()}
        assert {
            getattr(one["exp_avg"], "placements", None) for one in optimizer.state.values()
        } == divided
    first = schedule.last_epoch + 1
    losses = []

    def loss_of(batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="bf16" in mode):
            return cross_entropy(model(batch[0]), batch[1])

    for step, parts in zip(range(first, last + 1), data.endless(), strict=False):
        optimizer.zero_grad()
        losses.append(mean(rg.torch.accumulate(model, parts, loss_of)))
        optimizer.step()
        schedule.step()
        if saved and step == save_at:
            state.save(saved / mode / str(rank))
    return losses


def trainings(
    modes: list[str], last: int, restored: Path | None, saved: Path | None, save_at: int = 10
) -> dict[str, list[float]]:
    """One after the other, by the same processes."""
    return {
        mode: train(mode, last, restored=restored and restored / mode, saved=saved, save_at=save_at)
        for mode in modes
    }


def joined(parts: Path, whole: Path) -> list[str]:
    """One folder of all ranks' folders, as a checkpoint is; its files. Fails where two ranks wrote
    the same name.
    """
    whole.mkdir(parents=True)
    for file in sorted(parts.glob("*/*")):
        target = whole / file.name
        assert not target.exists(), f"{file} is there twice"
        file.rename(target)
    return sorted(file.name for file in whole.iterdir())
