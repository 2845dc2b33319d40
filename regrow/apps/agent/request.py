"""What an agent is asked to do, and how its part ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from regrow.infra.clusters.clouds.own_fleet import OwnFleet
from regrow.infra.machine.ports import Ports
from regrow.infra.state.places import Places
from regrow.search.events import Status
from regrow.search.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Request:
    """What an agent is asked to do.

    Attributes:
        name: the experiment.
        places: where its state is.
        spec: its specification; None: it exists already.
        trials: another total of trials; None: the specification's.
        command: words of the command `regrow` with which a leader runs it.
        retry_failed: whether the next session tries failed trials again, whoever leads it.
        stopped: whether an experiment that was stopped by its user is continued.
        cpus: CPUs for trials; None: all that this process may use.
        labels: further labels of its node.
        address: its machine's address, as the others reach it; None: found out.
        ports: its ports; None: any free ones.
        ends: when its machine ends, seconds since the epoch; None: unknown.
        leads: whether it may lead.
        works: whether trials run here.
        fleet: of its machine, if machines of it come on need; None: of none.
        idle: seconds without a trial after which it leaves, once none is left for its machine;
            None: it stays.

    """

    name: str
    places: Places
    spec: Spec | None
    trials: int | None
    command: tuple[str, ...]
    retry_failed: bool = False
    stopped: bool = False
    cpus: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    ports: Ports | None = None
    ends: float | None = None
    leads: bool = True
    works: bool = True
    fleet: OwnFleet | None = None
    idle: float | None = None


@dataclass(frozen=True, kw_only=True)
class AgentEnd:
    """How an agent's part ended.

    Attributes:
        why: for people.
        status: how the experiment ended; None: this agent leaves before that.
        needed: whether its machine may be needed again.

    """

    why: str
    status: Status | None = None
    needed: bool = True


def ended(name: str, status: Status) -> str:
    """Return the end of an experiment for people: "digits has finished", "digits was stopped"."""
    return f"{name} has {status}" if status in ("finished", "failed") else f"{name} was {status}"
