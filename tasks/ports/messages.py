"""Messages between an attempt and the coordinator, and the other ports of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from regrow.search.events import Began, Ended, Place, Row, Saved
from regrow.search.needs import Needs
from regrow.search.spec import Spec
from regrow.search.step_metric import StepMetric
from regrow.tasks.ports.store import Store


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all attempts of an experiment share. Sent to each worker once.

    Attributes:
        spec: the specification, without the configurations that it lists.
        folder: folder of the trainable's code on the workers; None for the folder in which they
            start.
        code: (store key, sha256) of a pickled trainable; None if `spec.trainable` is an import
            path.

    """

    spec: Spec
    folder: str | None
    code: tuple[str, str] | None

    @classmethod
    def of(cls, spec: Spec, *, folder: str | None, code: tuple[str, str] | None = None) -> Job:
        """Build the job of a specification; `folder` holds the trainable's code on the workers."""
        lean = spec.model_copy(update={"points": (), "enqueue": ()})
        return cls(spec=lean, folder=folder, code=code)

    @cached_property
    def objective(self) -> str:
        """Name of the metric to optimize."""
        return self.spec.objective.name

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that the specification names, the objective first."""
        limits = (limit.metric for limit in self.spec.limits)
        return (*(metric.name for metric in self.spec.metrics), *limits)

    @cached_property
    def clock(self) -> StepMetric | None:
        """Metric by which decisions and `max_steps` count steps; None to count reports."""
        return self.spec.clock

    @property
    def trial_seconds(self) -> float | None:
        """Seconds that a trial may run, all attempts together; None for no limit."""
        hours = self.spec.stop.trial.hours
        return None if hours is None else hours * 3600


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to run.

    Attributes:
        trial: number of the trial; (trial, attempt) is the lease.
        attempt: number of the attempt.
        config: parameters, nested as the user wrote the search space.
        seed: the trial's seed.
        until: step of the first decision; None for none.
        checkpoints: manifests to restore, newest first.
        avoid_spot, clones, width, market: see Started.
        needs: resources of the attempt's slots.
        step: last step that the trial did. A cloned checkpoint becomes the checkpoint of this step.
        values: objective at the steps done so far, if `stop.trial` watches it.
        times: these steps as decisions count them, if the job has a `clock`.
        ran: seconds that earlier attempts ran.
        suggested: values that a define-by-run trial has requested, by parameter.
        every_seconds: seconds between two checkpoints; None: as in the specification.
        attributes: that a define-by-run trial begins with.
        explanation: why there is another attempt, for people; empty for the first.

    """

    trial: int
    attempt: int
    config: dict[str, Any]
    seed: int
    until: int | None
    checkpoints: tuple[str, ...] = ()
    avoid_spot: bool = False
    clones: int = 0
    width: int = 1
    market: str = ""
    needs: Needs = Needs()
    step: int = 0
    values: tuple[float, ...] = ()
    times: tuple[int, ...] = ()
    ran: float = 0.0
    suggested: dict[str, Any] = {}
    every_seconds: float | None = None
    attributes: dict[str, Any] = {}
    explanation: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a define-by-run trial for a value; see Asked."""

    name: str
    distribution: dict[str, Any]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """News of an attempt since its last message. An empty message renews the lease.

    Resending a message after a lost answer changes nothing.

    Attributes:
        trial: number of the trial.
        attempt: number of the attempt.
        began: start of the attempt; None once it was sent.
        rows: reports.
        exact: see Reported, of these rows.
        saved: checkpoints that became durable.
        ended: end of the attempt; the message is the last one. None while it runs.
        carry_on: with `ended`, requests another trial to run in the same place.
        draining: why the whole node is about to go away; empty if it is not.
        draining_node: ID of that node, if it is the node of another worker of the group.
        silent_node: node of another worker that stopped responding.
        trouble: why checkpoints cannot be saved at present.
        urgent: the sender blocks on the answer, so the message must not be delayed on its way.
        asked: requested values.
        noted: see Noted.

    """

    trial: int
    attempt: int
    began: Began | None = None
    rows: tuple[Row, ...] = ()
    exact: dict[int, dict[str, Any]] = {}
    saved: tuple[Saved, ...] = ()
    ended: Ended | None = None
    carry_on: bool = False
    draining: str = ""
    draining_node: str = ""
    silent_node: str = ""
    trouble: str = ""
    urgent: bool = False
    asked: tuple[Question, ...] = ()
    noted: dict[str, Any] = {}


Reason = Literal["", "paused", "preempted", "stopped", "fenced"]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a Progress: continue to the step `until`, or end for `reason`.

    Attributes:
        until: step of the next decision; None for none.
        reason: "" to continue. `stopped`: a decision. `paused`: the trial continues later, or
            elsewhere. `preempted`: the node goes away. In both cases a checkpoint now saves work.
            `fenced`: the lease is lost, and nothing that the attempt does counts.
        why: the reason in a sentence, for people.
        unsaved: no checkpoint is needed, as the trial continues from other weights.
        drop: checkpoints to delete.
        keep: checkpoints that stay.
        next: another trial to run in the same place; None for none.
        pace: minimum seconds between two messages that are not urgent.
        relay: name of the relay that receives further messages; empty for the coordinator.
        suggested: requested values, by parameter.
        refused: why a requested value is not given, by parameter.
        process: of `preempted`, only this process has to end, not its node.

    """

    until: int | None = None
    reason: Reason = ""
    why: str = ""
    unsaved: bool = False
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    next: Assignment | None = None
    pace: float = 0.0
    relay: str = ""
    suggested: dict[str, Any] = {}
    refused: dict[str, str] = {}
    process: bool = False

    @property
    def leaving(self) -> bool:
        """Whether the attempt has to save a checkpoint and end, to continue later or elsewhere."""
        return self.reason in ("paused", "preempted")


class LogLine(msgspec.Struct, frozen=True):
    """A line that a trial printed or logged.

    Attributes:
        source: name of a logger, or "stdout", "stderr".
        level: as in `logging`.
        text: the line.
        t: seconds since the epoch.

    """

    source: str
    level: int
    text: str
    t: float


class CoordinatorClient(Protocol):
    """The coordinator as an attempt sees it."""

    def report(self, progress: Progress) -> Reply:
        """Deliver news, durable on return. Raises CoordinatorGone if nobody answers any more."""
        ...


class Viewers(Protocol):
    """People who watch a running experiment, as a worker sees them."""

    def show(self, task_run: str, lines: Sequence[LogLine]) -> None:
        """Show lines of a task run's attempts. Does not block or raise; lines may be lost."""
        ...


class CoordinatorGone(Exception):
    """The coordinator is gone for good: the attempt ends, and its last work is lost."""


class Host(Protocol):
    """The machine that runs an attempt."""

    def place(self) -> Place:
        """Return the node."""
        ...

    def end_children(self) -> None:
        """End all processes started by this one, and their descendants."""
        ...

    def listen(self, notify: Callable[[str, bool], None]) -> AbstractContextManager[object]:
        """Deliver preemption notices within the block.

        `notify(why, node)` is called, from any thread, when this process (node=False) or the whole
        node (node=True) is about to go away.
        """
        ...


class Records(Protocol):
    """The experiment's tracking server, for what the training records itself, without `report`."""

    def own_calls(
        self,
        trial: int,
        attempt: int,
        *,
        scratch: Path,
        reported: Callable[[], Collection[str]],
        system_metrics: bool,
        rank: int | None = None,
    ) -> AbstractContextManager[object]:
        """Within the block, assign the training's own tracking calls to the attempt. The block
        loads and runs the training. Raises RecordsAway.

        `scratch`: folder that is deleted with the attempt. `reported`: returns the names of the
        reported metrics. `system_metrics`: whether the machine's load is recorded, too. `rank`:
        rank among the attempt's workers, None for a single worker.
        """
        ...


class RecordsAway(Exception):
    """The training needed the tracking server, which did not answer: the attempt ends as an
    infrastructure failure, and another attempt continues.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all attempts of a session share: the job, and the ports to their environment."""

    job: Job
    coordinator: CoordinatorClient
    store: Store
    host: Host
    records: Records | None = None
