"""The driver's hands: submits attempts as Prefect task runs on Ray, and says what became of those that end without a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import ray
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import ObjectNotFound

from regrow.infra.joining import TRIAL_ENV
from regrow.infra.task_runner import TrialTaskRunner, await_retry, settle
from regrow.search.events import Cause
from regrow.search.spec import Resources
from regrow.tasks.messages import Assignment
from regrow.tasks.names import task_name, task_run_id
from regrow.tasks.run_trial import run_trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A task run that ended: the lease that it was submitted with, and what to call its loss if it did not report one."""

    task_run: str
    trial: int
    attempt: int
    cause: Cause
    message: str


class Attempts:
    """The attempts that this driver submitted and that have not ended. `shared` goes to every task run."""

    def __init__(
        self, *, runner: TrialTaskRunner, client: SyncPrefectClient, flow_run_id: UUID, experiment_id: str, resources: Resources,
        shared: dict[str, Any],
    ) -> None:
        self._runner, self._client, self._shared = runner, client, shared
        self._flow_run_id, self._experiment_id = flow_run_id, experiment_id
        self._options: dict[str, Any] = {
            "num_cpus": resources.cpu, "num_gpus": resources.gpu, "resources": resources.custom, "runtime_env": dict(TRIAL_ENV),
        }
        if resources.memory:
            self._options["memory"] = resources.memory
        self._submitted: set[tuple[int, int]] = set()
        self._task_runs: set[UUID] = set()
        self.running: dict[Any, tuple[UUID, Assignment]] = {}
        """Ray's reference of each task run under way."""

    def submit(self, assignment: Assignment) -> None:
        """Submits an attempt, once. A further attempt of a trial is a retry of the same task run."""
        lease = assignment.trial, assignment.attempt
        if lease in self._submitted:
            return
        self._submitted.add(lease)
        run_id = task_run_id(self._experiment_id, assignment.trial)
        previous = None
        if assignment.attempt > 1:
            previous = self._previous(run_id, assignment)
        ref = self._runner.submit_run(
            run_trial, {**self._shared, "assignment": assignment}, task_run_id=run_id, name=task_name(assignment.trial),
            previous=previous, options=self._options,
        )
        self._task_runs.add(run_id)
        self.running[ref] = run_id, assignment

    def _previous(self, run_id: UUID, assignment: Assignment) -> TaskRun | None:
        """The task run of earlier attempts, told to wait for this one; None if Prefect has none (they shared another's)."""
        start = "from its last checkpoint" if assignment.checkpoints else "from the start"
        patience = 10.0 if run_id in self._task_runs else 0.0
        try:
            return await_retry(
                self._client, run_id, f"attempt {assignment.attempt} goes on {start}",
                attempts=assignment.attempt - 1, seconds=patience,
            )
        except ObjectNotFound:
            return None

    def finished(self, ref: Any) -> Gone:
        """Takes an ended task run out. What it says counts only if the attempt itself did not tell how it ended."""
        run_id, assignment = self.running.pop(ref)
        cause: Cause = "infrastructure"
        try:
            message = f"its task run ended without telling how: {ray.get(ref)}"
        except ray.exceptions.OutOfMemoryError:
            message = "the worker was killed: out of memory"
        except (ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError):
            cause, message = "preempted", "the node was lost"
        except ray.exceptions.WorkerCrashedError:
            message = "the worker process was killed"
        except ray.exceptions.RayError as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
        return Gone(
            task_run=str(run_id), trial=assignment.trial, attempt=assignment.attempt, cause=cause, message=message
        )

    def cancel(self) -> None:
        """Kills what still runs."""
        for ref in self.running:
            ray.cancel(ref, force=True)

    def settle(self) -> None:
        """Waits, within bounds, until Prefect has seen the end of every task run."""
        if self.running:
            ray.wait(list(self.running), num_returns=len(self.running), timeout=10.0)
        settle(self._client, self._flow_run_id, self._task_runs)
