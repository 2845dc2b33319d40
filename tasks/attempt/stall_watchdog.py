"""Watchdog that ends the process of an attempt which hangs, or exceeds its trial's limit."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import msgspec

from regrow.search.durations import in_words
from regrow.tasks.ports.messages import Assignment, Job
from regrow.tasks.ports.ranks import AttemptVerdict, RankGroup
from regrow.tasks.process import background
from regrow.tasks.trial.reporter import Reporter

LOOK_SECONDS = 1.0
"""Seconds between two checks, at most."""
OVERTIME, MOST_OVERTIME_SECONDS = 0.1, 60.0
"""Extra time of a trial for its next report: a tenth of its limit, a minute at most."""
STACKS_SECONDS = 5.0
"""Seconds for logging the stacks: the hanging training may hold a lock of logging."""
_CALLER = "/regrow/tasks/attempt/training.py"
"""File that calls the trainable."""
_LOG = logging.getLogger("regrow.trial")


class StallWatchdog:
    """Watches one attempt of a job with `stall` or `trial_seconds`. `leave` ends the process."""

    def __init__(
        self,
        job: Job,
        assignment: Assignment,
        reporter: Reporter,
        group: RankGroup,
        leave: Callable[[], None],
    ) -> None:
        self._job, self._lease, self._reporter = job, assignment, reporter
        self._group, self._leave = group, leave
        self._training = threading.get_ident()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch within the block, in which the attempt trains."""
        self._reporter.begin()
        shortest = min(
            (span for span in (self._job.spec.stall, self._job.trial_seconds) if span is not None),
            default=None,
        )
        if shortest is None:
            yield
            return
        check = partial(self._check, time.monotonic())
        # its end waits for a check, which ends the process if it is about to
        with background.every(min(LOOK_SECONDS, shortest / 10), check, name="overdue"):
            yield

    def _check(self, began: float) -> bool:
        """End the process if it has to be ended; return whether it had to be."""
        limit = self._job.trial_seconds
        ran = self._lease.ran + time.monotonic() - began
        if limit is not None and ran > limit + min(OVERTIME * limit, MOST_OVERTIME_SECONDS):
            message = f"it had its {in_words(limit)} and did not react"
            if self._reporter.step:
                return self._end(AttemptVerdict(outcome="done", cause="", message=message))
            return self._end(AttemptVerdict(message=f"{message}; it never reported anything"))
        stall, silent = self._job.spec.stall, self._reporter.silent()
        if stall is not None and silent is not None and silent > stall:
            message = f"it reported nothing for {in_words(stall)}"
            return self._end(AttemptVerdict(outcome="lost", cause="stalled", message=message))
        return False

    def _end(self, end: AttemptVerdict) -> bool:
        end = msgspec.structs.replace(end, message=self._group.stuck(end.message))
        background.start(self._log_stacks, end.message, name="stacks").join(STACKS_SECONDS)
        self.end(end)
        return True

    def end(self, end: AttemptVerdict) -> None:
        """Send the attempt's last message and end the process, whatever the training does."""
        self._reporter.flush(ended=self._reporter.ended(end))
        self._leave()

    def _log_stacks(self, message: str) -> None:
        whose = "its threads" if self._group.world.size == 1 else "the threads of rank 0"
        log_stacks(f"trial {self._lease.trial}: {message}", whose, self._training)


def log_stacks(message: str, whose: str, training: int) -> None:
    """Log a warning with the stacks of this process's threads, see `stacks`."""
    _LOG.warning("%s. What %s are doing:\n%s", message, whose, stacks(training))


def stacks(training: int) -> str:
    """Format the stacks of this process's threads, without regrow's, the training thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    ours = {ident for ident, name in names.items() if name.startswith("regrow-")}
    frames = sorted(sys._current_frames().items(), key=lambda one: one[0] != training)  # noqa: SLF001 - documented for this purpose
    names[training] = "where it trains"
    return "\n".join(
        f"{names.get(ident, ident)}:\n{_stack(frame)}"
        for ident, frame in frames
        if ident not in ours
    )


def _stack(frame: FrameType) -> str:
    calls = traceback.extract_stack(frame)
    ours = [place for place, call in enumerate(calls) if call.filename.endswith(_CALLER)]
    return "".join(traceback.format_list(calls[ours[-1] + 1 if ours else 0 :]))
