"""`rg.torch.shard`: each sample once an epoch over all workers, and on inside of an epoch, whatever
their number. One process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import regrow as rg
from regrow import UserError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")
from torch.utils import data as tud  # noqa: E402 - after it is known to be there


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)


class Numbers(tud.Dataset[int]):
    """The numbers from 0 up."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def shards(
    size: int, count: int = 50, batch: int = 4, *, workers: int | None = None, **options: Any
) -> list[Any]:
    """What each rank of a group has."""
    options = {"shuffle": True, **options}
    found = []
    for rank in range(size):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
        found.append(
            rg.torch.shard(
                tud.DataLoader(Numbers(count), batch_size=batch, **options), seed=5, workers=workers
            )
        )
    return found


def taken(step: tuple[Any, ...]) -> list[int]:
    """The samples of a step, of all ranks, in the order in which they count."""
    return [
        int(number)
        for own in step
        for part in (own if isinstance(own, list) else [own])
        for number in part
    ]


def steps(ranks: list[Any]) -> Iterator[list[int]]:
    return map(taken, zip(*ranks, strict=True))


@pytest.mark.parametrize("loading", [0, 2])
def test_all_ranks_together_have_each_sample_once_an_epoch(loading: int) -> None:
    ranks = shards(2, num_workers=loading, persistent_workers=loading > 0)
    first, second = list(steps(ranks)), list(steps(ranks))
    for epoch in (first, second):
        assert [len(step) for step in epoch] == [8, 8, 8, 8, 8, 8, 2]
        assert sorted(number for step in epoch for number in step) == list(range(50))
    assert first != second, "each epoch has an order of its own"
    assert first == list(steps(shards(2))), "and the same each time that it is run"


def test_the_order_is_the_loaders() -> None:
    assert [number for step in steps(shards(2, shuffle=False)) for number in step] == list(
        range(50)
    )
    weights = [1.0] * 5 + [0.0] * 45
    drawn = shards(2, shuffle=None, sampler=tud.WeightedRandomSampler(weights, 40))
    assert {number for step in steps(drawn) for number in step} == {0, 1, 2, 3, 4}
    (alone,) = shards(1, shuffle=None, sampler=tud.SubsetRandomSampler([7, 8, 9]))
    assert sorted(taken(tuple(alone))) == [7, 8, 9]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 3), (1, 4), (3, 2), (4, 8)])
def test_it_goes_on_inside_of_an_epoch_with_any_number_of_workers(before: int, after: int) -> None:
    old, new = shards(before, count=96), shards(after, count=96)
    iterators = [iter(rank) for rank in old]
    done = [number for _ in range(3) for number in taken(tuple(map(next, iterators)))]
    saved = old[0].state_dict()
    assert saved == old[-1].state_dict()
    assert saved["position"] == len(done) == 3 * before * 4
    for rank in new:
        rank.load_state_dict(saved)
    whole = [number for step in steps(shards(1, count=96)) for number in step]
    assert done + [number for step in steps(new) for number in step] == whole
    assert new[0].state_dict() == {"epoch": 1, "position": 0, "seed": 5, "samples": 96}


@pytest.mark.parametrize("loading", [0, 2])
def test_what_loads_ahead_does_not_count_as_taken(loading: int) -> None:
    (rank,) = shards(1, num_workers=loading)
    batches = rank.endless()
    next(batches)
    assert rank.position == 4
    for _ in range(13):
        next(batches)
    assert (rank.epoch, rank.position) == (1, 4)


def test_a_loader_is_taken_as_it_is_set_up() -> None:
    begun: list[int] = []
    (rank,) = shards(1, count=8, collate_fn=tuple, shuffle=False)
    assert list(rank) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    (rank,) = shards(
        1, count=8, num_workers=2, worker_init_fn=begun.append, prefetch_factor=3, timeout=50
    )
    own = rank._loader
    assert (own.num_workers, own.worker_init_fn, own.prefetch_factor, own.timeout) == (
        2,
        begun.append,
        3,
        50,
    )


def test_iterating_draws_nothing_from_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    list(shards(1)[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_last_step_that_cannot_be_shared_is_filled_up_or_left_out() -> None:
    *full, last = steps(shards(4, count=50, batch=3))
    assert [len(step) for step in full] == [12] * 4
    assert len(last) == 4, "two that are left, and two from the epoch's beginning"
    assert set(last[2:]) <= set(full[0])
    short = shards(4, count=50, batch=3, drop_last=True)
    assert [len(step) for step in steps(short)] == [12] * 4
    assert len(short[0]) == 4
    assert [len(step) for step in steps(shards(8, count=3, batch=3))] == [8]


@pytest.mark.parametrize(
    ("size", "parts"), [(1, [4] * 4), (2, [4] * 2), (3, [4, 4]), (4, [4]), (8, [2])]
)
def test_a_step_is_that_of_as_many_workers_as_are_asked_for(size: int, parts: list[int]) -> None:
    workers, count = (4, 52) if size != 3 else (6, 76)
    ranks = shards(size, count=count, workers=workers)
    found = list(zip(*ranks, strict=True))
    assert [[len(part) for part in own] for own in found[0]] == [parts] * size
    assert [sum(own.weights) for own in found[-1]] == pytest.approx([1.0] * size)
    whole = [number for step in steps(shards(1, count=count)) for number in step]
    assert taken(found[0]) == whole[: workers * 4]


def test_the_weights_of_parts_are_their_shares_of_the_samples() -> None:
    (rank,) = shards(1, count=7, batch=4, workers=2)
    (parts,) = rank
    assert [len(part) for part in parts] == [4, 3]
    assert parts.weights == [4 / 7, 3 / 7]


def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model, numbers = torch.nn.Linear(3, 2).double(), torch.randn(7, 3).double()
    (parts,) = rg.torch.shard(tud.DataLoader(numbers, batch_size=3), workers=3)
    assert [len(part) for part in parts] == [3, 2, 2]
    scale = 8.0
    loss = rg.torch.accumulate(
        model,
        parts,
        lambda part: model(part).square().mean(),
        backward=lambda value: (value * scale).backward(),
    )
    found = [parameter.grad / scale for parameter in model.parameters()]
    model.zero_grad()
    whole = model(numbers).square().mean()
    whole.backward()
    assert loss.item() == pytest.approx(whole.item(), abs=1e-12)
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.parametrize(
    ("batch", "workers", "size", "turns", "each"),
    [
        (12, 4, 4, 1, 12),
        (12, 4, 2, 2, 12),
        (12, 4, 1, 4, 12),
        (12, 4, 3, 2, 8),
        (12, 4, 8, 1, 6),
        (7, 3, 1, 3, 7),
        (5, 4, 20, 1, 1),
    ],
)
def test_no_turn_is_larger_than_the_batch(
    batch: int, workers: int, size: int, turns: int, each: int
) -> None:
    found = rg.torch.accumulation(batch, workers=workers, size=size)
    assert found == rg.torch.Accumulation(turns=turns, batch=each)
    assert found.turns * found.batch * size == batch * workers


class Streamed(tud.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


class Own(tud.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([2, 1])

    def __len__(self) -> int:
        return 2


class Endless(tud.DataLoader[int]):
    def __iter__(self) -> Any:
        return iter(())


NUMBERS = Numbers(10)


@pytest.mark.parametrize(
    ("loader", "options", "said"),
    [
        (NUMBERS, {}, "rg.torch.shard takes a torch.utils.data.DataLoader, not Numbers"),
        (tud.DataLoader(Streamed()), {}, "an IterableDataset has neither a length nor an order"),
        (
            tud.DataLoader(NUMBERS, sampler=Own()),
            {},
            "the order of the loader's Own could not be drawn again after a restart; leave it",
        ),
        (
            tud.DataLoader(
                NUMBERS, sampler=tud.DistributedSampler(NUMBERS, num_replicas=1, rank=0)
            ),
            {},
            "the loader's DistributedSampler could not be drawn again after a restart; leave it out (shard divides the data among the",
        ),
        (
            tud.DataLoader(NUMBERS, batch_sampler=[[1], [2]]),
            {},
            "the loader has a batch_sampler of its own; give it a batch_size",
        ),
        (tud.DataLoader(NUMBERS, batch_size=None), {}, "the loader has batch_size=None"),
        (Endless(NUMBERS), {}, "Endless iterates in its own way"),
        (
            tud.DataLoader(NUMBERS, batch_size=12, drop_last=True),
            {},
            "the data has 10 samples, a step takes 12, and drop_last",
        ),
        (tud.DataLoader(NUMBERS), {"epoch": -1}, "epoch is -1; it is a whole number from 0 up"),
        (tud.DataLoader(NUMBERS), {"workers": 0}, "workers is 0; it is a number from 1 up"),
    ],
)
def test_a_loader_that_cannot_be_divided_is_told_in_one_line(
    loader: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        rg.torch.shard(loader, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_that_cannot_be_shared_is_told_in_one_line() -> None:
    with pytest.raises(
        UserError,
        match=r"3 workers cannot share a step of 16 samples \(4 workers with 4 each\) equally; choose a batch",
    ):
        shards(3, workers=4)


def test_other_data_than_was_saved_is_told_in_one_line() -> None:
    (rank,) = shards(1)
    with pytest.raises(UserError, match=r"the data has 50 samples, and had 60 when it was saved"):
        rank.load_state_dict({"epoch": 0, "position": 8, "seed": 0, "samples": 60})
    with pytest.raises(UserError, match="there are no parts"):
        rg.torch.accumulate(torch.nn.Linear(1, 1), [], lambda part: part)
