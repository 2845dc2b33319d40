"""torchrun's variables: who is who among the ranks of several nodes, and whose GPU is whose."""

from __future__ import annotations

import pytest

from regrow.search.events import Place
from regrow.tasks.group.wire import Hello
from regrow.tasks.group.world import alone, welcomes
from regrow.tasks.ports.ranks import World
from regrow.tasks.process.gpus import DEVICES


def hellos(*places: str, devices: tuple[str, ...] = ()) -> list[Hello]:
    """Ranks on nodes of these ids."""
    own = devices or ("",) * len(places)
    return [
        Hello(rank=rank, place=Place("host", node), devices=own[rank])
        for rank, node in enumerate(places)
    ]


def test_ranks_are_counted_over_all_nodes_and_on_each() -> None:
    found = welcomes(hellos("a", "b", "a", "b"), address="127.0.0.1", run="r")
    assert [one.world for one in found] == [
        World(0, 4, 0, 2),
        World(1, 4, 0, 2),
        World(2, 4, 1, 2),
        World(3, 4, 1, 2),
    ]
    variables = found[3].variables
    assert (
        variables["RANK"],
        variables["WORLD_SIZE"],
        variables["LOCAL_RANK"],
        variables["LOCAL_WORLD_SIZE"],
    ) == ("3", "4", "1", "2")
    assert (
        variables["GROUP_RANK"],
        variables["TORCHELASTIC_RUN_ID"],
        variables["MASTER_ADDR"],
    ) == ("1", "r", "127.0.0.1")
    assert len({one.variables["MASTER_PORT"] for one in found}) == 1
    assert all(DEVICES not in one.variables for one in found)


@pytest.mark.parametrize(
    ("devices", "seen"),
    [
        (("0", "1"), "0,1"),
        (("1", "0"), "1,0"),
        (("0,1", "2,3"), "0,2,1,3"),
        (("GPU-a,GPU-b", "GPU-c"), "GPU-a,GPU-c,GPU-b"),
    ],
)
def test_each_rank_finds_its_first_gpu_at_its_local_rank(
    devices: tuple[str, ...], seen: str
) -> None:
    found = welcomes(hellos("a", "a", devices=devices), address="127.0.0.1", run="r")
    assert [one.variables[DEVICES] for one in found] == [seen, seen]
    for one, own in zip(found, devices, strict=True):
        assert seen.split(",")[one.world.local_rank] == own.split(",")[0]


def test_gpus_of_other_nodes_are_not_seen() -> None:
    found = welcomes(hellos("a", "b", devices=("0", "0")), address="127.0.0.1", run="r")
    assert [one.variables[DEVICES] for one in found] == ["0", "0"]


def test_a_group_of_one_has_the_variables_too() -> None:
    variables = alone()
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["MASTER_ADDR"]) == (
        "0",
        "1",
        "127.0.0.1",
    )
