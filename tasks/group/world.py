"""Layout of a group: ranks on nodes, GPUs, and the variables that torchrun would set."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import zip_longest

from regrow.search.events import Place
from regrow.tasks.group.wire import Hello, Welcome
from regrow.tasks.ports.ranks import World
from regrow.tasks.process.gpus import DEVICES


def welcomes(hellos: Sequence[Hello], *, address: str, run: str) -> list[Welcome]:
    """Return the Welcome of each rank, in the order of the ranks.

    Ranks on one node see each other's GPUs, each with its own at its local rank: as under torchrun,
    and as libraries expect. `address`: rank 0's, at which torch.distributed meets.
    """
    nodes = list(dict.fromkeys(hello.node for hello in hellos))
    port = free_port(address)
    found: list[Welcome] = []
    for rank, hello in enumerate(hellos):
        mates = [number for number, other in enumerate(hellos) if other.node == hello.node]
        world = World(
            rank=rank, size=len(hellos), local_rank=mates.index(rank), local_size=len(mates)
        )
        variables = {
            "RANK": world.rank,
            "WORLD_SIZE": world.size,
            "LOCAL_RANK": world.local_rank,
            "LOCAL_WORLD_SIZE": world.local_size,
            "GROUP_RANK": nodes.index(hello.node),
            "GROUP_WORLD_SIZE": len(nodes),
            "ROLE_RANK": world.rank,
            "ROLE_WORLD_SIZE": world.size,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": run,
        }
        own = {name: str(value) for name, value in variables.items()}
        if hello.devices:
            own[DEVICES] = ",".join(_devices([hellos[mate].devices.split(",") for mate in mates]))
        found.append(Welcome(world=world, variables=own))
    return found


def _devices(each: Sequence[Sequence[str]]) -> list[str]:
    """Order a node's GPUs so that each rank's first is at its local rank, even of several."""
    rounds = zip_longest(*each, fillvalue="")
    return list(dict.fromkeys(device for one in rounds for device in one if device))


def alone() -> dict[str, str]:
    """Return torchrun's variables for a group of one, on this machine."""
    (welcome,) = welcomes([Hello(rank=0, place=Place("here"))], address="127.0.0.1", run="alone")
    return welcome.variables


def free_port(address: str) -> int:
    """Return a port that is free now. The training binds it later: it is not reserved."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
