"""Who is who in a group: ranks on nodes, GPUs, and the variables that torchrun would set."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import zip_longest

from regrow.search.events import Place
from regrow.tasks.group.wire import Hello, Welcome
from regrow.tasks.ranks import World

DEVICES = "CUDA_VISIBLE_DEVICES"


def welcomes(hellos: Sequence[Hello], *, address: str, run: str) -> list[Welcome]:
    """What each rank is told, in the order of the ranks. `address`: rank 0's, at which torch.distributed meets; `run`: the
    attempt's name.

    Ranks of one node see each other's GPUs, each its own at its local rank, as torchrun has it and libraries expect.
    """
    nodes = list(dict.fromkeys(_node(hello) for hello in hellos))
    port = free_port(address)
    found: list[Welcome] = []
    for rank, hello in enumerate(hellos):
        mates = [number for number, other in enumerate(hellos) if _node(other) == _node(hello)]
        world = World(rank=rank, size=len(hellos), local_rank=mates.index(rank), local_size=len(mates))
        variables = {
            "RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": world.local_rank, "LOCAL_WORLD_SIZE": world.local_size,
            "GROUP_RANK": nodes.index(_node(hello)), "GROUP_WORLD_SIZE": len(nodes), "ROLE_RANK": world.rank,
            "ROLE_WORLD_SIZE": world.size, "MASTER_ADDR": address, "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": run,
        }
        own = {name: str(value) for name, value in variables.items()}
        if hello.devices:
            own[DEVICES] = ",".join(_devices([hellos[mate].devices.split(",") for mate in mates]))
        found.append(Welcome(world=world, variables=own))
    return found


def _devices(each: Sequence[Sequence[str]]) -> list[str]:
    """The GPUs of a node's ranks, so that each finds its first one at its local rank, also where it has several."""
    rounds = zip_longest(*each, fillvalue="")
    return list(dict.fromkeys(device for one in rounds for device in one if device))


def alone() -> dict[str, str]:
    """Torchrun's variables of a group of one, on this machine."""
    (welcome,) = welcomes([Hello(rank=0, place=Place("here"))], address="127.0.0.1", run="alone")
    return welcome.variables


def free_port(address: str) -> int:
    """One on which nobody listens now. It is the training's to take, so nothing can hold it until then."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _node(hello: Hello) -> str:
    return hello.place.node_id or hello.place.node
