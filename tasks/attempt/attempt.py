"""Runs one attempt from its assignment to its outcome, which is a value: no exception escapes."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from regrow.search.events import Began, Cause, Place, Saved
from regrow.search.measured import Traffic
from regrow.tasks.attempt.stall_watchdog import StallWatchdog
from regrow.tasks.attempt.training import end_process_pools, recorded, train
from regrow.tasks.checkpoint import saving
from regrow.tasks.checkpoint.retry import retry_while_unavailable
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.media.writer import MediaWriter
from regrow.tasks.output import parts
from regrow.tasks.output.traces import in_a_line, one_line
from regrow.tasks.ports.executor import Finished
from regrow.tasks.ports.messages import Assignment, Host, Job, Shared
from regrow.tasks.ports.ranks import AttemptVerdict, GroupBroken, PartMissing, RankFailed, RankGroup
from regrow.tasks.ports.store import Store, StoreError, Unavailable, pop_traffic
from regrow.tasks.process import temporary
from regrow.tasks.trial.metric_values import described
from regrow.tasks.trial.reporter import Reporter
from regrow.tasks.trial.trial import Trial

T = TypeVar("T")
_LOG = logging.getLogger("regrow.trial")
STUCK_EXIT = 76
"""Exit code of a worker whose trainable did not react (EX_PROTOCOL)."""
OUTPUT_SECONDS = 3.0
"""Seconds that a process waits at its end until the printed output is in the store."""
PATIENCE_SECONDS = 900.0
"""Seconds that an attempt waits for an unreachable store until it gives up restoring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where an attempt continues: after `step`, from the checkpoint in `folder`, None for none."""

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
    shared: Shared,
    assignment: Assignment,
    *,
    task_run: str,
    carry_on: Callable[[], bool],
    group: RankGroup | None = None,
) -> Finished:
    """Run one attempt: restore, train, report, and return the outcome.

    Raises GroupBroken if a rank of the group is lost: the work done so far is reported, the end is
    not.

    Args:
        shared: what all attempts of the session share.
        assignment: the attempt.
        task_run: the attempt's Prefect task run.
        carry_on: called at the end; whether to request another trial for this process.
        group: the other ranks, with this process as rank 0; None for a single process.

    """
    store, host, group = shared.store, shared.host, group or RankGroup()
    scratch = temporary.made(f"{assignment.trial}-")
    writer = CheckpointWriter(
        store, trial=assignment.trial, attempt=assignment.attempt, others=group.others
    )
    # Closed after the last message: a notice that arrives during the last upload must
    # not cut it short.
    with ExitStack() as listening:
        listening.callback(shutil.rmtree, scratch, ignore_errors=True)
        listening.callback(writer.close)
        asked = partial(_asked, shared.job, store)
        origin = _restored(assignment, store, scratch / "restored")
        place = host.place()
        began = Began.at(
            place,
            t=time.time(),
            trial=assignment.trial,
            attempt=assignment.attempt,
            others=list(group.places),
            task_run=task_run,
            restored=origin.step,
            skipped=list(origin.skipped),
            traffic=asked(),
        )
        # Without the store, the attempt does not begin: beginning at step 0 would supersede all
        # earlier work.
        begins = origin.trouble is None
        saved = _saved_by(writer, assignment, origin.cloned, asked)
        reporter = Reporter(shared.coordinator, assignment, began if begins else None, saved)
        reporter.step = origin.step
        reporter.on_drop, writer.on_news = writer.drop, reporter.send_now
        reporter.trouble = lambda: writer.trouble
        reporter.others_usage = lambda: group.usage
        if begins and (assignment.checkpoints or group.others is not None):
            # New work supersedes what earlier attempts did beyond `step`; a decision may
            # be due at once.
            reporter.flush()
        reporter.start()
        media = MediaWriter(
            store,
            trial=assignment.trial,
            attempt=assignment.attempt,
            restored=origin.step,
            queue=writer.call,
            folder=scratch / "media",
        )
        attempt = _Attempt(shared, assignment, place, group, reporter, writer, media)
        try:
            if begins:
                listening.enter_context(host.listen(reporter.notice))
                end = attempt.run(origin, scratch)
            else:
                why = f"its checkpoint could not be read: {origin.trouble}"
                end = AttemptVerdict(cause="infrastructure", message=why)
            end = attempt.saved(end)
        except GroupBroken as broken:
            writer.give_up()
            writer.drain()
            reporter.silent_node = attempt.silent_node(broken)
            reporter.flush()  # what was done and saved counts
            raise
        finally:
            reporter.stop()
        ended = msgspec.structs.replace(reporter.ended(end, media.count), traffic=asked())
        fenced = reporter.reply.reason == "fenced"
        reply = reporter.reply if fenced else reporter.flush(ended=ended, carry_on=carry_on())
        return Finished(ended=ended, reply=reply, restored=origin.step)


class _Attempt:
    """An attempt that begins: its parts, and what ends it."""

    def __init__(
        self,
        shared: Shared,
        assignment: Assignment,
        place: Place,
        group: RankGroup,
        reporter: Reporter,
        writer: CheckpointWriter,
        media: MediaWriter,
    ) -> None:
        self._shared, self._lease = shared, assignment
        self._place, self._group = place, group
        self._reporter, self._writer, self._media = reporter, writer, media
        self._overdue = StallWatchdog(
            shared.job, assignment, reporter, group, _leaving(shared.host)
        )

    def run(self, origin: _Origin, scratch: Path) -> AttemptVerdict:
        """Begin with the other ranks, train, and return how that ended. Raises GroupBroken."""
        group, reporter = self._group, self._reporter
        trial = Trial(
            self._shared.job,
            self._lease,
            reporter,
            self._writer,
            restored=origin.folder,
            restored_step=origin.step,
            ranks=group,
            suggestions=reporter if group.others is None else None,
            media=self._media,
        )
        own = recorded(self._shared, self._lease, trial, scratch)
        try:
            with group.watched(reporter.notice_of, self._left_by, reporter.silent):
                group.begin(origin.step, origin.manifest, origin.folder)
                with self._overdue.watching():
                    return self._train(trial, own)
        except RankFailed as error:
            return error.verdict
        finally:
            end_process_pools()
            self._shared.host.end_children()

    def _train(self, trial: Trial, own: AbstractContextManager[object]) -> AttemptVerdict:
        reporter, group = self._reporter, self._group
        cut_short = not trial.complete
        if reporter.reply.reason == "":
            failure = train(self._shared, trial, own)
            if failure is not None:
                if (wrong := group.blamed()) is not None:  # may have caused this failure
                    raise wrong
                who = "" if group.others is None else f"rank 0, at step {trial.at}: "
                early = f" ({before})" if (before := group.ended_before(trial.at)) else ""
                message = f"{who}{failure.message}{early}"
                return msgspec.structs.replace(failure, message=message)
            with reporter.awaited():
                group.finish(trial.step)
            cut_short = trial.cut_short
            if trial.given_up is not None:
                why = trial.given_up or reporter.reply.why
                return AttemptVerdict(outcome="stopped", cause="", message=why)
        match reporter.reply.reason:
            case ("stopped" | "paused") as outcome if cut_short:
                return AttemptVerdict(outcome=outcome, cause="", message=reporter.reply.why)
            case "preempted" if cut_short:
                cause: Cause = "infrastructure" if reporter.reply.process else "preempted"
                return AttemptVerdict(outcome="preempted", cause=cause, message=reporter.reply.why)
            case _:
                pass
        if trial.step == 0:
            return AttemptVerdict(message=self._silent(trial))
        return AttemptVerdict(outcome="done", cause="", message=trial.enough or "")

    def _silent(self, trial: Trial) -> str:
        name = self._shared.job.objective
        what = f"it ended without ever reporting {name!r}"
        if trial.returned is None:
            return what
        returned = described(trial.returned)
        return f"{what}; it returned {returned}: call trial.report({{{name!r}: ...}}) instead"

    def saved(self, end: AttemptVerdict) -> AttemptVerdict:
        """Wait for the last checkpoints. Return the verdict, changed to failed if checkpoints can
        never be saved or the last one was not saved. Raises GroupBroken.

        A checkpoint that lacks the part of a rank was skipped by the training itself, and does not
        count as failed.
        """
        writer, reporter = self._writer, self._reporter
        if reporter.reply.reason == "fenced":
            writer.give_up()  # nothing that it still saves counts
        writer.drain()
        for lost in writer.errors():
            _LOG.warning(
                "trial %d: the checkpoint of step %d was not saved: %s",
                self._lease.trial,
                lost.step,
                lost.error,
            )
        if end.outcome in ("failed", "lost"):
            return end
        if writer.broken is not None:
            if reporter.reply.reason != "fenced":
                raise writer.broken
            return end
        if writer.refused is not None:
            return AttemptVerdict(message=one_line(str(writer.refused)))
        last = writer.unsaved
        if (
            end.outcome != "done"
            or last is None
            or isinstance(last.error, PartMissing | Unavailable)
        ):
            return end
        why = f"the checkpoint of step {last.step}, its last, was not saved"
        return AttemptVerdict(cause="infrastructure", message=f"{why}: {in_a_line(last.error)}")

    def silent_node(self, broken: GroupBroken) -> str:
        """Return the node that may be cut off; empty for none."""
        return self._elsewhere(broken) if broken.silent else ""

    def _elsewhere(self, broken: GroupBroken) -> str:
        return broken.elsewhere(self._place, self._group.places)

    def _left_by(self, wrong: RankFailed | GroupBroken) -> None:
        """End a rank 0 that does not react, after its last message."""
        if isinstance(wrong, RankFailed):
            self._overdue.end(wrong.verdict)
            return
        _LOG.warning("%s; this rank did not notice, and is ended", wrong)
        # Reported here: others only see that this process ends.
        self._reporter.silent_node = self.silent_node(wrong)
        cause: Cause = "preempted" if self._elsewhere(wrong) else "infrastructure"
        self._overdue.end(AttemptVerdict(outcome="lost", cause=cause, message=wrong.why))


def _leaving(host: Host) -> Callable[[], None]:
    """Return the function that ends the process of an attempt that does not react."""

    def leave() -> None:
        host.end_children()
        parts.KEEPER.leave(OUTPUT_SECONDS)
        os._exit(STUCK_EXIT)

    return leave


def _restored(assignment: Assignment, store: Store, folder: Path) -> _Origin:
    """Restore the newest valid checkpoint into `folder`. One of another trial is cloned."""
    try:
        found = _retrying(lambda: saving.restore(store, assignment.checkpoints, folder))
    except (StoreError, OSError) as error:
        return _Origin(trouble=error)
    for key, why in found.skipped:
        _LOG.warning(
            "trial %d: the checkpoint %s cannot be used, going back to the one before: %s",
            assignment.trial,
            key,
            why,
        )
    origin = _Origin(
        step=found.step,
        folder=None if found.manifest is None else folder,
        skipped=tuple(f"{key}: {why}" for key, why in found.skipped),
        manifest=found.manifest,
    )
    source = found.manifest
    if source is None or source not in assignment.checkpoints[: assignment.clones]:
        return origin
    # Another trial's weights: they become a checkpoint of this trial, at the step that it
    # has reached.
    trial, attempt, step = assignment.trial, assignment.attempt, assignment.step
    try:
        copy = _retrying(
            lambda: saving.clone(store, source, trial=trial, attempt=attempt, step=step)
        )
    except (StoreError, OSError) as error:
        return _Origin(step=step, skipped=origin.skipped, trouble=error)
    cloned = _saved(assignment, copy, source=source)
    return replace(origin, step=step, cloned=cloned, manifest=copy.manifest)


def _retrying(what: Callable[[], T]) -> T:
    return retry_while_unavailable(what, say=_LOG.warning, seconds=PATIENCE_SECONDS)


def _asked(job: Job, store: Store) -> Traffic | None:
    """Return what this process asked of the store since the last call, of this attempt or one
    before it; None for nothing, or if it does not count.
    """
    return pop_traffic(store) if job.spec.store_prices is not None else None


def _saved(
    assignment: Assignment,
    made: saving.SavedCheckpoint,
    *,
    source: str | None = None,
    traffic: Traffic | None = None,
) -> Saved:
    return Saved(
        t=time.time(),
        trial=assignment.trial,
        attempt=assignment.attempt,
        step=made.step,
        manifest=made.manifest,
        size=made.size,
        source=source,
        seconds=made.seconds,
        traffic=None if traffic is None else traffic + made.traffic,
    )


def _saved_by(
    writer: CheckpointWriter,
    assignment: Assignment,
    cloned: Saved | None,
    asked: Callable[[], Traffic | None],
) -> Callable[[], list[Saved]]:
    """Return a function that lists what became durable since its last call, first `cloned`."""
    first = [] if cloned is None else [cloned]

    def saved() -> list[Saved]:
        before, first[:] = list(first), []
        return before + [_saved(assignment, made, traffic=asked()) for made in writer.results()]

    return saved
