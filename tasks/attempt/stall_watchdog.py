"""Watchdog for attempts that hang or exceed their trial's time limit. It ends the process if the
training does not react.
"""

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

from regrow.search.durations import in_words
from regrow.search.events import Cause, Ended, Outcome
from regrow.tasks.ports.messages import Assignment, Job
from regrow.tasks.ports.ranks import Group
from regrow.tasks.process import background
from regrow.tasks.trial.reporter import Reporter

LOOK_SECONDS = 1.0
"""Seconds between two checks, at most."""
OVERTIME, MOST_OVERTIME_SECONDS = 0.1, 60.0
"""Extra time for a trial beyond its time limit to make its next report: a tenth of the limit, a
minute at most.
"""
STACKS_SECONDS = 5.0
"""Seconds for logging the stacks: the hanging training may hold a lock of logging."""
_CALLER = "/regrow/tasks/attempt/training.py"
"""File that calls the trainable."""
_LOG = logging.getLogger("regrow.trial")


class StallWatchdog:
    """Watches one attempt of a job with `stall` or `trial_seconds`. `leave` ends the process and
    does not return.
    """

    def __init__(
        self,
        job: Job,
        assignment: Assignment,
        reporter: Reporter,
        group: Group,
        leave: Callable[[], None],
    ) -> None:
        self._job, self._lease, self._reporter, self._group, self._leave = (
            job,
            assignment,
            reporter,
            group,
            leave,
        )
        self._training = threading.get_ident()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch within the block, in which the attempt trains."""
        self._reporter.begin()
        shortest = min(
            (span for span in (self._job.stall, self._job.trial_seconds) if span is not None),
            default=None,
        )
        if shortest is None:
            yield
            return
        look = partial(self._look, time.monotonic())
        # its end waits for a check, which ends the process if it is about to
        with background.every(min(LOOK_SECONDS, shortest / 10), look, name="overdue"):
            yield

    def _look(self, began: float) -> bool:
        """End the process if it has to be ended; return whether it had to be."""
        limit = self._job.trial_seconds
        ran = self._lease.ran + time.monotonic() - began
        if limit is not None and ran > limit + min(OVERTIME * limit, MOST_OVERTIME_SECONDS):
            message = f"it had its {in_words(limit)} and did not react"
            if self._reporter.step:
                return self._end("done", "", message)
            return self._end("failed", "error", f"{message}; it never reported anything")
        if (
            self._job.stall is not None
            and (silent := self._reporter.silent()) is not None
            and silent > self._job.stall
        ):
            return self._end(
                "lost", "stalled", f"it reported nothing for {in_words(self._job.stall)}"
            )
        return False

    def _end(self, outcome: Outcome, cause: Cause, message: str) -> bool:
        message = self._group.stuck(message)
        background.start(self._tell_stacks, message, name="stacks").join(STACKS_SECONDS)
        self.end(outcome, cause, message)
        return True

    def end(self, outcome: Outcome, cause: Cause, message: str, trace: str = "") -> None:
        """Send the attempt's last message and end the process, whatever the training does."""
        self._reporter.flush(
            ended=Ended(
                t=time.time(),
                trial=self._lease.trial,
                attempt=self._lease.attempt,
                outcome=outcome,
                cause=cause,
                step=self._reporter.step,
                message=message,
                trace=trace,
            )
        )
        self._leave()

    def _tell_stacks(self, message: str) -> None:
        told = stacks(self._training)
        whose = "its threads" if self._group.world.size == 1 else "the threads of rank 0"
        _LOG.warning(
            "trial %d: %s. What %s are doing:\n%s", self._lease.trial, message, whose, told
        )


def stacks(training: int) -> str:
    """Format the stacks of this process's threads, without regrow's own; the training thread
    (identifier `training`) first.
    """
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
    """Format a thread's stack without the frames that called the trainable."""
    calls = traceback.extract_stack(frame)
    ours = [place for place, call in enumerate(calls) if call.filename.endswith(_CALLER)]
    return "".join(traceback.format_list(calls[ours[-1] + 1 if ours else 0 :]))
