"""Attempts on Ray workers: the Executor port over a cluster that this process is connected to.

An attempt is a task. An attempt with several ranks, or with children, is one task per rank in a
placement group (`groups.py`).
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.ray import groups, private
from regrow.infra.ray.groups import Broken, Grouped, MemberLost
from regrow.infra.ray.host import RayHost
from regrow.infra.ray.joining import TRIAL_ENV
from regrow.infra.ray.labels import MARKET_LABEL
from regrow.infra.ray.nodes import Nodes
from regrow.search.needs import Bundle
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
    Shared,
    Viewers,
)
from regrow.tasks.ports.ranks import GroupBroken
from regrow.tasks.process import background, cgroup, variables
from regrow.tasks.process.connecting import GREET_SECONDS
from regrow.tasks.process.restored import CHANGED
from regrow.tasks.trial.names import task_name

SPOT = "spot"
"""Label of an attempt that ran on a spot machine."""
KEY_BYTES = 32
"""Bytes of the key with which the ranks of one attempt authenticate each other."""
SPOILED_SECONDS = 0.5
"""Seconds for which a process lives on after an attempt that it could not run."""
SPOILED_EXIT = 70
"""Exit code of such a process (EX_SOFTWARE)."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class AttemptCoordinator(CoordinatorClient, Viewers, Protocol):
    """The coordinator's interface for attempts on any node."""

    def connect(self) -> None:
        """Open the connection, so that the trainable cannot prevent it."""

    def meet(self, trial: int, attempt: int, address: str = "", *, timeout: float = 0.0) -> str:
        """Return the address of an attempt's rank 0, "" if it is not known within `timeout`
        seconds. Rank 0 passes its own `address` to publish it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RayShared(Shared):
    """What all attempts of a session share on Ray."""

    coordinator: AttemptCoordinator
    host: RayHost = field(default_factory=RayHost)
    typed: CallerContext = field(default_factory=lambda: CallerContext(variables={}))
    """Folder and variables for workers that were started before the user's command."""


class RayExecutor:
    """Sends each attempt to a worker. Its handles are Ray's references, or Grouped."""

    def __init__(self, shared: RayShared, nodes: Nodes) -> None:
        # Sent with every message (some KB) instead of being an object in Ray's store: Ray asks the
        # node that holds a task's arguments to place it. After a partition that would be the
        # disconnected node, and the retry of the trial that was lost there would wait until Ray
        # notices (65 s).
        self._shared = shared
        self._nodes = nodes
        self._killed = cgroup.Killed()
        """Out-of-memory kills in our control group, which a local cluster's workers share."""

    def submit(self, assignment: Assignment, *, task_run: str, avoid: Sequence[str] = ()) -> Any:
        """See Executor."""
        needs, name, market = assignment.needs, task_name(assignment.trial), assignment.market
        selector = self._nodes.selector(
            needs, avoid_spot=assignment.avoid_spot, market=market, avoid=avoid
        )
        if not self._shared.job.spec.resources.grouped:
            options = {"name": name, "label_selector": selector, **options_of(needs.of_node())}
            return _run.options(**options).remote(self._shared, assignment, task_run)
        try:
            handle = Grouped(group=groups.make(needs, name=name, selector=selector))
        except ray.exceptions.RayError as error:
            why = f"its processes have no place: {last_line(error)}"
            raise AttemptLost("infrastructure", why) from error
        children = needs.bundles[len(needs.bundles) - needs.children :]
        ranks = needs.bundles[: len(needs.bundles) - needs.children]
        # Ray passes the variables of a rank's process on to its children.
        inherited = self._shared.typed.inherited() if children else {}
        key = secrets.token_bytes(KEY_BYTES)
        for rank, bundle in enumerate(ranks):
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=handle.group,
                placement_group_bundle_index=rank,
                # what it starts goes into the group as well, unless it chooses otherwise
                placement_group_capture_child_tasks=bool(children),
            )
            called = f"{name}-rank-{rank}" if rank else name  # shown by `ps`
            options = {"name": called, "scheduling_strategy": strategy}
            options |= options_of(bundle, inherited)
            theirs = () if rank else children  # the children's part of the group is rank 0's
            host = replace(self._shared.host, bundles=(bundle, *theirs), children=len(theirs))
            own = replace(self._shared, host=host)
            ref: Any
            if rank:
                ref = _follow.options(**options).remote(own, assignment, task_run, key, rank)
            else:
                ref = _lead.options(**options).remote(own, assignment, task_run, key, len(ranks))
            handle.refs.append(ref)
        return handle

    async def outcome(self, handle: Any) -> ExecutionResult:
        """See Executor."""
        try:
            carried: ExecutionResult = await (
                handle.outcome() if isinstance(handle, Grouped) else handle
            )
        except MemberLost as lost:
            if lost.error is not None:
                raise self._loss(lost.error, f"rank {lost.rank}: ") from None
            # a rank on another node counts as lost with its node
            memory = "" if lost.elsewhere else self._killed.lately()
            why = f"{lost.why}: {memory}" if memory else lost.why
            raise AttemptLost("preempted" if lost.elsewhere else "infrastructure", why) from None
        except ray.exceptions.RayError as error:
            raise self._loss(error) from error
        return carried

    def _loss(self, error: Exception, who: str = "") -> AttemptLost:
        """Map Ray's error for a process of an attempt to the log's cause of a loss."""
        match error:
            case ray.exceptions.OutOfMemoryError():
                why = "the worker was killed: out of memory"
            case ray.exceptions.NodeDiedError() | ray.exceptions.LocalRayletDiedError():
                return AttemptLost("preempted", f"{who}the node was lost")
            case ray.exceptions.WorkerCrashedError():  # Ray gives no reason
                memory = self._killed.lately()
                why = f"the worker was killed: {memory}" if memory else "the worker process died"
            case _:
                why = f"its worker could not run it: {last_line(error)}"
        return AttemptLost("infrastructure", f"{who}{why}")

    def cancel(self, handle: Any) -> None:
        """See Executor."""
        if isinstance(handle, Grouped):
            handle.remove()
        else:
            ray.cancel(handle, force=True)


ASK_SECONDS = 10.0
"""Seconds for which one request to the coordinator waits for the address of rank 0."""


_spoiled = threading.Event()
"""Set in a process that could not run an attempt."""


@ray.remote(max_retries=0, max_calls=private.MOST_CALLS)
def _run(shared: RayShared, assignment: Assignment, task_run: str) -> ExecutionResult:
    return _run_or_leave(shared, assignment, task_run)


def _run_or_leave(shared: RayShared, assignment: Assignment, task_run: str) -> ExecutionResult:
    """Run an attempt. A process that cannot ends soon after, as it would lose each further one: an
    earlier trial has left it without open files, or has replaced what we call.
    """
    if _spoiled.is_set():  # Ray was faster than the end below
        os._exit(SPOILED_EXIT)
    try:
        result = _run_here(shared, assignment, task_run, None)
        if CHANGED.is_set():
            private.leave_after_task()
        return result
    except BaseException:
        _spoiled.set()
        try:
            background.start(_leave_late, name="spoiled")
        except RuntimeError:  # no thread can be started
            os._exit(SPOILED_EXIT)
        raise


def _leave_late() -> None:
    """End this process once Ray has passed the error of its task on, which it would lose."""
    time.sleep(SPOILED_SECONDS)
    os._exit(SPOILED_EXIT)


def _run_here(
    shared: RayShared, assignment: Assignment, task_run: str, group: Leader | None
) -> ExecutionResult:
    shared.typed.take_over()
    shared.coordinator.connect()
    carried = run_trial(
        shared, assignment, viewers=shared.coordinator, task_run=task_run, group=group
    )
    labels: dict[str, Any] = ray.get_runtime_context().get_node_labels()
    spot = [SPOT] if labels.get(MARKET_LABEL) == "spot" else []
    return replace(carried, labels=(f"node:{platform.node()}", *spot))


# max_calls: the process ends with the attempt, as some of its state is permanent (torch's process
# group, actors in globals).
@ray.remote(max_retries=0, max_calls=1)
def _lead(
    shared: RayShared, assignment: Assignment, task_run: str, key: bytes, size: int
) -> ExecutionResult | Broken:
    """Run rank 0 of an attempt in a placement group. It is the only rank if the job has children
    but no workers. `key`: the ranks authenticate each other with it. `size`: number of ranks.
    """
    if not shared.job.spec.resources.ranked:
        return _run_here(shared, assignment, task_run, None)
    place, address = shared.host.place(), ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # ray's
    leader = Leader(
        size,
        key,
        place=place,
        address=address,
        run=f"{task_run}-{assignment.attempt}",
        lease=shared.job.spec.lease,
        stall=shared.job.spec.stall,
        mean=shared.job.spec.resources.reduce == "mean",
        devices=shared.host.gpus(),
    )

    def publish() -> None:
        with suppress(CoordinatorGone):  # the attempt will notice soon
            place = f"{address} {leader.port}"
            shared.coordinator.meet(assignment.trial, assignment.attempt, place)

    try:
        leader.form(publish)
        variables.put(leader.variables)
        return _run_here(shared, assignment, task_run, leader)
    except GroupBroken as broken:
        elsewhere = bool(broken.elsewhere(place, leader.places))
        return Broken(rank=broken.rank, why=broken.why, elsewhere=elsewhere, silent=broken.silent)
    finally:
        leader.close()


@ray.remote(max_retries=0, max_calls=1)
def _follow(
    shared: RayShared, assignment: Assignment, task_run: str, key: bytes, rank: int
) -> None:
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
        wire.greet(key, first=True)
        return wire

    run_rank(
        shared,
        assignment,
        rank,
        connect,
        devices=shared.host.gpus(),
        viewers=shared.coordinator,
        task_run=task_run,
    )


def options_of(needed: Bundle, inherited: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return Ray's options for needs of a node, and variables beyond those of all trials."""
    all_of_it = dict(needed)
    own = {"num_cpus": all_of_it.pop("CPU", 0.0), "num_gpus": all_of_it.pop("GPU", 0.0)}
    memory = {"memory": int(all_of_it.pop("memory"))} if "memory" in all_of_it else {}
    env = {"env_vars": {**(inherited or {}), **TRIAL_ENV["env_vars"]}}
    return {**own, **memory, "resources": all_of_it, "runtime_env": env}


def last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, whose text is a traceback with colours."""
    lines = _COLOURS.sub("", str(error)).split("\n")
    return one_line(next((line for line in reversed(lines) if line.strip()), type(error).__name__))
