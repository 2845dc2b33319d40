"""Gradient accumulation: fewer workers take a batch in several turns, for the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from regrow.integrations.torch import group
from regrow.tasks.errors import UserError


@dataclass(frozen=True, slots=True)
class Accumulation:
    """One worker's share of a step: `turns` turns of `batch` samples each."""

    turns: int
    batch: int


def accumulation(batch: int, *, workers: int, size: int | None = None) -> Accumulation:
    """Return how each of `size` workers (None: of this group) takes its share of the samples of
    `workers` workers with `batch` samples each.

    No turn has more than `batch` samples, so it needs no more memory. Raises UserError if the
    samples of a step cannot be shared equally.
    """
    for what, value in (("batch", batch), ("workers", workers)):
        if not isinstance(value, int) or value < 1:
            raise UserError(f"rg.torch.accumulation: {what} is {value!r}; it is a number from 1 up")
    size = group.world().size if size is None else size
    samples = batch * workers
    if samples % size:
        raise UserError(
            f"rg.torch.accumulation: {size} workers cannot share a step of {samples} samples"
            f" ({workers} workers with {batch} each) equally; choose a batch so that {size} divides"
            " them"
        )
    share = samples // size
    turns = next(n for n in range(-(-share // batch), share + 1) if share % n == 0)
    return Accumulation(turns=turns, batch=share // turns)


def accumulate(
    model: nn.Module,
    parts: Sequence[Any],
    loss_of: Callable[[Any], torch.Tensor],
    *,
    backward: Callable[[torch.Tensor], object] = torch.Tensor.backward,
) -> torch.Tensor:
    """Add up the gradients of one step's parts, and share them with the other workers once, at the
    last part.

    `loss_of(part)` is the mean loss of a part; `parts` is what `rg.torch.shard(..., workers=)`
    yields, or any list of equal batches. `backward` for a scaler: `lambda loss:
    scaler.scale(loss).backward()`. Returns the mean loss of this worker's parts, detached. Clear
    the gradients before, step the optimizer after.
    """
    if not parts:
        raise UserError("rg.torch.accumulate: there are no parts")
    weights = getattr(parts, "weights", None) or [1 / len(parts)] * len(parts)
    total: torch.Tensor | None = None
    for number, (part, weight) in enumerate(zip(parts, weights, strict=True), start=1):
        with _shared(model, now=number == len(parts)):
            loss = loss_of(part) * weight
            backward(loss)
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total


@contextmanager
def _shared(model: nn.Module, *, now: bool) -> Iterator[None]:
    """Within the block, share gradients after a backward pass (`now`), or keep them."""
    if now:
        yield
    elif isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    else:
        yield
