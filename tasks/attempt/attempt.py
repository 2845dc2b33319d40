"""Runs one attempt from its assignment to its outcome, which is a value: no exception of user code
escapes.
"""

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
from regrow.tasks.attempt.stall_watchdog import StallWatchdog
from regrow.tasks.attempt.training import recorded, train
from regrow.tasks.checkpoint import saving
from regrow.tasks.checkpoint.retry import retry_while_unavailable
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.output import parts
from regrow.tasks.output.traces import in_a_line, one_line
from regrow.tasks.ports.executor import Finished
from regrow.tasks.ports.messages import Arrival, Assignment, CoordinatorClient, Host, Job, Records
from regrow.tasks.ports.ranks import Alone, Group, GroupBroken, Leave, PartMissing, RankFailed
from regrow.tasks.ports.store import Store, StoreError, Unavailable
from regrow.tasks.process import process_pools, temporary
from regrow.tasks.trial.reporter import Reporter
from regrow.tasks.trial.suggestions import Suggestions
from regrow.tasks.trial.trial import Trial

_LOG = logging.getLogger("regrow.trial")
STUCK_EXIT = 76
"""Exit code of a worker whose trainable did not react (EX_PROTOCOL)."""
OUTPUT_SECONDS = 3.0
"""Seconds that a process waits at its end until the printed output is in the store."""
PATIENCE_SECONDS = 900.0
"""Seconds that an attempt waits for an unreachable store before it gives up restoring a
checkpoint.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where an attempt continues: after `step`, from the checkpoint in `folder` (None: from the
    beginning).
    """

    step: int = 0
    folder: Path | None = None
    cloned: Saved | None = None
    """The attempt's first checkpoint, if it was cloned from another trial."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that could not be used, and why."""
    trouble: Exception | None = None
    """Why no checkpoint could be read, None if reading worked."""
    manifest: str | None = None
    """Manifest of the checkpoint in `folder`."""


def run_attempt(
    job: Job,
    assignment: Assignment,
    coordinator: CoordinatorClient,
    store: Store,
    *,
    host: Host,
    task_run: str,
    carry_on: Callable[[], bool],
    records: Records | None = None,
    group: Group | None = None,
) -> Finished:
    """Run one attempt: restore, train, report, and return the outcome.

    Raises GroupBroken if a rank of the group is lost: the work done so far is reported, the end is
    not.

    Args:
        job: what all attempts of the experiment share.
        assignment: the attempt.
        coordinator: receives the reports.
        store: holds the checkpoints.
        host: this machine.
        task_run: the attempt's Prefect task run.
        carry_on: called at the end; whether to request another trial for this process.
        records: the tracking server, None for none.
        group: the other ranks, with this process as rank 0; None for a single process.

    """
    group, place = group or Alone(), host.place()
    scratch = Path(
        tempfile.mkdtemp(prefix=f"{assignment.trial}-", dir=temporary.process_temp_dir())
    )
    writer = CheckpointWriter(
        store, trial=assignment.trial, attempt=assignment.attempt, others=group.others
    )
    # Closed after the last message: a notice that arrives during the last upload must
    # not cut it short.
    with ExitStack() as listening:
        listening.callback(shutil.rmtree, scratch, ignore_errors=True)
        listening.callback(writer.close)
        origin = _restored(assignment, store, scratch / "restored")
        # Without the store, the attempt does not begin: beginning at step 0 would supersede all
        # earlier work.
        arrival = Arrival(
            place=place,
            others=group.places,
            task_run=task_run,
            restored=origin.step,
            skipped=origin.skipped,
        )
        begins = origin.trouble is None
        reporter = Reporter(
            coordinator,
            assignment,
            arrival if begins else None,
            _saved_by(writer, assignment, origin.cloned),
        )
        reporter.step = origin.step
        reporter.on_drop, writer.on_news = writer.drop, reporter.hurry
        reporter.trouble = lambda: writer.trouble
        if begins and (assignment.checkpoints or group.others is not None):
            # New work supersedes what earlier attempts did beyond `step`; a decision may
            # be due at once.
            reporter.flush()
        reporter.start()
        try:
            if begins:
                trial = Trial(
                    job,
                    assignment,
                    reporter,
                    writer,
                    restored=origin.folder,
                    restored_step=origin.step,
                    ranks=group,
                    suggestions=None
                    if group.others is not None
                    else Suggestions(assignment.suggested, reporter),
                )
                listening.enter_context(host.listen(reporter.notice))
                own = recorded(records, job, assignment, trial, scratch)
                overdue = StallWatchdog(job, assignment, reporter, group, _leaving(host))
                try:
                    with group.watched(
                        reporter.notice_of,
                        _left_by(overdue, reporter, group, place),
                        reporter.silent,
                    ):
                        outcome = _begun(job, store, trial, reporter, own, group, origin, overdue)
                finally:
                    process_pools.end()
                    host.end_children()
                step = trial.step
            else:
                outcome = _failed(
                    "infrastructure", f"its checkpoint could not be read: {origin.trouble}"
                )
                step = origin.step
            _finish_saving(writer, assignment.trial, fenced=reporter.reply.reason == "fenced")
            outcome = _without_checkpoint(outcome, writer)
            if (
                writer.broken is not None
                and outcome[0] not in ("failed", "lost")
                and reporter.reply.reason != "fenced"
            ):
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
            t=time.time(),
            trial=assignment.trial,
            attempt=assignment.attempt,
            outcome=name,
            cause=cause,
            step=step,
            message=message,
            trace=trace,
        )
        fenced = reporter.reply.reason == "fenced"
        reply = reporter.reply if fenced else reporter.flush(ended=ended, carry_on=carry_on())
        return Finished(ended=ended, reply=reply, restored=arrival.restored)


def _begun(
    job: Job,
    store: Store,
    trial: Trial,
    reporter: Reporter,
    own: AbstractContextManager[object],
    group: Group,
    origin: _Origin,
    overdue: StallWatchdog,
) -> _Outcome:
    """Begin together with the other ranks, and train."""
    try:
        group.begin(origin.step, origin.manifest, origin.folder)
    except RankFailed as error:
        return error.fault.outcome, error.fault.cause, error.fault.message, error.fault.trace
    with overdue.watching():
        return _train(job, store, trial, reporter, own, group)


def _left_by(overdue: StallWatchdog, reporter: Reporter, group: Group, place: Place) -> Leave:
    """Return the function that ends a rank 0 that does not react, after its last message."""

    def leave(wrong: RankFailed | GroupBroken) -> None:
        if isinstance(wrong, RankFailed):
            overdue.end(
                wrong.fault.outcome, wrong.fault.cause, wrong.fault.message, wrong.fault.trace
            )
            return
        _LOG.warning("%s; this rank did not notice, and is ended", wrong)
        # Reported here: others only see that this process ends.
        reporter.silent_node = _silent(wrong, group, place)
        overdue.end(
            "lost",
            "preempted" if wrong.elsewhere(place, group.places) else "infrastructure",
            wrong.why,
        )

    return leave


def _silent(broken: GroupBroken, group: Group, place: Place) -> str:
    """Return the node that may be cut off; empty for none."""
    return broken.elsewhere(place, group.places) if broken.silent else ""


def _leaving(host: Host) -> Callable[[], None]:
    """Return the function that ends the process of an attempt that does not react, after its last
    message.
    """

    def leave() -> None:
        host.end_children()
        parts.KEEPER.leave(OUTPUT_SECONDS)
        os._exit(STUCK_EXIT)

    return leave


def _restored(assignment: Assignment, store: Store, folder: Path) -> _Origin:
    """Restore the newest valid checkpoint into `folder`. A checkpoint of another trial is cloned to
    this one.
    """
    try:
        found = retry_while_unavailable(
            lambda: saving.restore(store, assignment.checkpoints, folder),
            say=_LOG.warning,
            seconds=PATIENCE_SECONDS,
        )
    except (StoreError, OSError) as error:
        return _Origin(trouble=error)
    for key, why in found.skipped:
        _LOG.warning(
            "trial %d: the checkpoint %s cannot be used, going back to the one before: %s",
            assignment.trial,
            key,
            why,
        )
    skipped = tuple(f"{key}: {why}" for key, why in found.skipped)
    if found.manifest is None:
        return _Origin(skipped=skipped)
    if found.manifest not in assignment.checkpoints[: assignment.clones]:
        return _Origin(step=found.step, folder=folder, skipped=skipped, manifest=found.manifest)
    # Another trial's weights: they become a checkpoint of this trial, at the step that it
    # has reached.
    source, step = found.manifest, assignment.step
    try:
        copy = retry_while_unavailable(
            lambda: saving.clone(
                store, source, trial=assignment.trial, attempt=assignment.attempt, step=step
            ),
            say=_LOG.warning,
            seconds=PATIENCE_SECONDS,
        )
    except (StoreError, OSError) as error:
        return _Origin(step=step, skipped=skipped, trouble=error)
    return _Origin(
        step=step,
        folder=folder,
        cloned=_saved(assignment, copy, source=source),
        skipped=skipped,
        manifest=copy.manifest,
    )


def _saved(
    assignment: Assignment, made: saving.SavedCheckpoint, *, source: str | None = None
) -> Saved:
    return Saved(
        t=time.time(),
        trial=assignment.trial,
        attempt=assignment.attempt,
        step=made.step,
        manifest=made.manifest,
        size=made.size,
        source=source,
    )


def _saved_by(
    writer: CheckpointWriter, assignment: Assignment, cloned: Saved | None
) -> Callable[[], list[Saved]]:
    """Return a function that lists what became durable since its last call; the first list begins
    with `cloned`.
    """
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
        _LOG.warning(
            "trial %d: the checkpoint of step %d was not saved: %s", trial, lost.step, lost.error
        )


_Outcome = tuple[Outcome, Cause, str, str]


def _without_checkpoint(outcome: _Outcome, writer: CheckpointWriter) -> _Outcome:
    """Return the outcome, changed to failed if checkpoints can never be saved or the last one was
    not saved.

    A checkpoint that lacks the part of a rank was skipped by the training itself, and does not
    count as failed.
    """
    if outcome[0] in ("failed", "lost") or writer.broken is not None:
        return outcome
    if writer.refused is not None:
        return _failed("error", one_line(str(writer.refused)))
    if (
        outcome[0] == "done"
        and (last := writer.unsaved) is not None
        and not isinstance(last.error, PartMissing | Unavailable)
    ):
        return _failed(
            "infrastructure",
            f"the checkpoint of step {last.step}, its last, was not saved: {in_a_line(last.error)}",
        )
    return outcome


def _train(
    job: Job,
    store: Store,
    trial: Trial,
    reporter: Reporter,
    own: AbstractContextManager[object],
    group: Group,
) -> _Outcome:
    cut_short = not trial.complete
    if reporter.reply.reason == "":
        try:
            failure = train(job, store, trial, own)
            if failure is None:
                with reporter.awaited():
                    group.finish(trial.step)
            elif (wrong := group.blamed()) is not None:  # may have caused this failure
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
            return (
                "preempted",
                "infrastructure" if reporter.reply.process else "preempted",
                reporter.reply.why,
                "",
            )
        case _:
            pass
    if trial.step == 0:
        return "failed", "error", f"it ended without ever reporting {job.objective!r}", ""
    return "done", "", trial.enough or "", ""


def _failed(cause: Cause, message: str) -> _Outcome:
    return "failed", cause, message, ""
