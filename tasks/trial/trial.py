"""The `Trial` object that user code sees."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from regrow.search.durations import in_words
from regrow.search.endings import Endings
from regrow.search.events import Row
from regrow.search.spec import MOST_STEPS
from regrow.tasks.errors import RegrowError, ReportError, UserError
from regrow.tasks.media.content import Content
from regrow.tasks.media.items import checked
from regrow.tasks.media.log import MediaLog
from regrow.tasks.media.writer import MediaWriter
from regrow.tasks.ports.messages import Assignment, Job, Reason
from regrow.tasks.ports.ranks import SNAPSHOTS, RankCommand, Ranks, ReportReceiver, Snapshots, World
from regrow.tasks.process import temporary
from regrow.tasks.process.disk import full, is_full
from regrow.tasks.trial.metric_values import clean
from regrow.tasks.trial.reporter import Reporter

ROOM_SECONDS = 1.0
"""Seconds between two tries to write a snapshot to a full disk."""
EXACT_BYTES = 64 << 10
"""Size limit of what `keep_exactly` keeps with one report, in bytes of JSON."""
_ELSEWHERE = (
    "trial {}: trial.{} was called in a process that the trainable started, which cannot report;"
    " hand what it found back to the trainable (the result of a pool, a queue) and report it there"
)
Save = Callable[[Path], object]


class NotSaved(RegrowError):
    """Raised by a `checkpoint(folder)` function that has nothing to save at this step."""


class TrialEnd(BaseException):
    """Unwinds a trainable that keeps reporting after its attempt has to end. Not an Exception, so
    that `except Exception` does not catch it.
    """


class Trial(MediaLog):
    """One attempt at one configuration.

    What `log_image` and the other `log_...` log belongs to the step in progress, the one that the
    next report ends. An item replaces an earlier one of the same name and step. What is larger than
    10 MB, or is beyond 1,000 items or 200 MB of a trial, is left out; the trial's log has a line
    about it. In a trial of several workers, rank 0's items are kept.

    Attributes:
        config: the parameters, nested like the search space.
        number: the trial's number, from 0.
        attempt: the attempt's number, from 1.
        seed: 32-bit number, the same in every attempt.
        width: number of resource slots of the attempt.
        world: this process among the trial's workers (`rank`, `size`, `local_rank`, `local_size`);
            World(0, 1, 0, 1) for a single worker.
        restored: local folder with the checkpoint to continue from, read-only; None at the
            beginning.
        attributes: those that the user queued with the values of a define-by-run trial.
        event: what triggered this run of a schedule (new files, the end of another experiment, a
            request); None for no trigger.
        log: logger whose lines appear with the trial in Prefect.

    """

    def __init__(
        self,
        job: Job,
        assignment: Assignment,
        reporter: ReportReceiver,
        writer: Snapshots,
        *,
        restored: Path | None,
        restored_step: int,
        ranks: Ranks | None = None,
        suggestions: Reporter | None = None,
        media: MediaWriter | None = None,
    ) -> None:
        self.config: dict[str, Any] = assignment.config
        self.number = assignment.trial
        self.attempt = assignment.attempt
        self.seed = assignment.seed
        self.width = assignment.width
        self.restored = restored
        spec = job.spec
        self.event = spec.event
        self.attributes: dict[str, Any] = dict(assignment.attributes)
        self.log = logging.getLogger(f"regrow.trial.{assignment.trial}")
        self._job, self._reporter, self._writer = job, reporter, writer
        self._ranks = ranks or Ranks()
        self.world: World = self._ranks.world
        self._order = RankCommand()
        """Last order. Ranks of a group follow it together."""
        self._step = restored_step
        self._current: int | None = None
        most = spec.max_steps
        self._most = MOST_STEPS if most is None or job.clock is not None else most
        self._time = (
            restored_step if job.clock is None else max(assignment.times[:restored_step], default=0)
        )
        """Step of the last report as scheduling decisions count it."""
        self._limit = self._most
        self._every_seconds = assignment.every_seconds or spec.checkpoint.every_seconds
        self._last_checkpoint = time.monotonic()
        self._saved_step = restored_step
        self._reporting = False
        """Whether a report is in progress, or has raised."""
        self._left_out = False
        """Whether the last due checkpoint was skipped because the disk was full."""
        self._settled = False
        """Whether a report was made since the attempt was asked to leave: ending loses no work."""
        self._function: Callable[[int, dict[str, float | None]], object] | None = None
        self._deadline: float | None = None
        if job.trial_seconds is not None:
            self._deadline = time.monotonic() + job.trial_seconds - assignment.ran
        self._endings = None
        if spec.stop.trial.watches:
            self._endings = Endings(spec.ending, assignment.values[:restored_step])
        self.enough = None if self._endings is None else self._endings.why
        """Why the trial ends before its last step, None if it does not."""
        if self.enough is not None or self._out_of_time:
            self._limit = restored_step
        self._metrics: dict[str, float | None] = {job.objective: None}
        self._exact: dict[str, Any] | None = None
        """What `keep_exactly` was given for the next report."""
        self._dropped: set[str] = set()
        """Names of reported metrics whose values are not numbers."""
        self._saved_nothing = False
        """Whether the warning about a checkpoint without files was logged."""
        self._pid = os.getpid()
        self._suggestions = suggestions
        self._media = media
        self.returned: object = None
        """What the trainable returned: nothing uses it, and a message names it."""
        self.given_up: str | None = None
        """Why the trainable stopped its own trial, None if it did not."""
        self.cut_short = False
        """Whether the trainable was kept from further steps; False if it returned by itself."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Refuse pickling: raises ReportError, as a trial cannot be sent to another process."""
        raise ReportError(
            f"trial {self.number} was to be sent to another process, which cannot report for it;"
            " send what the process needs (trial.config, trial.seed), and report what comes back"
        )

    @property
    def step(self) -> int:
        """Last step that was reported or restored; 0 before the first."""
        return self._step

    @property
    def at(self) -> int:
        """Step in progress: to be reported next, or whose checkpoint is being written."""
        return self._step + (not self._reporting)

    def log_media(self, name: str, make: Callable[[], Content]) -> None:
        """See MediaLog."""
        if os.getpid() != self._pid:
            raise ReportError(_ELSEWHERE.format(self.number, "log_..."))
        checked(name)
        if self._media is not None:
            step = self._current or (self._step if self._over() else self.at)
            with self._reporter.awaited():
                self._media.keep(name, step, make())

    def set_stop_function(self, function: Callable[[int, dict[str, float | None]], object]) -> None:
        """Set the experiment's stop function for trials: (number, metrics of the step) -> whether
        the trial has done enough.
        """
        self._function = function

    def metrics(self) -> Collection[str]:
        """Return the names of the reported metrics, before the first report the objective's."""
        return self._metrics.keys()

    @property
    def metric(self) -> str:
        """Name of the experiment's metric, which each report must contain; the first of several."""
        return self._job.objective

    @property
    def max_steps(self) -> int:
        """Number of steps that the experiment gives a trial, such as epochs; 1,000,000 if none."""
        return self._most

    @property
    def complete(self) -> bool:
        """Whether the attempt has reached its last step."""
        return self._step >= self._limit

    @property
    def told(self) -> Reason:
        """Why the attempt has to end, "" while it does not: to know before the next report."""
        return self._reporter.reply.reason

    def ends_with_next_report(self) -> None:
        """Make the next reported step the last one, at which a checkpoint is due."""
        self._limit = self._step + 1

    def suggest(self, name: str, distribution: dict[str, Any]) -> Any:
        """Return the trial's value of a parameter, drawn from a distribution in Optuna's notation.
        Every attempt gets the same value.

        Requires `search: define_by_run`. Raises ReportError in a trial of several workers.
        """
        try:
            return self._asking.value(name, distribution)
        except LookupError:
            self.end()

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Write attributes of the trial (plain JSON by name) to the log. Raises as `suggest`."""
        self._asking.note(attributes)

    def keep_exactly(self, values: Mapping[str, Any]) -> None:
        """Keep plain JSON in the log with the next report, by name, see `Reported.exact`: what is
        no float. What does not fit into 64 KB is left out, the largest first.
        """
        written = {name: msgspec.json.encode(value) for name, value in values.items()}
        room, kept = EXACT_BYTES, dict[str, Any]()
        for name, data in sorted(written.items(), key=lambda item: len(item[1])):
            room -= len(name) + len(data)
            if room >= 0:
                kept[name] = msgspec.json.decode(data)
            else:
                self._drop(name, f"{len(data):,} bytes of JSON")
        self._exact = kept or None

    def conclude(self, metrics: Mapping[str, float]) -> None:
        """Make the last report, which counts in any case. Raises ReportError as `report` does."""
        clean = self._clean(metrics)
        self._step, self._metrics = self._step + 1, self._metrics | clean
        self._reporter.add(Row(self._step, time.time(), clean))
        self._limit, self.cut_short = self._step, False

    def give_up(self, why: str) -> NoReturn:
        """End the trial as stopped, at the trainable's own decision."""
        self.given_up = why
        raise TrialEnd

    def end(self) -> NoReturn:
        """End the attempt at the current step."""
        self.cut_short = not self.complete
        raise TrialEnd

    def steps(self, until: int | None = None) -> Iterator[int]:
        """Yield the steps still to do, from the one after the restored step. Report once in each.

        Ends earlier when a decision or an interruption ends the attempt. Raises ReportError if a
        step was not reported.

        Args:
            until: last step; None for the experiment's `max_steps`, or 1,000,000 if that is not
                given.

        """
        outer = None if self._current is None else self._limit
        own = self._limit = self._most if until is None else min(until, self._most)
        if self.enough is not None or self._out_of_time:
            self._limit = self._step
        try:
            while True:
                saved = self._reporter.reply.leaving and self._saved_step == self._step
                if self._over() or (self._alone and saved):
                    self.cut_short = not self.complete
                    return
                self._current = step = self._step + 1
                yield step
                if self._step < step:
                    raise ReportError(
                        f"step {step} was not reported; call trial.report once a step"
                    )
                self._current = None
        finally:
            enough = self.enough is not None or self._out_of_time
            if outer is not None and self._limit == own and not enough:
                self._limit = outer  # the loop around this one has its own last step

    def report(self, metrics: Mapping[str, float], checkpoint: Save | None = None) -> None:
        """Report one step.

        Args:
            metrics: must contain the experiment's metric. Others may be NaN; those that are not
                numbers are left out.
            checkpoint: called with an empty folder when a checkpoint is due. It writes the files
                that the attempt needs to continue after this step.

        Raises:
            ReportError: the experiment's metric is missing or not a finite number.
            UserError: an earlier checkpoint can never be saved.

        """
        if os.getpid() != self._pid:
            raise ReportError(_ELSEWHERE.format(self.number, "report"))
        if (refused := self._writer.refused) is not None:
            raise refused
        self._end_if_over()
        if self._current is not None and self._step >= self._current:
            raise ReportError(
                f"step {self._current} was reported twice; call trial.report once a step"
            )
        clean, saves = self._clean(metrics), checkpoint is not None
        if not self._alone:
            with self._reporter.awaited():  # by the other ranks, who have their own limit
                clean, saves = self._ranks.gather(self._step + 1, clean, saves=saves)
        self._step, self._reporting = self._step + 1, True
        self._metrics |= clean
        # Rank 0 decides what all ranks do. A second order follows if a scheduling decision was due.
        order = self._ranks.ordered(lambda: self._first_order(clean, saves=saves))
        self._obey(order, checkpoint)
        if order.more:
            order = self._ranks.ordered(lambda: self._second_order(saves=saves))
            self._obey(order, checkpoint)
        self._order, self._reporting = order, False
        if self._current is None:
            self._end_if_over()

    # ---- what is to be done after a report, which one rank decides for all

    def _first_order(self, metrics: dict[str, float | None], *, saves: bool) -> RankCommand:
        """Record the step, which counts from here on, and decide what follows."""
        leaving = self._reporter.reply.leaving
        self._reporter.add(Row(self._step, time.time(), metrics), self._exact)
        self._exact = None
        self._time = (
            self._step if self._job.clock is None else self._job.clock.time(metrics, self._time)
        )
        self._end_early(metrics)
        self._settled = leaving
        until = self._reporter.reply.until
        more = until is not None and self._time >= until and self._step != self._most
        return self._made(snapshot=saves and (leaving or self._checkpoint_due()), more=more)

    def _second_order(self, *, saves: bool) -> RankCommand:
        """Decide what follows at a step at which a decision was due."""
        reply, snapshot = self._reporter.flush(), False
        # decided at this step: the trial continues from this step, not from the next one
        if reply.leaving:
            snapshot = saves and not reply.unsaved and self._saved_step < self._step
            self._settled = True
        return self._made(snapshot=snapshot, more=False)

    def _made(self, *, snapshot: bool, more: bool) -> RankCommand:
        saved = snapshot or self._saved_step == self._step
        over = self._over_by_now() or (self._reporter.reply.leaving and saved and not self._alone)
        return RankCommand(
            snapshot=snapshot, more=more, over=over, reason=self._reporter.reply.reason
        )

    def _obey(self, order: RankCommand, save: Save | None) -> None:
        if not order.snapshot:
            return
        if save is not None:
            self._snapshot(save)
        else:  # another rank saves; this one has no files to add
            self._writer.submit(temporary.made("snapshot-"), self._step)

    @property
    def _asking(self) -> Reporter:
        if self._suggestions is None:
            raise ReportError("several workers of one trial cannot ask for values one by one")
        return self._suggestions

    @property
    def _alone(self) -> bool:
        return self.world.size == 1

    def _end_early(self, metrics: Mapping[str, float | None]) -> None:
        """Make this step the last one if it meets the experiment's conditions for that."""
        deadline, function = self._deadline, self._function
        if self._endings is not None:
            self._endings.add(float(metrics[self._job.objective] or 0.0))
            self.enough = self._endings.why
        if self.enough is not None:
            pass
        elif deadline is not None and time.monotonic() >= deadline:
            self.enough = f"it had its {in_words(self._job.trial_seconds or 0.0)}"
        elif function is not None and function(self.number, dict(metrics)):
            self.enough = "its stop function returned true"
        if self.enough is not None or self._out_of_time:
            self._limit = self._step

    @property
    def _out_of_time(self) -> bool:
        """Whether all steps are done, if a metric counts the steps."""
        return (
            self._job.clock is not None
            and self._job.spec.max_steps is not None
            and self._time >= self._job.spec.max_steps
        )

    def _over(self) -> bool:
        """Return whether the attempt has to end. Ranks of a group leave together: what arrived
        since the last order counts with the next one.
        """
        if self._alone:
            return self._over_by_now()
        return self.complete or self._order.over

    def _over_by_now(self) -> bool:
        if self.complete:
            return True
        if self._reporter.reply.leaving:
            return self._settled
        return self._reporter.reply.reason != ""

    def _end_if_over(self) -> None:
        if self._over():
            self.end()

    def _checkpoint_due(self) -> bool:
        seconds = time.monotonic() - self._last_checkpoint
        if self._step == self._limit:
            return True
        if self._every_seconds is not None:
            return seconds >= self._every_seconds
        return self._step % (self._job.spec.checkpoint.every_steps or 1) == 0

    def _snapshot(self, save: Save) -> None:
        began = time.monotonic()
        try:
            folder = self._with_room(save)
        except NotSaved as error:
            self.log.warning(
                "trial %d: no checkpoint at step %d: %s", self.number, self._step, error
            )
            self._writer.absent(self._step, str(error))
            return
        if folder is None:
            self._writer.absent(self._step, "it had no room on its disk")
            return
        if (
            self._alone
            and not self._saved_nothing
            and not any(files for _, _, files in os.walk(folder))
        ):
            self._saved_nothing = True
            self.log.warning(
                "trial %d: the checkpoint of step %d is saved, but holds no file",
                self.number,
                self._step,
            )
        with self._reporter.awaited():
            self._writer.submit(folder, self._step, time.monotonic() - began)
        self._saved_step, self._last_checkpoint = self._step, time.monotonic()

    def _with_room(self, save: Save) -> Path | None:
        """Write a snapshot and return its folder; None if it has no room, or no longer counts."""
        while (folder := self._written(save)) is None:
            # The first snapshot without space is skipped, and training continues. Later ones, and
            # the last one, wait for space.
            if not (self._left_out or self._step == self._limit or self._reporter.reply.leaving):
                self._left_out = True
                return None
            if self._reporter.reply.reason in ("stopped", "fenced"):
                return None
            with self._reporter.awaited():
                time.sleep(ROOM_SECONDS)
        self._left_out = False
        return folder

    def _written(self, save: Save) -> Path | None:
        """Write a snapshot and return its folder; None if its disk is full."""
        place = Path(tempfile.gettempdir())
        folder = None
        try:
            folder = temporary.made("snapshot-")
            save(folder)
        except BaseException as error:
            found = is_full(error, place)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if not found or not isinstance(error, Exception):
                raise
            where = f"{place}, where snapshots are made (TMPDIR)"
            self._writer.troubled(
                SNAPSHOTS,
                f"{full(place)}; trial {self.number}, step {self._step}, has no room in {where}",
            )
            return None
        self._writer.troubled(SNAPSHOTS, "")
        if not folder.is_dir():
            raise UserError(
                f"the checkpoint of step {self._step} cannot be saved: its folder is gone; write"
                " into the folder that `checkpoint` is called with, and leave it there"
            )
        return folder

    def _clean(self, metrics: Mapping[str, float]) -> dict[str, float | None]:
        clock = self._job.clock
        step = None if clock is None else clock.name
        return clean(metrics, self._job.objective, f"step {self._step + 1}", step, self._drop)

    def _drop(self, name: str, what: str) -> None:
        if name not in self._dropped:
            self._dropped.add(name)
            self.log.warning(
                "trial %d: %r is not recorded: it is %s, not a number", self.number, name, what
            )
