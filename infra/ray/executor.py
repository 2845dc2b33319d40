"""Attempts on Ray workers: the Executor port over a cluster that this process is connected to.

An attempt is a task. One of several ranks, or with children, is a task for each rank in a placement group (`groups.py`).
"""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from regrow.infra.coordinator.actor import RayCoordinatorClient
from regrow.infra.machine.typed import Typed
from regrow.infra.ray import groups
from regrow.infra.ray.groups import Broken, Grouped, MemberLost
from regrow.infra.ray.host import RayHost
from regrow.infra.ray.joining import TRIAL_ENV
from regrow.infra.ray.nodes import MARKET_LABEL, Nodes
from regrow.search.needs import Bundle, Needs
from regrow.tasks import variables
from regrow.tasks.executor import AttemptLost, Carried
from regrow.tasks.group.door import GREET_SECONDS
from regrow.tasks.group.leader import FORM_SECONDS, Leader
from regrow.tasks.group.run_rank import run_rank
from regrow.tasks.group.wire import Wire
from regrow.tasks.messages import Assignment, CoordinatorGone, Job, Records
from regrow.tasks.names import task_name
from regrow.tasks.ports import Store
from regrow.tasks.ranks import GroupBroken
from regrow.tasks.run_trial import run_trial
from regrow.tasks.traces import one_line
from regrow.tasks.trainable import Frameworks

SPOT = "spot"
"""The label of an attempt that ran on a spot machine."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all attempts of a session get: what they are to do, and the ports to the world around them."""

    job: Job
    coordinator: RayCoordinatorClient
    store: Store
    records: Records | None = None
    frameworks: Frameworks | None = None
    typed: Typed = field(default_factory=lambda: Typed(variables={}))
    """What the workers of a cluster take over that was there before the command was typed."""
    host: RayHost = field(default_factory=RayHost)


class RayExecutor:
    """Sends each attempt to a worker of the cluster; its handles are Ray's references."""

    def __init__(self, shared: Shared, nodes: Nodes) -> None:
        # Travels with every message (some KB) rather than as an object of Ray's store: Ray asks the node that has a task's
        # arguments to place it. After a partition that is the node which was cut off, and the retry of the very trial that
        # was lost there would wait until Ray notices (65 s).
        self._shared = shared
        self._nodes = nodes

    def submit(self, assignment: Assignment, *, task_run: str, avoid: Sequence[str] = ()) -> Any:
        """See Executor."""
        selector = self._nodes.selector(
            assignment.needs, avoid_spot=assignment.avoid_spot, market=assignment.market, avoid=avoid
        )
        needs, name = assignment.needs, task_name(assignment.trial)
        if not self._shared.job.grouped:
            options = {"name": name, "label_selector": selector, **options_of(needs.of_node())}
            return _run.options(**options).remote(self._shared, assignment, task_run)
        handle = Grouped(group=groups.make(needs, name=name, selector=selector))
        ranks = needs.bundles[: len(needs.bundles) - needs.children]
        meeting = Meeting(key=groups.new_key(), size=len(ranks))
        for rank, bundle in enumerate(ranks):
            strategy = groups.place(handle.group, rank, children=needs.children > 0)
            called = f"{name}-rank-{rank}" if rank else name  # what `ps` shows
            options = {"name": called, "scheduling_strategy": strategy, **options_of(bundle, self._inherited(needs))}
            own = replace(self._shared, host=_host(self._shared.host, needs, rank))
            if rank == 0:
                handle.refs.append(_lead.options(**options).remote(own, assignment, task_run, meeting))
            else:
                handle.refs.append(_follow.options(**options).remote(own, assignment, task_run, meeting, rank))
        return handle

    def _inherited(self, needs: Needs) -> dict[str, str]:
        """Variables that a process is started with because what it starts itself is to have them: Ray hands them on."""
        return self._shared.typed.inherited() if needs.children else {}

    async def outcome(self, handle: Any) -> Carried:
        """See Executor."""
        try:
            carried: Carried = await (handle.outcome() if isinstance(handle, Grouped) else handle)
        except MemberLost as lost:
            raise _lost(lost) from None
        except ray.exceptions.OutOfMemoryError:
            raise AttemptLost("infrastructure", "the worker was killed: out of memory") from None
        except (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError):
            raise AttemptLost("preempted", "the node was lost") from None
        except ray.exceptions.WorkerCrashedError:
            raise AttemptLost("infrastructure", "the worker process died") from None
        except ray.exceptions.RayError as error:
            raise AttemptLost("infrastructure", f"its worker could not run it: {last_line(error)}") from error
        return carried

    def cancel(self, handle: Any) -> None:
        """See Executor."""
        if isinstance(handle, Grouped):
            handle.remove()
        else:
            ray.cancel(handle, force=True)


ASK_SECONDS = 10.0
"""For so long the coordinator is asked at a time where rank 0 is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What the ranks of one attempt know of each other beforehand: how many they are, and the key by which they know each
    other.
    """

    key: bytes
    size: int


@ray.remote(max_retries=0)
def _run(shared: Shared, assignment: Assignment, task_run: str) -> Carried:
    return _run_here(shared, assignment, task_run, None)


def _run_here(shared: Shared, assignment: Assignment, task_run: str, group: Leader | None) -> Carried:
    shared.typed.take_over()
    carried = run_trial(
        shared.job, assignment, shared.coordinator, shared.store, shared.host, shared.records, viewers=shared.coordinator,
        task_run=task_run, group=group, frameworks=shared.frameworks,
    )
    labels: dict[str, Any] = ray.get_runtime_context().get_node_labels()
    spot = [SPOT] if labels.get(MARKET_LABEL) == "spot" else []
    return replace(carried, labels=(f"node:{platform.node()}", *spot))


# max_calls: the process ends with the attempt, as it keeps some things for good (torch's process group, actors in globals).
@ray.remote(max_retries=0, max_calls=1)
def _lead(shared: Shared, assignment: Assignment, task_run: str, meeting: Meeting) -> Carried | Broken:
    """Rank 0 of an attempt in a placement group; the only one where the job has no workers but children."""
    if not shared.job.ranked:
        return _run_here(shared, assignment, task_run, None)
    place, address = shared.host.place(), ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # ray's
    leader = Leader(
        meeting.size, meeting.key, place=place, address=address, run=f"{task_run}-{assignment.attempt}",
        lease=shared.job.lease, stall=shared.job.stall, mean=shared.job.reduce_mean, devices=_devices(shared.host),
    )
    try:
        leader.form(lambda: _say(shared.coordinator, assignment, f"{address} {leader.port}"))
        variables.put(leader.variables)
        return _run_here(shared, assignment, task_run, leader)
    except GroupBroken as broken:
        elsewhere = broken.elsewhere(place, leader.places)
        return Broken(rank=broken.rank, why=broken.why, elsewhere=bool(elsewhere), silent=broken.silent)
    finally:
        leader.close()


@ray.remote(max_retries=0, max_calls=1)
def _follow(shared: Shared, assignment: Assignment, task_run: str, meeting: Meeting, rank: int) -> None:
    """A rank from 1 on."""
    shared.typed.take_over()

    def connect() -> Wire:
        deadline = time.monotonic() + FORM_SECONDS
        while not (found := shared.coordinator.meet(assignment.trial, assignment.attempt, timeout=ASK_SECONDS)):
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 is nowhere")
        address, _, port = found.rpartition(" ")
        wire = Wire(socket.create_connection((address, int(port)), timeout=GREET_SECONDS))
        wire.greet(meeting.key, first=True)
        return wire

    run_rank(
        shared.job, assignment, rank, connect, shared.store, shared.host, lease=shared.job.lease,
        devices=_devices(shared.host), viewers=shared.coordinator, task_run=task_run, records=shared.records,
    )


def _devices(host: RayHost) -> str:
    """The GPUs of this rank alone, as Ray has set them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "") if any("GPU" in bundle for bundle in host.bundles) else ""


def _say(coordinator: RayCoordinatorClient, assignment: Assignment, address: str) -> None:
    with suppress(CoordinatorGone):  # then the attempt learns that soon
        coordinator.meet(assignment.trial, assignment.attempt, address)


def _host(host: RayHost, needs: Needs, rank: int) -> RayHost:
    """What a rank has of the cluster; what children have is counted with the first's."""
    children = needs.children if rank == 0 else 0
    return replace(host, bundles=(needs.bundles[rank], *needs.bundles[len(needs.bundles) - children :]), children=children)


def _lost(lost: MemberLost) -> AttemptLost:
    """As the log counts it: by what Ray says of the rank; where that is nothing, a rank that was on another node went with it."""
    match lost.error:
        case ray.exceptions.OutOfMemoryError():
            return AttemptLost("infrastructure", f"rank {lost.rank}: the worker was killed: out of memory")
        case ray.exceptions.NodeDiedError() | ray.exceptions.LocalRayletDiedError():
            return AttemptLost("preempted", f"rank {lost.rank}: the node was lost")
        case ray.exceptions.WorkerCrashedError():
            return AttemptLost("infrastructure", f"rank {lost.rank}: the worker process died")
        case None:
            return AttemptLost("preempted" if lost.elsewhere else "infrastructure", lost.why)
        case other:
            return AttemptLost("infrastructure", f"rank {lost.rank}: its worker could not run it: {last_line(other)}")


def options_of(needed: Bundle, inherited: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What is needed on a node, as Ray's options of a task, in a process with these variables beside those of all trials."""
    all_of_it = dict(needed)
    own = {"num_cpus": all_of_it.pop("CPU", 0.0), "num_gpus": all_of_it.pop("GPU", 0.0)}
    memory = {"memory": int(all_of_it.pop("memory"))} if "memory" in all_of_it else {}
    env = {"env_vars": {**(inherited or {}), **TRIAL_ENV["env_vars"]}}
    return {**own, **memory, "resources": all_of_it, "runtime_env": env}


def last_line(error: Exception) -> str:
    """What is left to say where a task failed outside of the trial: Ray's text is a whole traceback, with colours."""
    lines = _COLOURS.sub("", str(error)).split("\n")
    return one_line(next((line for line in reversed(lines) if line.strip()), type(error).__name__))
