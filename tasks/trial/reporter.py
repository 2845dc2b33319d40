"""Reporter of an attempt: sends its news to the coordinator, buffered during training, immediately
when a decision is due.

A report costs a list append. A thread sends the buffer a few times a second, which also renews the
lease, and measures every few seconds what the attempt uses of its machine.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from regrow.search.events import Began, Ended, Row, Saved
from regrow.search.measured import Usage
from regrow.tasks.errors import ReportError
from regrow.tasks.ports.messages import (
    Assignment,
    CoordinatorClient,
    CoordinatorGone,
    Progress,
    Question,
    Reason,
    Reply,
)
from regrow.tasks.ports.ranks import AttemptVerdict
from regrow.tasks.process import background
from regrow.tasks.trial.usage_meter import UsageMeter, combined

FLUSH_SECONDS = 0.25
"""Minimum seconds between two messages while there is news; the coordinator can ask for more. A
live view lags behind by this much.
"""
LEASE_SECONDS = 1.0
"""Minimum seconds between two messages without news: when an attempt learns that it has to end."""
_WEIGHT: dict[Reason, int] = {"": 0, "paused": 1, "preempted": 1, "stopped": 2, "fenced": 3}
"""Weights of reasons to end: a reason is only replaced by a heavier one."""
MOST_NUMBERS = 100_000
"""Numbers buffered at most while the coordinator is unreachable; then `add` blocks. About 10 MB."""
NOTED_BYTES = 1 << 20
"""Size limit of the attributes noted in one call, in bytes of JSON."""
MESSAGE_NUMBERS = 20_000
"""Numbers in a message, exceeded by one row at most: 400 KB in the log, 2 MB in the coordinator
while it processes the message.
"""


NUMBER_BYTES = 8
"""Bytes of what is kept exactly that count as one number."""


class Reporter:
    """Single sender of an attempt's messages, one at a time, in order. Thread-safe."""

    def __init__(
        self,
        coordinator: CoordinatorClient,
        assignment: Assignment,
        began: Began | None,
        saved: Callable[[], list[Saved]],
    ) -> None:
        """Create the reporter; `start` begins sending.

        `began`: sent with the first message; None if the attempt could not begin. `saved`:
        returns the checkpoints that became durable since its last call.
        """
        self._coordinator, self._lease = coordinator, assignment
        self._began, self._arrived = began, time.monotonic()
        self._saved = saved
        self._usage = UsageMeter(gpus=assignment.needs.gpus)
        self._rows: deque[Row] = deque()
        self._exact: dict[int, dict[str, Any]] = {}
        self._suggested, self._noted = dict(assignment.suggested), dict[str, Any]()
        self._draining = self._draining_node = ""
        self.silent_node = ""
        """Node of another rank that stopped responding; included in every message from then on."""
        self._training: int | None = None
        self._waiting = False
        self._last_sign = time.monotonic()
        self._pace = 0.0
        self.step = 0
        """Last step that was reported or restored."""
        self._sending = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.reply = Reply(until=assignment.until)
        self.trouble: Callable[[], str] = lambda: ""
        """Returns why checkpoints cannot be saved at present, "" if they can."""
        self.others_usage: Callable[[], Sequence[Usage]] = tuple
        """Returns what the other ranks of a group used, as far as they have sent it."""
        self.on_drop: Callable[[tuple[str, ...], tuple[str, ...]], None] | None = None
        """Called with (drop, keep) when checkpoints are to be deleted."""

    def start(self) -> None:
        """Start the background thread that sends messages."""
        self._thread = background.start(self._run, name="reporter")

    def begin(self) -> None:
        """Mark the calling thread as the training thread; `silent` counts from now."""
        self._last_sign, self._training = time.monotonic(), threading.get_ident()

    def silent(self) -> float | None:
        """Return the seconds since the last report; None while the training waits for an answer."""
        return None if self._waiting else time.monotonic() - self._last_sign

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Within the block, the training thread may wait for others: its silence does not count."""
        if threading.get_ident() != self._training:
            yield
            return
        self._waiting = True
        try:
            yield
        finally:
            self._last_sign, self._waiting = time.monotonic(), False

    def add(self, row: Row, exact: dict[str, Any] | None = None) -> None:
        """Add a row; it is sent with the next message. `exact`: see Reported."""
        if exact is not None:
            self._exact[row.step] = exact
        self._rows.append(row)
        self.step, self._last_sign = row.step, time.monotonic()
        if len(self._rows) * (1 + len(row.metrics)) >= MOST_NUMBERS:
            self.flush()

    def value(self, name: str, distribution: dict[str, Any]) -> Any:
        """Return the value of a parameter of a define-by-run trial, once it is in the log. Each is
        requested once in the life of its trial.

        Raises LookupError if the lease is lost, ValueError if earlier trials had another kind of
        distribution under that name, and for what cannot be in the log.
        """
        if name not in self._suggested:
            question = Question(name=name, distribution=distribution)
            try:
                msgspec.json.decode(msgspec.json.encode(question), type=Question)
            except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
                raise ValueError(
                    f"{ascii(name)[:100]}: names of parameters are text, and choices plain JSON:"
                    f" {error}"
                ) from None
            reply = self.flush(asked=(question,))
            if problem := reply.refused.get(name):
                raise ValueError(problem)
            if name not in reply.suggested:
                raise LookupError(name)
            self._suggested[name] = reply.suggested[name]
        return self._suggested[name]

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes of the trial, plain JSON by name; they are sent with the next message.
        Raises ReportError if they are not JSON or too large.
        """
        named = ", ".join(map(ascii, attributes))[:200]
        try:
            written = msgspec.json.encode(attributes)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ReportError(f"{named}: only plain JSON can be noted: {error}") from None
        if len(written) > NOTED_BYTES:
            raise ReportError(
                f"{named}: what is to be noted has {len(written):,} bytes, and {NOTED_BYTES:,} are"
                " the most; keep it in a file of its own"
            )
        with self._sending:
            self._noted = {**self._noted, **msgspec.json.decode(written)}

    def notice(self, why: str, node: bool) -> None:
        """Handle a preemption notice, of the whole `node` or of this process only: the attempt
        saves a checkpoint and ends. `why`: for people.
        """
        self._obey(Reply(reason="preempted", why=why, process=not node))
        if node:
            self._draining = (
                why  # in every message from now on: a restarted coordinator must learn it, too
            )
        self.send_now()

    def notice_of(self, why: str, node_id: str) -> None:
        """Handle a preemption notice of another rank: of its node, or with "" of its process."""
        self._obey(Reply(reason="preempted", why=why, process=not node_id))
        if node_id:
            self._draining, self._draining_node = why, node_id
        self.send_now()

    def _obey(self, reply: Reply) -> None:
        earlier = self.reply
        # When all processes have to end, a trial's process may get its own notice before the
        # explanation.
        explained = earlier.process and reply.leaving and not reply.process
        if earlier.reason == "" or _WEIGHT[reply.reason] > _WEIGHT[earlier.reason] or explained:
            self.reply = reply

    def flush(
        self,
        *,
        ended: Ended | None = None,
        carry_on: bool = False,
        urgent: bool = True,
        asked: tuple[Question, ...] = (),
    ) -> Reply:
        """Send all news and wait for the answer, which becomes `reply`. Sends nothing once the
        lease is lost.

        `ended`, `carry_on`, `urgent`, `asked`: see Progress.
        """
        with self.awaited(), self._sending:
            if self.reply.reason == "fenced":
                self._rows.clear()
                self._exact.clear()
                return self.reply
            # Checkpoints first: a row is added before its checkpoint is asked for, so the rows
            # taken next include it.
            saved = tuple(self._saved())
            last = {"saved": saved, "ended": ended, "carry_on": carry_on, "asked": asked}
            left, drops = len(self._rows), list[Reply]()
            while True:
                rows = self._some_rows(left)
                left -= len(rows)
                reply = self._report(rows, urgent=urgent, **({} if left else last))
                drops += [reply] if reply.drop else []
                if not left or reply.reason == "fenced":
                    break
        for answer in drops:
            if self.on_drop is not None:
                self.on_drop(answer.drop, answer.keep)
        return reply

    def _some_rows(self, most: int) -> tuple[Row, ...]:
        """Take the oldest rows, as many as fit in a message. They are taken one by one, so that
        rows added meanwhile are not lost.
        """
        rows: list[Row] = []
        size = 0
        while len(rows) < most and size < MESSAGE_NUMBERS:
            rows.append(self._rows.popleft())
            size += 1 + len(rows[-1].metrics)
            if (exact := self._exact.get(rows[-1].step)) is not None:
                size += len(str(exact)) // NUMBER_BYTES
        return tuple(rows)

    def _report(self, rows: tuple[Row, ...], **more: Any) -> Reply:
        """Send one message, with `more` fields of Progress."""
        began, self._began = self._began, None
        noted, self._noted = self._noted, {}
        if began is not None:
            began = msgspec.structs.replace(began, ago=max(0.0, time.monotonic() - self._arrived))
        news = Progress(
            trial=self._lease.trial,
            attempt=self._lease.attempt,
            began=began,
            rows=rows,
            exact={row.step: self._exact.pop(row.step) for row in rows if row.step in self._exact},
            draining=self._draining,
            draining_node=self._draining_node,
            silent_node=self.silent_node,
            trouble=self.trouble(),
            noted=noted,
            **more,
        )
        try:
            reply = self._coordinator.report(news)
        except CoordinatorGone as error:
            reply = Reply(reason="fenced", why=str(error))
        self._pace = reply.pace
        self._obey(reply)
        return reply

    def ended(self, end: AttemptVerdict, media: int = 0) -> Ended:
        """Return the event of the attempt's end, after the last step. `media`: see Ended."""
        own = self._usage.summary()
        return Ended(
            t=time.time(),
            trial=self._lease.trial,
            attempt=self._lease.attempt,
            outcome=end.outcome,
            cause=end.cause,
            step=self.step,
            message=end.message,
            trace=end.trace,
            usage=None if own is None else combined((own, *self.others_usage())),
            media=media,
        )

    def send_now(self) -> None:
        """Send the news now: the next attempt needs the checkpoint in the log."""
        self._wake.set()

    def stop(self) -> None:
        """End the background thread; buffered news is sent by the next `flush`."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            hurried = self._wake.wait(max(FLUSH_SECONDS, self._pace))
            self._wake.clear()
            if self._stop.is_set():
                return
            if hurried or self._rows or time.monotonic() - last >= LEASE_SECONDS:
                self.flush(urgent=hurried)
                last = time.monotonic()
            self._usage.sample()  # after the news, which others may wait for
