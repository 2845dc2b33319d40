"""Attempts on Ray workers: the Executor port over a cluster that this process is connected to.

An attempt is a task. An attempt with several ranks, or with children, is one task per rank in a
placement group (`groups.py`).
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
from typing import Any, Protocol

import ray
from ray.util.placement_group import PlacementGroup

from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.ray import groups
from regrow.infra.ray.groups import Broken, Grouped, MemberLost
from regrow.infra.ray.host import RayHost
from regrow.infra.ray.joining import TRIAL_ENV
from regrow.infra.ray.nodes import MARKET_LABEL, Nodes
from regrow.search.needs import Bundle, Needs
from regrow.tasks.attempt.run_trial import run_trial
from regrow.tasks.group.leader import FORM_SECONDS, Leader
from regrow.tasks.group.run_rank import run_rank
from regrow.tasks.group.wire import Wire
from regrow.tasks.output.traces import one_line
from regrow.tasks.ports.executor import AttemptLost, ExecutionResult
from regrow.tasks.ports.messages import (
    Assignment,
    CoordinatorClient,
    CoordinatorGone,
    Job,
    Records,
    Viewers,
)
from regrow.tasks.ports.ranks import GroupBroken
from regrow.tasks.ports.store import Store
from regrow.tasks.process import cgroup, variables
from regrow.tasks.process.connecting import GREET_SECONDS
from regrow.tasks.trial.names import task_name

SPOT = "spot"
"""Label of an attempt that ran on a spot machine."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Coordinator(CoordinatorClient, Viewers, Protocol):
    """The coordinator's interface for attempts on any node."""

    def meet(self, trial: int, attempt: int, address: str = "", *, timeout: float = 0.0) -> str:
        """Return the address of an attempt's rank 0, "" if it is not known within `timeout`
        seconds. Rank 0 passes its own `address` to publish it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all attempts of a session get: the job, and the ports to their environment."""

    job: Job
    coordinator: Coordinator
    store: Store
    records: Records | None = None
    typed: CallerContext = field(default_factory=lambda: CallerContext(variables={}))
    """Working folder and variables for a cluster's workers that were started before the user's
    command.
    """
    host: RayHost = field(default_factory=RayHost)


class RayExecutor:
    """Sends each attempt to a worker of the cluster. Its handles are Ray's references, or
    Grouped.
    """

    def __init__(self, shared: Shared, nodes: Nodes) -> None:
        # Sent with every message (some KB) instead of being an object in Ray's store: Ray asks the
        # node that holds a task's arguments to place it. After a partition that would be the
        # disconnected node, and the retry of the trial that was lost there would wait until Ray
        # notices (65 s).
        self._shared = shared
        self._nodes = nodes
        self._killed = cgroup.Killed()
        """Out-of-memory kills in this process's control group, which a local cluster's workers
        share.
        """

    def submit(self, assignment: Assignment, *, task_run: str, avoid: Sequence[str] = ()) -> Any:
        """See Executor."""
        selector = self._nodes.selector(
            assignment.needs,
            avoid_spot=assignment.avoid_spot,
            market=assignment.market,
            avoid=avoid,
        )
        needs, name = assignment.needs, task_name(assignment.trial)
        if not self._shared.job.grouped:
            options = {"name": name, "label_selector": selector, **options_of(needs.of_node())}
            return _run.options(**options).remote(self._shared, assignment, task_run)
        handle = Grouped(group=_placed(needs, name=name, selector=selector))
        ranks = needs.bundles[: len(needs.bundles) - needs.children]
        meeting = Meeting(key=groups.new_key(), size=len(ranks))
        for rank, bundle in enumerate(ranks):
            strategy = groups.place(handle.group, rank, children=needs.children > 0)
            called = f"{name}-rank-{rank}" if rank else name  # shown by `ps`
            options = {
                "name": called,
                "scheduling_strategy": strategy,
                **options_of(bundle, self._inherited(needs)),
            }
            own = replace(self._shared, host=_host(self._shared.host, needs, rank))
            if rank == 0:
                handle.refs.append(
                    _lead.options(**options).remote(own, assignment, task_run, meeting)
                )
            else:
                handle.refs.append(
                    _follow.options(**options).remote(own, assignment, task_run, meeting, rank)
                )
        return handle

    def _inherited(self, needs: Needs) -> dict[str, str]:
        """Return variables for a rank's process that its children must have too: Ray passes them
        on.
        """
        return self._shared.typed.inherited() if needs.children else {}

    async def outcome(self, handle: Any) -> ExecutionResult:
        """See Executor."""
        try:
            carried: ExecutionResult = await (
                handle.outcome() if isinstance(handle, Grouped) else handle
            )
        except MemberLost as lost:
            raise self._lost(lost) from None
        except ray.exceptions.OutOfMemoryError:
            raise AttemptLost("infrastructure", "the worker was killed: out of memory") from None
        except (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError):
            raise AttemptLost("preempted", "the node was lost") from None
        except ray.exceptions.WorkerCrashedError:
            raise AttemptLost("infrastructure", self._died()) from None
        except ray.exceptions.RayError as error:
            raise AttemptLost(
                "infrastructure", f"its worker could not run it: {last_line(error)}"
            ) from error
        return carried

    def _died(self) -> str:
        """Explain the death of a worker for which Ray gives no reason."""
        memory = self._killed.lately()
        return f"the worker was killed: {memory}" if memory else "the worker process died"

    def _lost(self, lost: MemberLost) -> AttemptLost:
        """Map Ray's error of a lost rank to the log's loss cause. Without an error, a rank on
        another node counts as lost with its node.
        """
        match lost.error:
            case ray.exceptions.OutOfMemoryError():
                return AttemptLost(
                    "infrastructure", f"rank {lost.rank}: the worker was killed: out of memory"
                )
            case ray.exceptions.NodeDiedError() | ray.exceptions.LocalRayletDiedError():
                return AttemptLost("preempted", f"rank {lost.rank}: the node was lost")
            case ray.exceptions.WorkerCrashedError():
                return AttemptLost("infrastructure", f"rank {lost.rank}: {self._died()}")
            case None:
                memory = "" if lost.elsewhere else self._killed.lately()
                why = f"{lost.why}: {memory}" if memory else lost.why
                return AttemptLost("preempted" if lost.elsewhere else "infrastructure", why)
            case other:
                return AttemptLost(
                    "infrastructure",
                    f"rank {lost.rank}: its worker could not run it: {last_line(other)}",
                )

    def cancel(self, handle: Any) -> None:
        """See Executor."""
        if isinstance(handle, Grouped):
            handle.remove()
        else:
            ray.cancel(handle, force=True)


def _placed(needs: Needs, *, name: str, selector: dict[str, str] | None) -> PlacementGroup:
    """Return the placement group of an attempt. Raises AttemptLost if Ray refuses it."""
    try:
        return groups.make(needs, name=name, selector=selector)
    except ray.exceptions.RayError as error:
        raise AttemptLost(
            "infrastructure", f"its processes have no place: {last_line(error)}"
        ) from error


ASK_SECONDS = 10.0
"""Seconds for which one request to the coordinator waits for the address of rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What the ranks of one attempt know beforehand: their number, and the key with which they
    authenticate each other.
    """

    key: bytes
    size: int


@ray.remote(max_retries=0)
def _run(shared: Shared, assignment: Assignment, task_run: str) -> ExecutionResult:
    return _run_here(shared, assignment, task_run, None)


def _run_here(
    shared: Shared, assignment: Assignment, task_run: str, group: Leader | None
) -> ExecutionResult:
    shared.typed.take_over()
    carried = run_trial(
        shared.job,
        assignment,
        shared.coordinator,
        shared.store,
        shared.host,
        shared.records,
        viewers=shared.coordinator,
        task_run=task_run,
        group=group,
    )
    labels: dict[str, Any] = ray.get_runtime_context().get_node_labels()
    spot = [SPOT] if labels.get(MARKET_LABEL) == "spot" else []
    return replace(carried, labels=(f"node:{platform.node()}", *spot))


# max_calls: the process ends with the attempt, as some of its state is permanent (torch's process
# group, actors in globals).
@ray.remote(max_retries=0, max_calls=1)
def _lead(
    shared: Shared, assignment: Assignment, task_run: str, meeting: Meeting
) -> ExecutionResult | Broken:
    """Run rank 0 of an attempt in a placement group. It is the only rank if the job has children
    but no workers.
    """
    if not shared.job.ranked:
        return _run_here(shared, assignment, task_run, None)
    place, address = shared.host.place(), ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # ray's
    leader = Leader(
        meeting.size,
        meeting.key,
        place=place,
        address=address,
        run=f"{task_run}-{assignment.attempt}",
        lease=shared.job.lease,
        stall=shared.job.stall,
        mean=shared.job.reduce_mean,
        devices=_devices(shared.host),
    )
    try:
        leader.form(lambda: _say(shared.coordinator, assignment, f"{address} {leader.port}"))
        variables.put(leader.variables)
        return _run_here(shared, assignment, task_run, leader)
    except GroupBroken as broken:
        elsewhere = broken.elsewhere(place, leader.places)
        return Broken(
            rank=broken.rank, why=broken.why, elsewhere=bool(elsewhere), silent=broken.silent
        )
    finally:
        leader.close()


@ray.remote(max_retries=0, max_calls=1)
def _follow(
    shared: Shared, assignment: Assignment, task_run: str, meeting: Meeting, rank: int
) -> None:
    """Run a rank other than 0."""
    shared.typed.take_over()

    def connect() -> Wire:
        deadline = time.monotonic() + FORM_SECONDS
        while not (
            found := shared.coordinator.meet(
                assignment.trial, assignment.attempt, timeout=ASK_SECONDS
            )
        ):
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 is nowhere")
        address, _, port = found.rpartition(" ")
        wire = Wire(socket.create_connection((address, int(port)), timeout=GREET_SECONDS))
        wire.greet(meeting.key, first=True)
        return wire

    run_rank(
        shared.job,
        assignment,
        rank,
        connect,
        shared.store,
        shared.host,
        lease=shared.job.lease,
        devices=_devices(shared.host),
        viewers=shared.coordinator,
        task_run=task_run,
        records=shared.records,
    )


def _devices(host: RayHost) -> str:
    """Return the GPUs of this rank only, as Ray has set them."""
    return (
        os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if any("GPU" in bundle for bundle in host.bundles)
        else ""
    )


def _say(coordinator: Coordinator, assignment: Assignment, address: str) -> None:
    with suppress(CoordinatorGone):  # the attempt will notice soon
        coordinator.meet(assignment.trial, assignment.attempt, address)


def _host(host: RayHost, needs: Needs, rank: int) -> RayHost:
    """Return a rank's host with its part of the placement group; the children's part belongs to
    rank 0.
    """
    children = needs.children if rank == 0 else 0
    return replace(
        host,
        bundles=(needs.bundles[rank], *needs.bundles[len(needs.bundles) - children :]),
        children=children,
    )


def options_of(needed: Bundle, inherited: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return Ray's task options for the resources needed on a node. `inherited`: variables of the
    process beyond those of all trials.
    """
    all_of_it = dict(needed)
    own = {"num_cpus": all_of_it.pop("CPU", 0.0), "num_gpus": all_of_it.pop("GPU", 0.0)}
    memory = {"memory": int(all_of_it.pop("memory"))} if "memory" in all_of_it else {}
    env = {"env_vars": {**(inherited or {}), **TRIAL_ENV["env_vars"]}}
    return {**own, **memory, "resources": all_of_it, "runtime_env": env}


def last_line(error: Exception) -> str:
    """Return the last line of an error outside the trial's code: Ray's text is a whole traceback,
    with colours.
    """
    lines = _COLOURS.sub("", str(error)).split("\n")
    return one_line(next((line for line in reversed(lines) if line.strip()), type(error).__name__))
