"""Attempts on Ray workers: the Executor port over a cluster that this process is connected to."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from regrow.infra.coordinator.actor import RayCoordinatorClient
from regrow.infra.machine.typed import Typed
from regrow.infra.ray.host import RayHost
from regrow.infra.ray.joining import TRIAL_ENV
from regrow.infra.ray.nodes import MARKET_LABEL, Nodes
from regrow.search.needs import Needs
from regrow.tasks.executor import AttemptLost, Carried
from regrow.tasks.messages import Assignment, Job, Records
from regrow.tasks.names import task_name
from regrow.tasks.ports import Store
from regrow.tasks.run_trial import run_trial
from regrow.tasks.traces import one_line

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
        options = {"name": task_name(assignment.trial), "label_selector": selector, **options_of(assignment.needs)}
        return _run.options(**options).remote(self._shared, assignment, task_run)

    async def outcome(self, handle: Any) -> Carried:
        """See Executor."""
        try:
            carried: Carried = await handle
        except ray.exceptions.OutOfMemoryError:
            raise AttemptLost("infrastructure", "the worker was killed: out of memory") from None
        except (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError):
            raise AttemptLost("preempted", "the node was lost") from None
        except ray.exceptions.WorkerCrashedError:
            raise AttemptLost("infrastructure", "the worker process was killed") from None
        except ray.exceptions.RayError as error:
            raise AttemptLost("infrastructure", f"its worker could not run it: {last_line(error)}") from error
        return carried

    def cancel(self, handle: Any) -> None:
        """See Executor."""
        ray.cancel(handle, force=True)


@ray.remote(max_retries=0)
def _run(shared: Shared, assignment: Assignment, task_run: str) -> Carried:
    shared.typed.take_over()
    carried = run_trial(
        shared.job, assignment, shared.coordinator, shared.store, shared.host, shared.records, viewers=shared.coordinator,
        task_run=task_run,
    )
    labels: dict[str, Any] = ray.get_runtime_context().get_node_labels()
    spot = [SPOT] if labels.get(MARKET_LABEL) == "spot" else []
    return replace(carried, labels=(f"node:{platform.node()}", *spot))


def options_of(needs: Needs) -> dict[str, Any]:
    """What an attempt needs, as Ray's options of a task: a task is on one node, where all its bundles lie."""
    all_of_it = needs.of_node()
    own = {"num_cpus": all_of_it.pop("CPU", 0.0), "num_gpus": all_of_it.pop("GPU", 0.0)}
    memory = {"memory": int(all_of_it.pop("memory"))} if "memory" in all_of_it else {}
    return {**own, **memory, "resources": all_of_it, "runtime_env": dict(TRIAL_ENV)}


def last_line(error: Exception) -> str:
    """What is left to say where a task failed outside of the trial: Ray's text is a whole traceback, with colours."""
    lines = _COLOURS.sub("", str(error)).split("\n")
    return one_line(next((line for line in reversed(lines) if line.strip()), type(error).__name__))
