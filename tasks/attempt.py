"""Runs one attempt from its assignment to its outcome, which is a value: nothing that user code does escapes as an exception."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from regrow.search.errors import SpecError
from regrow.search.events import Cause, Ended, Outcome, Saved
from regrow.tasks import checkpoints, output
from regrow.tasks.checkpoint_writer import CheckpointWriter
from regrow.tasks.command import CommandFailed
from regrow.tasks.errors import UserError
from regrow.tasks.messages import Arrival, Assignment, CoordinatorClient, Host, Job, Records, RecordsAway, Reply
from regrow.tasks.overdue import Overdue
from regrow.tasks.patience import patiently
from regrow.tasks.ports import Store, StoreError
from regrow.tasks.reporter import Reporter
from regrow.tasks.traces import in_a_line, one_line, user_trace
from regrow.tasks.trainable import as_a_script, find, load
from regrow.tasks.trial import ReportError, Trial, TrialEnd

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


def run_attempt(
    job: Job, assignment: Assignment, coordinator: CoordinatorClient, store: Store, *, host: Host, task_run: str,
    carry_on: Callable[[], bool], records: Records | None = None,
) -> Finished:
    """Restores, trains, reports, and tells how it ended. `carry_on` is asked at the end whether to take another trial."""
    place = host.place()
    scratch = Path(tempfile.mkdtemp(prefix=f"regrow-{assignment.trial}-"))
    writer = CheckpointWriter(store, trial=assignment.trial, attempt=assignment.attempt)
    # Closed after the last word: a notice that comes while the last checkpoint is on its way must not cut it short.
    with ExitStack() as listening:
        listening.callback(shutil.rmtree, scratch, ignore_errors=True)
        listening.callback(writer.close)
        origin = _restored(assignment, store, scratch / "restored")
        # Where the store is away, it does not begin: beginning at step 0 would supersede all that was done.
        arrival = Arrival(place=place, task_run=task_run, restored=origin.step, skipped=origin.skipped)
        begins = origin.trouble is None
        reporter = Reporter(coordinator, assignment, arrival if begins else None, _saved_by(writer, assignment, origin.cloned))
        reporter.step = origin.step
        reporter.on_drop, writer.on_news = writer.drop, reporter.hurry
        reporter.trouble = lambda: writer.trouble
        if begins and assignment.checkpoints:
            # Work from here on supersedes what earlier attempts did beyond `step`; a decision may be due at once.
            reporter.flush()
        reporter.start()
        try:
            if begins:
                trial = Trial(job, assignment, reporter, writer, restored=origin.folder, restored_step=origin.step)
                listening.enter_context(host.listen(reporter.notice))
                own: AbstractContextManager[object] = nullcontext() if records is None else records.own_calls(
                    assignment.trial, assignment.attempt, scratch=scratch, reported=trial.metrics,
                    system_metrics=job.system_metrics,
                )
                try:
                    with Overdue(job, assignment, reporter, _leaving(host)).watching():
                        outcome = _train_here(job, store, trial, reporter, own)
                finally:
                    host.end_children()
                step = trial.step
            else:
                outcome = _failed("infrastructure", f"its checkpoint could not be read: {origin.trouble}")
                step = origin.step
            _finish_saving(writer, assignment.trial, fenced=reporter.reply.reason == "fenced")
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
        return _Origin(step=found.step, folder=folder, skipped=skipped)
    # Another trial's weights: from here on they are a checkpoint of this one, at the step that it has reached.
    source, step = found.manifest, assignment.step
    try:
        copy = patiently(
            lambda: checkpoints.clone(store, source, trial=assignment.trial, attempt=assignment.attempt, step=step),
            say=_LOG.warning, seconds=PATIENCE_SECONDS,
        )
    except (StoreError, OSError) as error:
        return _Origin(step=step, skipped=skipped, trouble=error)
    return _Origin(step=step, folder=folder, cloned=_saved(assignment, copy, source=source), skipped=skipped)


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


def _train_here(job: Job, store: Store, trial: Trial, reporter: Reporter, own: AbstractContextManager[object]) -> _Outcome:
    """A child that the trainable has forked and that comes back from it is no attempt: it ends."""
    process, status = os.getpid(), 1
    try:
        outcome = _train(job, store, trial, reporter, own)
        if os.getpid() != process:
            status = int(bool(outcome[3]))
            sys.stderr.write(outcome[3])
        return outcome
    finally:
        if os.getpid() != process:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _train(job: Job, store: Store, trial: Trial, reporter: Reporter, own: AbstractContextManager[object]) -> _Outcome:
    cut_short = not trial.complete
    if reporter.reply.reason == "":
        try:
            with own, as_a_script(job.trainable, job.folder):
                train = load(job, store)
                if job.enough is not None:
                    trial.enough_if(find(job.enough, job.folder))
                train(trial)
        except TrialEnd:
            pass
        except (ReportError, UserError, SpecError) as error:
            return "failed", "error", one_line(str(error)), ""
        except CommandFailed as error:
            return "failed", error.cause, str(error), error.trace
        except StoreError as error:
            return _failed("infrastructure", f"the store failed: {error}")
        except RecordsAway as error:
            return _failed("infrastructure", one_line(str(error)))
        except MemoryError as error:
            return "failed", "infrastructure", "out of memory", user_trace(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's code raises is an outcome
            if not (isinstance(error, SystemExit) and error.code in (None, 0)):  # a script's way to say that it is done
                return "failed", "error", in_a_line(error), user_trace(error)
        cut_short = trial.cut_short
    match reporter.reply.reason:
        case ("stopped" | "paused") as outcome if cut_short:
            return outcome, "", reporter.reply.why, ""
        case "preempted" if cut_short:
            return "preempted", "preempted", reporter.reply.why, ""
        case _:
            pass
    if trial.step == 0:
        return "failed", "error", f"trial {trial.number} ended without ever reporting {job.objective!r}", ""
    return "done", "", trial.enough or "", ""


def _failed(cause: Cause, message: str) -> _Outcome:
    return "failed", cause, message, ""
