"""Runs one attempt from its assignment to its outcome, which is a value: nothing that user code does escapes as an exception."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from regrow.search.events import Cause, Ended, Outcome, Place, Saved
from regrow.tasks import checkpoints, output, process_pools, temporary
from regrow.tasks.checkpoint_writer import CheckpointWriter
from regrow.tasks.messages import Arrival, Assignment, CoordinatorClient, Host, Job, Records, Reply
from regrow.tasks.overdue import Overdue
from regrow.tasks.patience import patiently
from regrow.tasks.ports import Store, StoreError
from regrow.tasks.ranks import Alone, Group, GroupBroken, Leave, RankFailed
from regrow.tasks.reporter import Reporter
from regrow.tasks.suggestions import Suggestions
from regrow.tasks.trainable import Frameworks
from regrow.tasks.training import recorded, train
from regrow.tasks.trial import Trial

_LOG = logging.getLogger("regrow.trial")
STUCK_EXIT = 76
"""Exit code of a worker whose trainable did not react (EX_PROTOCOL)."""
OUTPUT_SECONDS = 3.0
"""How long its end waits until what was printed is in the store."""
PATIENCE_SECONDS = 900.0
"""How long an attempt that is to go on from a checkpoint waits for a store that is out of reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What came of an attempt, and the coordinator's last answer to it."""

    ended: Ended
    reply: Reply
    restored: int = 0
    """The step that it went on from, 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where an attempt goes on: after `step`, from the checkpoint in `folder` (None: from the beginning)."""

    step: int = 0
    folder: Path | None = None
    cloned: Saved | None = None
    """The checkpoint that it begins with, if that was another trial's."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that could not be used, and why."""
    trouble: Exception | None = None
    """What kept it from reading any."""
    manifest: str | None = None
    """The checkpoint that is in `folder`."""


def run_attempt(
    job: Job, assignment: Assignment, coordinator: CoordinatorClient, store: Store, *, host: Host, task_run: str,
    carry_on: Callable[[], bool], records: Records | None = None, group: Group | None = None,
    frameworks: Frameworks | None = None,
) -> Finished:
    """Restores, trains, reports, and tells how it ended. `carry_on` is asked at the end whether to take another trial.

    `frameworks`: see `load`. As rank 0 of a `group`, all of it together with the other ranks; None: alone. Raises GroupBroken
    where one of these is lost: what was done by then is told, and nothing of an end.
    """
    group, place = group or Alone(), host.place()
    scratch = Path(tempfile.mkdtemp(prefix=f"{assignment.trial}-", dir=temporary.room()))
    writer = CheckpointWriter(store, trial=assignment.trial, attempt=assignment.attempt, others=group.others)
    # Closed after the last word: a notice that comes while the last checkpoint is on its way must not cut it short.
    with ExitStack() as listening:
        listening.callback(shutil.rmtree, scratch, ignore_errors=True)
        listening.callback(writer.close)
        origin = _restored(assignment, store, scratch / "restored")
        # Where the store is away, it does not begin: beginning at step 0 would supersede all that was done.
        arrival = Arrival(
            place=place, others=group.places, task_run=task_run, restored=origin.step, skipped=origin.skipped,
        )
        begins = origin.trouble is None
        reporter = Reporter(coordinator, assignment, arrival if begins else None, _saved_by(writer, assignment, origin.cloned))
        reporter.step = origin.step
        reporter.on_drop, writer.on_news = writer.drop, reporter.hurry
        reporter.trouble = lambda: writer.trouble
        if begins and (assignment.checkpoints or group.others is not None):
            # Work from here on supersedes what earlier attempts did beyond `step`; a decision may be due at once.
            reporter.flush()
        reporter.start()
        try:
            if begins:
                trial = Trial(
                    job, assignment, reporter, writer, restored=origin.folder, restored_step=origin.step, ranks=group,
                    suggestions=None if group.others is not None else Suggestions(assignment.suggested, reporter),
                )
                listening.enter_context(host.listen(reporter.notice))
                own = recorded(records, job, assignment, trial, scratch)
                overdue = Overdue(job, assignment, reporter, group, _leaving(host))
                try:
                    with group.watched(reporter.notice_of, _left_by(overdue, reporter, group, place), reporter.silent):
                        outcome = _begun(job, store, trial, reporter, own, group, origin, overdue, frameworks)
                finally:
                    process_pools.end()
                    host.end_children()
                step = trial.step
            else:
                outcome = _failed("infrastructure", f"its checkpoint could not be read: {origin.trouble}")
                step = origin.step
            _finish_saving(writer, assignment.trial, fenced=reporter.reply.reason == "fenced")
            if writer.broken is not None and outcome[0] not in ("failed", "lost") and reporter.reply.reason != "fenced":
                raise writer.broken
        except GroupBroken as broken:
            writer.give_up()
            writer.drain()
            reporter.silent_node = _silent(broken, group, place)
            reporter.flush()  # what was done and saved counts
            raise
        finally:
            reporter.stop()
        name, cause, message, trace = outcome
        ended = Ended(
            t=time.time(), trial=assignment.trial, attempt=assignment.attempt,
            outcome=name, cause=cause, step=step, message=message, trace=trace,
        )
        fenced = reporter.reply.reason == "fenced"
        reply = reporter.reply if fenced else reporter.flush(ended=ended, carry_on=carry_on())
        return Finished(ended=ended, reply=reply, restored=arrival.restored)


def _begun(
    job: Job, store: Store, trial: Trial, reporter: Reporter, own: AbstractContextManager[object], group: Group, origin: _Origin,
    overdue: Overdue, frameworks: Frameworks | None,
) -> _Outcome:
    """All ranks begin together, and train."""
    try:
        group.begin(origin.step, origin.manifest, origin.folder)
    except RankFailed as error:
        return error.fault.outcome, error.fault.cause, error.fault.message, error.fault.trace
    with overdue.watching():
        return _train(job, store, trial, reporter, own, group, frameworks)


def _left_by(overdue: Overdue, reporter: Reporter, group: Group, place: Place) -> Leave:
    """How the process of a rank 0 that does not react ends, after its last word."""

    def leave(wrong: RankFailed | GroupBroken) -> None:
        if isinstance(wrong, RankFailed):
            overdue.end(wrong.fault.outcome, wrong.fault.cause, wrong.fault.message, wrong.fault.trace)
            return
        _LOG.warning("%s; this rank did not notice, and is ended", wrong)
        # Said here: all that anybody else sees is that this process ends.
        reporter.silent_node = _silent(wrong, group, place)
        overdue.end("lost", "preempted" if wrong.elsewhere(place, group.places) else "infrastructure", wrong.why)

    return leave


def _silent(broken: GroupBroken, group: Group, place: Place) -> str:
    """The node that may be cut off; empty for none."""
    return broken.elsewhere(place, group.places) if broken.silent else ""


def _leaving(host: Host) -> Callable[[], None]:
    """How the process of an attempt that does not react ends, after its last word."""

    def leave() -> None:
        host.end_children()
        output.KEEPER.leave(OUTPUT_SECONDS)
        os._exit(STUCK_EXIT)

    return leave


def _restored(assignment: Assignment, store: Store, folder: Path) -> _Origin:
    """Reads the newest checkpoint that is sound into `folder`; one of another trial becomes this one's own."""
    try:
        found = patiently(
            lambda: checkpoints.restore(store, assignment.checkpoints, folder), say=_LOG.warning, seconds=PATIENCE_SECONDS
        )
    except (StoreError, OSError) as error:
        return _Origin(trouble=error)
    for key, why in found.skipped:
        _LOG.warning(
            "trial %d: the checkpoint %s cannot be used, going back to the one before: %s", assignment.trial, key, why
        )
    skipped = tuple(f"{key}: {why}" for key, why in found.skipped)
    if found.manifest is None:
        return _Origin(skipped=skipped)
    if found.manifest not in assignment.checkpoints[: assignment.clones]:
        return _Origin(step=found.step, folder=folder, skipped=skipped, manifest=found.manifest)
    # Another trial's weights: from here on they are a checkpoint of this one, at the step that it has reached.
    source, step = found.manifest, assignment.step
    try:
        copy = patiently(
            lambda: checkpoints.clone(store, source, trial=assignment.trial, attempt=assignment.attempt, step=step),
            say=_LOG.warning, seconds=PATIENCE_SECONDS,
        )
    except (StoreError, OSError) as error:
        return _Origin(step=step, skipped=skipped, trouble=error)
    return _Origin(
        step=step, folder=folder, cloned=_saved(assignment, copy, source=source), skipped=skipped, manifest=copy.manifest
    )


def _saved(assignment: Assignment, made: checkpoints.SavedCheckpoint, *, source: str | None = None) -> Saved:
    return Saved(
        t=time.time(), trial=assignment.trial, attempt=assignment.attempt, step=made.step, manifest=made.manifest,
        size=made.size, source=source,
    )


def _saved_by(writer: CheckpointWriter, assignment: Assignment, cloned: Saved | None) -> Callable[[], list[Saved]]:
    """What became durable since the last call; at the first one, `cloned` before all else."""
    first = [] if cloned is None else [cloned]

    def saved() -> list[Saved]:
        before, first[:] = list(first), []
        return before + [_saved(assignment, made) for made in writer.results()]

    return saved


def _finish_saving(writer: CheckpointWriter, trial: int, *, fenced: bool) -> None:
    if fenced:
        writer.give_up()  # nothing that it still saves counts
    writer.drain()
    for lost in writer.errors():
        _LOG.warning("trial %d: the checkpoint of step %d was not saved: %s", trial, lost.step, lost.error)


_Outcome = tuple[Outcome, Cause, str, str]


def _train(
    job: Job, store: Store, trial: Trial, reporter: Reporter, own: AbstractContextManager[object], group: Group,
    frameworks: Frameworks | None,
) -> _Outcome:
    cut_short = not trial.complete
    if reporter.reply.reason == "":
        try:
            failure = train(job, store, trial, own, frameworks)
            if failure is None:
                with reporter.awaited():
                    group.finish(trial.step)
            elif (wrong := group.blamed()) is not None:  # of which it may be the consequence
                raise wrong
        except RankFailed as error:
            return error.fault.outcome, error.fault.cause, error.fault.message, error.fault.trace
        if failure is not None:
            who = "" if group.others is None else f"rank 0, at step {trial.at}: "
            early = f" ({before})" if (before := group.ended_before(trial.at)) else ""
            return "failed", failure.cause, f"{who}{failure.message}{early}", failure.trace
        cut_short = trial.cut_short
        if trial.given_up is not None:
            return "stopped", "", trial.given_up or reporter.reply.why, ""
    match reporter.reply.reason:
        case ("stopped" | "paused") as outcome if cut_short:
            return outcome, "", reporter.reply.why, ""
        case "preempted" if cut_short:
            return "preempted", "preempted", reporter.reply.why, ""
        case _:
            pass
    if trial.step == 0:
        return "failed", "error", f"it ended without ever reporting {job.objective!r}", ""
    return "done", "", trial.enough or "", ""


def _failed(cause: Cause, message: str) -> _Outcome:
    return "failed", cause, message, ""
