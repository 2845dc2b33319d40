"""What an attempt and the coordinator say to each other, and the ports over which it hears of the world."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from regrow.search.endings import Ending
from regrow.search.events import Ended, Place, Row, Saved
from regrow.search.needs import Needs
from regrow.search.spec import RLlib, Spec
from regrow.search.step_metric import StepMetric


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of an experiment share. Sent to each worker once.

    `code` is (store key, sha256) of a pickled trainable, None where `trainable` is an import path. `objective` is the metric's
    name. `every_steps` and `every_seconds` are the rhythm of checkpoints, None where not given. `ending` and `enough` (an
    import path) say when a trial has done enough, None for never. `system_metrics`: whether MLflow's monitor is to record the
    machine's load. `command` stands in the trainable's place where it is not empty; `report` is the file of its reports,
    relative to its scratch folder, None for none. `stall`: seconds without a report after which an attempt hangs,
    `trial_seconds`: how long a trial may run, all its attempts together; None for no limit. `event`: what started the run, None
    if nothing did. `grouped`: attempts are groups of workers, or have children, in a placement group, `ranked` that they are of
    workers; `lease`: seconds of silence after which a worker counts as gone; `reduce_mean`: a group's metrics are the means
    over its workers, else those of the first. `rllib` stands in the trainable's place where it is not None; `metrics`: those
    that the specification names, the objective first. `clock`: by what decisions and `max_steps` count steps, None: by reports.
    """

    experiment: str
    trainable: str
    objective: str
    max_steps: int | None
    every_steps: int | None
    every_seconds: float | None
    folder: str | None = None
    code: tuple[str, str] | None = None
    ending: Ending | None = None
    enough: str | None = None
    system_metrics: bool = False
    command: tuple[str, ...] = ()
    report: str | None = None
    stall: float | None = None
    trial_seconds: float | None = None
    event: dict[str, Any] | None = None
    grouped: bool = False
    ranked: bool = False
    reduce_mean: bool = False
    lease: float = 30.0
    rllib: RLlib | None = None
    metrics: tuple[str, ...] = ()
    clock: StepMetric | None = None

    @classmethod
    def of(cls, spec: Spec, *, folder: str | None, code: tuple[str, str] | None = None) -> Job:
        """The job that a specification describes, with the trainable's code in `folder` on the workers."""
        hours = spec.stop.trial.hours
        return cls(
            experiment=spec.name, trainable=spec.trainable, objective=spec.objective.name, max_steps=spec.max_steps,
            every_steps=spec.checkpoint.every_steps, every_seconds=spec.checkpoint.every_seconds, folder=folder, code=code,
            ending=spec.ending if spec.stop.trial.watches else None, enough=spec.stop.trial.function,
            system_metrics=spec.mlflow.system_metrics, command=spec.command, report=spec.report.file,
            stall=spec.stall, trial_seconds=None if hours is None else hours * 3600, event=spec.event,
            grouped=spec.resources.grouped, ranked=spec.resources.ranked, lease=spec.lease,
            reduce_mean=spec.resources.reduce == "mean", rllib=spec.rllib, clock=spec.clock,
            metrics=(*(metric.name for metric in spec.metrics), *(limit.metric for limit in spec.limits)),
        )


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to run. (trial, attempt) is its lease; `config` is nested as the user wrote the space.

    `until` is the step of the first decision, None for none; `checkpoints` are manifests to restore, newest first.
    `avoid_spot`, `clones`, `width` and `market`: see Started; `needs`: what these slots are made of. A clone becomes the
    checkpoint of `step`, the last that the trial did.
    `values`: the objective at the steps done so far, where the job has an ending; `times`: these steps as decisions count them,
    where the job has a clock. `ran`: seconds of the earlier attempts.
    `suggested`: of a define-by-run trial, the values that it has asked for, by parameter.
    `story` tells people why there is another attempt; empty for the first.
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
    story: str = ""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt runs: where, from which step, in which Prefect task run, and why newer checkpoints were passed over.

    `ago`: seconds since then, as news are gathered before they are sent. `others`: where the other workers of a group run, by
    rank.
    """

    place: Place
    task_run: str
    restored: int = 0
    skipped: tuple[str, ...] = ()
    ago: float = 0.0
    others: tuple[Place, ...] = ()


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a define-by-run trial needs; see Asked."""

    name: str
    distribution: dict[str, Any]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """News of an attempt since its last message; an empty one renews the lease.

    Sent again after a lost answer, it changes nothing. With `ended` it is the last message; `carry_on` then asks for
    another trial to run in the same place. `draining` says why the whole node is about to go away, if it is, and `draining_node`
    which one, if it is that of another worker of a group (its id); `silent_node` that of another worker which fell silent;
    `trouble` why its checkpoints cannot be saved at present.
    `urgent`: somebody waits for the answer, so nobody on the way may hold it back. `asked`: values that it needs; `noted`: see
    Noted.
    """

    trial: int
    attempt: int
    began: Arrival | None = None
    rows: tuple[Row, ...] = ()
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
    """The answer to a Progress: go on until the step `until` (None: to the end), or end for `reason`.

    `stopped`: a decision; `paused`: the experiment is being interrupted, `preempted`: the node goes away, a checkpoint now
    saves work (not with `unsaved`: it will go on from other weights); `fenced`: the lease is not held any more, nothing that
    the attempt does counts. `drop`: checkpoints to delete, `keep`: those that stay. `pace`: seconds between two messages that
    are not urgent, at least. `relay`: through whom to speak from now on, a name; empty: to the coordinator itself.
    `suggested`: the values that were asked for, by parameter; `refused`: why there is none.
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

    @property
    def leaving(self) -> bool:
        """Whether the attempt is to save a checkpoint and end, to go on another time or elsewhere."""
        return self.reason in ("paused", "preempted")


class LogLine(msgspec.Struct, frozen=True):
    """A line that a trial printed or logged. `source`: a logger's name, or "stdout", "stderr"; `level`: as in `logging`.

    `t`: seconds since the epoch.
    """

    source: str
    level: int
    text: str
    t: float


class CoordinatorClient(Protocol):
    """Where an attempt reports: the coordinator, seen from a worker."""

    def report(self, progress: Progress) -> Reply:
        """Delivers news; returns once they are durable. Raises CoordinatorGone when nobody answers any more."""
        ...


class Viewers(Protocol):
    """People who look at a running experiment, seen from a worker."""

    def show(self, task_run: str, lines: Sequence[LogLine]) -> None:
        """Has them see what the attempts of a task run print. Waits for nothing and raises nothing; lines may be lost."""
        ...


class CoordinatorGone(Exception):
    """The coordinator does not answer and will not come back: the attempt ends, its work since the last news is lost."""


class Host(Protocol):
    """The machine that an attempt runs on."""

    def place(self) -> Place:
        """Which node that is."""
        ...

    def end_children(self) -> None:
        """Ends all processes that were started in this one, and those that they have started."""
        ...

    def listen(self, tell: Callable[[str, bool], None]) -> AbstractContextManager[object]:
        """Within the block, `tell(why, node)` is called, from any thread, when this process (node=False) or the whole node
        (node=True) is about to go away.
        """
        ...


class Records(Protocol):
    """The tracking server that the experiment is recorded in, for what a training logs there by itself."""

    def own_calls(
        self, trial: int, attempt: int, *, scratch: Path, reported: Callable[[], Collection[str]], system_metrics: bool,
        rank: int | None = None,
    ) -> AbstractContextManager[object]:
        """Within the block, which loads and runs the training, what it logs by itself belongs to the attempt.

        `scratch` is a folder that goes away with the attempt; `reported` gives the names of the metrics that it reports;
        `system_metrics`: whether the machine's load is to be recorded, too; `rank`: which of the attempt's workers this is, None
        where it is the only one. Raises RecordsAway.
        """
        ...


class RecordsAway(Exception):
    """The training needed the tracking server, which did not answer: the attempt ends, another one goes on without it."""
