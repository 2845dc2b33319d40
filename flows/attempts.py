"""The driver's hands: submits attempts as Prefect task runs on Ray, and says what became of those that end without a word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import ray
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Cancelled, Completed, Failed

from regrow.infra.joining import TRIAL_ENV
from regrow.infra.nodes import Nodes
from regrow.infra.prefect_server import answers
from regrow.infra.task_runner import TrialTaskRunner
from regrow.infra.task_runs import await_retry, mend, settle, unfinished
from regrow.search.events import Cause
from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.search.spec_parts import Resources
from regrow.tasks.messages import Assignment
from regrow.tasks.names import settings, task_name, task_run_id, task_tags
from regrow.tasks.run_trial import run_trial
from regrow.tasks.traces import one_line

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


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
        nodes: Nodes, shared: dict[str, Any],
    ) -> None:
        self._nodes = nodes
        self._runner, self._client, self._shared = runner, client, shared
        self._flow_run_id, self._experiment_id = flow_run_id, experiment_id
        self._resources = resources
        self.wanted = resources.wanted()
        """What an attempt of one slot needs, for slots_for and its kin."""
        self._submitted: set[tuple[int, int]] = set()
        self._task_runs: set[UUID] = set()
        self.running: dict[Any, tuple[UUID, Assignment]] = {}
        """Ray's reference of each task run under way."""

    def submit(self, assignment: Assignment, *, avoid: Sequence[str] = ()) -> None:
        """Submits an attempt, once, rather not to the nodes `avoid`. A further attempt of a trial is its task run's retry."""
        lease = assignment.trial, assignment.attempt
        if lease in self._submitted:
            return
        self._submitted.add(lease)
        run_id = task_run_id(self._experiment_id, assignment.trial)
        previous = None
        if assignment.attempt > 1:
            previous = self._previous(run_id, assignment)
        wanted = self._resources.wanted(assignment.width)
        selector = self._nodes.selector(wanted, avoid_spot=assignment.avoid_spot, avoid=avoid)
        options = {**_options(self._resources, assignment.width), "label_selector": selector}
        ref = self._runner.submit_run(
            run_trial, {**self._shared, "assignment": assignment}, task_run_id=run_id, name=task_name(assignment.trial),
            tags=task_tags(assignment.trial, assignment.attempt), message=settings(assignment.config),
            previous=previous, options=options,
        )
        self._task_runs.add(run_id)
        self.running[ref] = run_id, assignment

    def _previous(self, run_id: UUID, assignment: Assignment) -> TaskRun | None:
        """The task run of earlier attempts, told to wait for this one; None if Prefect has none (they shared another's)."""
        patience = 10.0 if run_id in self._task_runs else 0.0
        if not answers(str(self._client.api_url), 0.0):
            return self._as_it_would_be(run_id, assignment)
        try:
            return await_retry(
                self._client, run_id, assignment.story,
                attempts=assignment.attempt - 1, seconds=patience,
            )
        except ObjectNotFound:
            return None
        except httpx.HTTPError:
            return self._as_it_would_be(run_id, assignment)

    def _as_it_would_be(self, run_id: UUID, assignment: Assignment) -> TaskRun:
        """The task run, waiting for this attempt, as Prefect would have it were its server not away."""
        state: State[Any] = AwaitingRetry(message=assignment.story)
        return TaskRun(
            id=run_id, name=task_name(assignment.trial), flow_run_id=self._flow_run_id, task_key=run_trial.task_key,
            dynamic_key=str(run_id), run_count=assignment.attempt - 1, state=state, state_id=state.id, state_type=state.type,
            state_name=state.name,
        )

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
            message = f"its worker could not run it: {last_line(error)}"
        return Gone(
            task_run=str(run_id), trial=assignment.trial, attempt=assignment.attempt, cause=cause, message=message
        )

    def forget(self, trial: int, attempt: int) -> None:
        """Waits no longer for an attempt that was given up; kills it, if it can be reached."""
        for ref, (_, assignment) in list(self.running.items()):
            if (assignment.trial, assignment.attempt) == (trial, attempt):
                del self.running[ref]
                ray.cancel(ref, force=True)

    def cancel(self) -> None:
        """Kills what still runs."""
        for ref in self.running:
            ray.cancel(ref, force=True)

    def settle(self, history: History) -> None:
        """Waits, within bounds, until Prefect has seen the end of every task run, and tells it of those that it missed."""
        if self.running:
            ray.wait(list(self.running), num_returns=len(self.running), timeout=10.0)
        left = settle(self._client, self._flow_run_id, self._task_runs)
        trials = {task_run_id(self._experiment_id, trial.number): trial for trial in history.trials}
        # A trial may have ended, by the log, under a driver that was killed before Prefect heard of it, or of it at all.
        earlier = {
            run_id for run_id, trial in trials.items()
            if run_id not in self._task_runs and trial.state.final and any(a.task_run == str(run_id) for a in trial.attempts)
        }
        left |= unfinished(self._client, earlier)
        # One that was given up while it was paused is left in that state by its last attempt.
        left |= {
            run_id for run_id, trial in trials.items()
            if trial.state is TrialState.STOPPED and trial.attempts[-1].outcome == "paused"
            and any(a.task_run == str(run_id) for a in trial.attempts)
        }
        ended = {
            run_id: (task_name(trials[run_id].number), state)
            for run_id in left if run_id in trials and (state := _ending(trials[run_id].state)) is not None
        }
        mend(self._client, self._flow_run_id, run_trial, ended)


def _options(resources: Resources, width: int) -> dict[str, Any]:
    """What an attempt needs that has `width` slots' worth of resources, as Ray's options of a task."""
    custom = {name: amount * width for name, amount in resources.custom.items()}
    options: dict[str, Any] = {
        "num_cpus": resources.cpu * width, "num_gpus": resources.gpu * width, "resources": custom, "runtime_env": dict(TRIAL_ENV),
    }
    if resources.memory:
        options["memory"] = resources.memory * width
    return options


def last_line(error: Exception) -> str:
    """What is left to say where a task failed outside of the trial: Ray's text is a whole traceback, with colours."""
    lines = _COLOURS.sub("", str(error)).split("\n")
    return one_line(next((line for line in reversed(lines) if line.strip()), type(error).__name__))


def _ending(state: TrialState) -> State[Any] | None:
    match state:
        case TrialState.DONE:
            return Completed(message="as the experiment's log has it")
        case TrialState.STOPPED:
            return Completed(name="Stopped", message="as the experiment's log has it")
        case TrialState.FAILED:
            return Failed(message="as the experiment's log has it")
        case TrialState.PAUSED | TrialState.LOST:
            return Cancelled(name="Paused", message="as the experiment's log has it")
        case _:
            return None
