"""Divides a DataLoader's samples among the workers, from any position of an epoch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sized
from typing import Any, cast

import numpy as np
import torch
from torch.utils import data
from torch.utils.data import DataLoader

from regrow.integrations.torch import group
from regrow.integrations.torch.turns import accumulation
from regrow.tasks.errors import UserError

_DRAWN = (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
"""Samplers whose order depends on a generator alone, so that it can be reproduced."""
_Step = tuple[int, list[list[int]]]
"""How many samples of the order the step takes, and one worker's batches of indices."""


class Parts(list[Any]):
    """One step's batches of this worker; `weights`: their shares of its samples, in all 1."""

    def __init__(self, batches: list[Any], weights: list[float]) -> None:
        super().__init__(batches)
        self.weights = weights


def shard(
    loader: DataLoader[Any],
    *,
    epoch: int = 0,
    start: int = 0,
    seed: int = 0,
    workers: int | None = None,
) -> Sharded:
    """Return the loader's batches for this worker; its `batch_size` is that of one worker.

    Each step takes the next samples of one order for all workers, so that a restart can continue
    with any number of workers. The loader's sampler gives the order, drawn anew for each `epoch`
    with `seed`: shuffled with `shuffle=True`. The epoch's first `start` samples (of all workers)
    are skipped. Its last step may be smaller, filled up from the epoch's beginning if the workers
    could not share it equally; with the loader's `drop_last=True` it is dropped. `workers`: each
    step takes as many samples as this many workers would, and yields `Parts`, for
    `rg.torch.accumulate`.

    Raises UserError for a loader whose samples cannot be divided or reproduced: an IterableDataset,
    a custom sampler or batch sampler.
    """
    return Sharded(loader, epoch=epoch, start=start, seed=seed, workers=workers)


class Sharded:
    """The batches of one worker. Iterating continues from the current position to the end of the
    epoch; the next iteration starts the next epoch.

    Attributes: `epoch`; `position`, how many of its samples all workers together have received;
    `seed`. A `rg.torch.State` saves them.
    """

    def __init__(
        self, loader: DataLoader[Any], *, epoch: int, start: int, seed: int, workers: int | None
    ) -> None:
        for what, value in (("epoch", epoch), ("start", start), ("seed", seed)):
            if not isinstance(value, int) or value < 0:
                raise UserError(
                    f"rg.torch.shard: {what} is {value!r}; it is a whole number from 0 up"
                )
        batch = _batch_size(loader)
        self.epoch, self.position, self.seed = epoch, start, seed
        self._sampler: Any = loader.sampler
        self._drop_last = loader.drop_last
        self._world = group.world()
        self._grouped = workers is not None
        size = self._world.size
        self._batch, self._step = batch, batch * size
        """Samples that a worker takes at a time, and all workers together in a step."""
        if workers is not None:
            self._batch = accumulation(batch, workers=workers, size=size).batch
            self._step = batch * workers
        self._count = len(cast(Sized, loader.sampler))  # `_batch_size` takes no other kind
        if self.steps() == 0:
            raise UserError(
                f"rg.torch.shard: the data has {self._count} samples, a step takes {self._step},"
                " and drop_last leaves out smaller ones"
            )
        self._generator = torch.Generator()
        self._batches = _Batches()
        self._loader: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=self._batches,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=self._generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            in_order=loader.in_order,
        )

    def steps(self) -> int:
        """Return the number of steps of a whole epoch."""
        return self._count // self._step if self._drop_last else -(-self._count // self._step)

    def __len__(self) -> int:
        return self.steps()

    def __iter__(self) -> Iterator[Any]:
        self._batches.plan = functools.partial(self._left, self._order(), self.position)
        # A separate generator: otherwise making an iterator would draw from PyTorch's, and a trial
        # that resumes inside of an epoch makes one more.
        self._generator.manual_seed(_mixed(self.seed, self.epoch, self.position))
        batches = iter(self._loader)
        for taken, shares in self._batches.plan():
            parts = [next(batches) for _ in shares]
            self.position += taken
            samples = sum(map(len, shares))
            weights = [len(share) / samples for share in shares]
            yield Parts(parts, weights) if self._grouped else parts[0]
        self.epoch, self.position = self.epoch + 1, 0

    def endless(self) -> Iterator[Any]:
        """Yield the batches from here on, epoch after epoch, without an end."""
        while True:
            yield from self

    def _left(self, order: torch.Tensor, position: int) -> Iterator[_Step]:
        """Yield the steps from a position of the order on."""
        size, rank = self._world.size, self._world.rank
        for first in range(position, self._count, self._step):
            indices = order[first : first + self._step]
            taken = len(indices)
            if taken < self._step:
                if self._drop_last:
                    return
                if missing := -taken % size:
                    more = order.repeat(-(-missing // self._count))[:missing]
                    indices = torch.cat([indices, more])
            share = len(indices) // size
            own = indices[rank * share : (rank + 1) * share]
            parts = -(-share // self._batch)
            yield taken, [part.tolist() for part in own.tensor_split(parts)]

    def state_dict(self) -> dict[str, int]:
        """Return the position, the same on all ranks."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "samples": self._count,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the position to a saved one. Raises UserError for data of another length."""
        if state["samples"] != self._count:
            raise UserError(
                f"rg.torch.shard: the data has {self._count} samples, and had {state['samples']}"
                " when it was saved; a trial can only continue inside of an epoch of the same data"
            )
        self.epoch, self.position, self.seed = state["epoch"], state["position"], state["seed"]

    def _order(self) -> torch.Tensor:
        if type(self._sampler) is data.SequentialSampler:
            return torch.arange(self._count)
        sampler = copy.copy(self._sampler)
        sampler.generator = torch.Generator().manual_seed(_mixed(self.seed, self.epoch))
        return torch.tensor(list(sampler), dtype=torch.int64)


class _Batches:
    """Batch sampler for a DataLoader: the batches of indices of a plan, step after step."""

    plan: Callable[[], Iterator[_Step]]

    def __iter__(self) -> Iterator[list[int]]:
        for _, shares in self.plan():
            yield from shares


def _mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _batch_size(loader: DataLoader[Any]) -> int:
    """Return the loader's batch size. Raises UserError for a loader that cannot be divided."""
    if not isinstance(loader, DataLoader):
        raise UserError(
            f"rg.torch.shard takes a torch.utils.data.DataLoader, not {type(loader).__name__}"
        )
    if isinstance(loader.dataset, data.IterableDataset):
        raise UserError(
            "rg.torch.shard: an IterableDataset has neither a length nor an order that could be"
            " divided; divide it where it is made, by RANK and WORLD_SIZE"
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UserError(
            f"rg.torch.shard: {type(loader).__name__} iterates in its own way; use a"
            " torch.utils.data.DataLoader"
        )
    if loader.batch_size is None:
        own = loader.batch_sampler is not None
        what = "has a batch_sampler of its own" if own else "has batch_size=None"
        raise UserError(
            f"rg.torch.shard: the loader {what}; give it a batch_size, that of one worker"
        )
    assert type(loader.batch_sampler) is data.BatchSampler
    kind = type(loader.sampler)
    if kind is not data.SequentialSampler and kind not in _DRAWN:
        names = ", ".join(one.__name__ for one in (data.SequentialSampler, *_DRAWN))
        raise UserError(
            f"rg.torch.shard: the order of the loader's {kind.__name__} could not be drawn again"
            " after a restart; leave it out (shard divides the data among the workers by itself),"
            f" or take one of {names}"
        )
    return int(loader.batch_size)
