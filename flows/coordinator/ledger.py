"""Core of the coordinator, without Ray: planner and log; an event is written before it is acted on.

`record` applies observations, lets the planner decide, and queues both for the log. `committed`
waits until they are durable (group commit: events that arrive while a segment is written go into
the next one). The actor that communicates with workers and driver is in `coordinator.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from regrow.infra.log.log import Log, Superseded
from regrow.infra.log.reading import fold
from regrow.infra.stores import gather_seconds
from regrow.search import events
from regrow.search.errors import SearchCodeError, SpecError
from regrow.search.events import AnyEvent, Cause, Outcome
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove
from regrow.search.measured import Traffic
from regrow.search.planning.planner import Planner
from regrow.search.samplers.external import External
from regrow.tasks.errors import RegrowError, UserCodeError
from regrow.tasks.output.traces import printable, user_trace
from regrow.tasks.ports.store import Store, Unavailable, pop_traffic

COMPACT_EVERY = 128
"""Segments between two checks for small ones to merge."""
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses between tries while the store is unreachable; the last one repeats."""
MOST_BYTES = 32 << 20
"""Most bytes of an event's line; the largest message of an attempt has half of that."""
BURST = 10
"""Urgent writes that may follow each other immediately after a quiet time."""


class Unrecordable(RegrowError):
    """Readers would not decode this event as it is. Nothing has changed."""


class WriteSpacing:
    """Keeps writes at least `seconds` apart, as 20 a second in a bucket cost as much as a GPU on a
    spot machine. An equal number of urgent ones may come earlier. 0: no minimum.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last, self._due = seconds, float("-inf"), float("-inf")

    def early(self, now: float, *, urgent: bool) -> float:
        """Return the seconds that a write at `now` has to wait, at most `seconds`."""
        due = self._last + self._seconds
        return max(0.0, (min(due, self._due) if urgent else due) - now)

    def wrote(self, now: float) -> None:
        """Record that a write begins."""
        if now < self._last + self._seconds:
            self._due = max(self._due, now - BURST * self._seconds) + self._seconds
        self._last = now


class Ledger:
    """The planner and its log, in one event loop; only I/O is done in threads."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._store = clock, store
        self._spacing = WriteSpacing(gather_seconds(store))
        self._planner = Planner()
        self._t = 0.0
        self.drivers: set[str] = set()
        """All drivers that ever opened this log."""
        self.log = Log.open(store)
        fold(store, self._read, self.log.since(0))
        self.starts: list[tuple[int, int]] = []
        """(trial, attempt) to start that the driver has not fetched yet."""
        self.withdrawn: list[tuple[int, int]] = []
        """(trial, attempt) that stop waiting for a machine, not yet reported to the driver."""
        self.drops: dict[int, list[str]] = {}
        """Manifests to delete, by trial, not yet sent to an attempt."""
        self._lines: list[bytes] = []
        self._writing = False
        self._waiting: list[asyncio.Future[None]] = []
        self._work, self._hurry = asyncio.Event(), asyncio.Event()
        self.news = asyncio.Condition()
        """Notified after each commit."""
        self.superseded = False
        self.trouble: str | None = None
        """Why the log cannot be written at present; None if all is well."""
        self._broken: Exception | None = None
        """Permanent error, after which nothing becomes durable any more."""
        self._external: External | None = None

    @property
    def history(self) -> History:
        """All events so far, including those not written yet."""
        return self._planner.history

    def _read(self, event: AnyEvent) -> None:
        self._planner.apply(event)
        self._t = max(self._t, event.t)
        if isinstance(event, events.Opened):
            self.drivers.add(event.driver)

    def claim(self, *events: AnyEvent) -> None:
        """Take over the log by these events and what follows. Raises Superseded on a race."""
        for event in events:
            self._apply(event)
        lines, self._lines = self._lines, []
        self.log.claim(lines)
        if self.history.closed is not None:  # nothing was left to do
            self._seal()

    def have(self, external: External) -> None:
        """Have an external sampler answer what the planner wants, from now on. Called after
        `claim`.
        """
        with self._search():
            fold(self._store, external.observe, self.log.since(0))
        self._external = external

    def pop_traffic(self) -> Traffic | None:
        """See `pop_traffic` of the store's port."""
        return pop_traffic(self._store)

    def retire(self) -> None:
        """Stop writing, as another writer has taken over."""
        self.superseded, self._broken = True, Superseded(self.log.last)

    def record(self, event: AnyEvent) -> None:
        """Apply an observation and all decisions that follow from it. Raises IllegalMove and
        Unrecordable, changing nothing.
        """
        self._check()
        self._apply(event)
        self._work.set()

    def end(self, lease: tuple[int, int], outcome: Outcome, cause: Cause, message: str) -> None:
        """Record the end of an attempt that it does not report itself, if it holds its lease."""
        if (attempt := self.history.lease(*lease)) is None:
            return
        now = self.now()
        self.record(
            events.Ended(
                t=now,
                trial=lease[0],
                attempt=lease[1],
                outcome=outcome,
                cause=cause,
                step=self.history.trials[lease[0]].step,
                message=printable(message),
                by="driver",
                cost=attempt.recorded_cost(now),
            )
        )

    def now(self) -> float:
        """Return seconds since the epoch, never less than the time of an earlier event."""
        self._t = max(self._t, self._clock())
        return self._t

    def decide(self) -> None:
        """Make the decisions that depend on time alone."""
        if self._settle(self.now()):
            self._work.set()

    @property
    def held(self) -> bool:
        """See Planner."""
        return self._planner.held

    async def committed(self, *, urgent: bool = True) -> None:
        """Wait until everything recorded so far is durable. Raises Superseded if another writer
        took over.

        Not `urgent`: the write may be delayed to include later events. Raises the store's error if
        it is permanent: then nothing can be recorded any more.
        """
        self._check()
        if not self._lines and not self._waiting and not self._writing:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._work.set()
        if urgent:
            self._hurry.set()
        await waiter

    async def check_writer(self) -> None:
        """Look for another writer of the log. If the store is away, the next check decides."""
        if self._writing or self._lines or self._broken is not None:
            return  # writing detects it anyway
        try:
            await asyncio.to_thread(self.log.raise_if_superseded)
        except Superseded as error:
            self.superseded, self._broken = True, error
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_exception(error)
        except Unavailable as error:
            logging.getLogger(__name__).info("could not look at the log: %s", error)

    async def write(self) -> None:
        """Write queued events, a segment at a time, until another writer takes over."""
        written = 0
        compacting: asyncio.Task[None] | None = None
        while True:
            await self._work.wait()
            await self._gathered()
            self._work.clear()
            lines, self._lines = self._lines if self._broken is None else [], []
            waiting, self._waiting = self._waiting, []
            self._writing = bool(lines)
            try:
                if lines:
                    await self._append(lines)
                    if self.history.closed is not None and not self._lines:
                        await asyncio.to_thread(self._seal)
            except Exception as error:  # noqa: BLE001 - any error must release all waiting callers
                self.superseded = isinstance(error, Superseded)
                self._broken = error
                # Includes callers that began to wait during the write.
                waiting, self._waiting = waiting + self._waiting, []
            self._writing = False
            for waiter in waiting:
                if waiter.done():
                    continue  # its caller was cancelled
                if self._broken is not None:
                    waiter.set_exception(self._broken)
                else:
                    waiter.set_result(None)
            async with self.news:
                self.news.notify_all()
            if self._broken is not None:
                return
            written += 1
            if written % COMPACT_EVERY == 0 and (compacting is None or compacting.done()):
                compacting = asyncio.create_task(self._compact())

    async def _gathered(self) -> None:
        """Wait until the next write is due: sooner if a caller waits, at once for the last one."""
        while self._lines and self.history.closed is None:
            hurried = self._hurry.is_set()
            if not (early := self._spacing.early(time.monotonic(), urgent=hurried)):
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(early):
                    await (asyncio.sleep(early) if hurried else self._hurry.wait())
        self._hurry.clear()
        if self._lines:
            self._spacing.wrote(time.monotonic())

    async def _append(self, lines: list[bytes]) -> None:
        attempt = 0
        while True:
            try:
                await asyncio.to_thread(self.log.append, lines)
                self.trouble = None
                return
            except Unavailable as error:
                self.trouble = error.why
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1

    def _seal(self) -> None:
        """Mark the end of the log as final. If sealing fails, the log is complete all the same."""
        try:
            self.log.seal()
        except RegrowError as error:
            logging.getLogger(__name__).warning("the end of the log was not sealed: %s", error)

    async def _compact(self) -> None:
        """Merge small segments while writing continues. A failure only costs objects."""
        try:
            await asyncio.to_thread(self.log.compact)
        except RegrowError as error:
            logging.getLogger(__name__).warning("the log was not compacted: %s", error)

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _apply(self, event: AnyEvent) -> None:
        line, event = _as_read(event)
        with self._search():
            self._planner.apply(event)
            self._announce(event)
        self._lines.append(line)
        self._t = max(self._t, event.t)
        self._settle(self._t)  # at the event's own time, as `verify` recomputes it

    def _next(self, now: float) -> AnyEvent | None:
        """Make the next decision, apply it, and queue its line; None if there is none."""
        with self._search():
            decision = self._planner.next(now)
            if decision is None:
                return None
            line, decision = _as_read(decision)
            self._planner.apply(decision)
            self._announce(decision)
        self._lines.append(line)
        return decision

    def _announce(self, event: AnyEvent) -> None:
        if self._external is not None:
            self._external.observe(event)

    def _answered(self, now: float) -> AnyEvent | None:
        """Have the external sampler answer what the planner waits for, and queue its line; None if
        it has no answer yet.
        """
        if self._external is None or self.history.closed is not None:
            return None
        with self._search():
            answer = self._external.answer(self._planner.wanted, now)
            if answer is None:
                return None
            line, event = _as_read(answer)
            self._planner.apply(event)
            self._external.observe(event)
        self._lines.append(line)
        return event

    @contextmanager
    def _search(self) -> Iterator[None]:
        """Stop recording if the user's search raises in the block: the log ends before that event.

        The same holds for any other exception that may have left the history partly changed.
        """
        try:
            yield
        except SearchCodeError as error:
            self._broken = UserCodeError(str(error), user_trace(error.__cause__ or error))
            raise self._broken from None
        except (IllegalMove, SpecError):
            raise
        except Exception as error:
            self._broken = error
            raise

    def _settle(self, now: float) -> bool:
        """Make all decisions that are due at `now`. Return whether there was one."""
        decided = False
        # After an error the history may have events that are not written: no decisions from them.
        while (
            self._broken is None
            and (decision := self._next(now) or self._answered(now)) is not None
        ):
            decided = True
            if isinstance(decision, events.Started):
                self.starts.append((decision.trial, decision.attempt))
            elif isinstance(decision, events.Ended) and decision.outcome != "lost":
                if (decision.trial, decision.attempt) in self.starts:  # not sent to the driver yet
                    self.starts.remove((decision.trial, decision.attempt))
                else:
                    self.withdrawn.append((decision.trial, decision.attempt))
            elif isinstance(decision, events.Dropped):
                self.drops.setdefault(decision.trial, []).extend(decision.manifests)
        return decided


def _as_read(event: AnyEvent) -> tuple[bytes, AnyEvent]:
    """Return the line of an event, and the event as readers decode it. Raises Unrecordable."""
    try:
        line = events.encode(event)
        read = events.decode(line)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unrecordable(f"{type(event).__name__.lower()}: {error}") from error
    if len(line) > MOST_BYTES:
        raise Unrecordable(
            f"{type(event).__name__.lower()}: it has {len(line):,} bytes, and {MOST_BYTES:,} are"
            " the most"
        )
    return line, read
