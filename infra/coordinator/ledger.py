"""The coordinator's heart, without Ray: planner and log in one place, every event written before it is acted on.

`record` takes observations in, lets the planner decide, and queues all of it for the log; `committed` waits until that
is durable (group commit: whatever gathered while a segment was being written goes into the next one). The actor that
speaks with workers and driver is in `coordinator.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from regrow.infra.coordinator.spacing import Spacing
from regrow.infra.log.log import Log, Superseded
from regrow.infra.stores import gather_seconds
from regrow.search.errors import SearchCodeError
from regrow.search.events import AnyEvent, Dropped, Ended, Opened, Started, decode, encode
from regrow.search.history import History
from regrow.search.planning.planner import Planner
from regrow.tasks.errors import RegrowError, UserCodeError
from regrow.tasks.ports import Store, Unavailable
from regrow.tasks.traces import user_trace

COMPACT_EVERY = 128
"""Segments between two looks at whether small ones can be merged."""
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits between tries while the store is away; the last one repeats."""


class Ledger:
    """The planner and its log. All methods run in one event loop; only the store's I/O leaves it."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._spacing = Spacing(gather_seconds(store))
        self._planner = Planner()
        self._t = 0.0
        self.drivers: set[str] = set()
        """All that ever opened this log."""
        self.log = Log.open(store)
        for _, lines in self.log.since(0):
            for line in lines:
                event = decode(line)
                self._planner.apply(event)
                self._t = max(self._t, event.t)
                if isinstance(event, Opened):
                    self.drivers.add(event.driver)
        self.starts: list[tuple[int, int]] = []
        """(trial, attempt) decided to start, and not taken by anybody yet."""
        self.withdrawn: list[tuple[int, int]] = []
        """(trial, attempt) that waited for a machine and are to wait no longer, of which the driver does not know yet."""
        self.drops: dict[int, list[str]] = {}
        """Manifests by trial whose deletion was decided, and not handed to anybody yet."""
        self._lines: list[bytes] = []
        self._writing = False
        self._waiting: list[asyncio.Future[None]] = []
        self._work, self._hurry = asyncio.Event(), asyncio.Event()
        self.news = asyncio.Condition()
        """Notified after each commit."""
        self.superseded = False
        self.trouble: str | None = None
        """Why nothing can be written at present; None if all is well."""
        self._broken: Exception | None = None
        """What the store says for good; nothing is durable any more from there on."""

    @property
    def history(self) -> History:
        """What is known, including what is on its way to the log."""
        return self._planner.history

    def claim(self, *events: AnyEvent) -> None:
        """Takes the log over with the events of a new writer and the decisions that follow. Raises Superseded on a race."""
        for event in events:
            self._take(event)
        lines, self._lines = self._lines, []
        self.log.claim(lines)
        if self.history.closed is not None:  # nothing was left to do
            self._seal()

    def retire(self) -> None:
        """Writes nothing: another writer has taken over since."""
        self.superseded, self._broken = True, Superseded(self.log.last)

    def record(self, event: AnyEvent) -> None:
        """Applies an observation and all decisions that follow from it. Raises IllegalMove, changing nothing."""
        self._check()
        self._take(event)
        self._work.set()

    def now(self) -> float:
        """Seconds since the epoch, never less than the time of an event before."""
        self._t = max(self._t, self._clock())
        return self._t

    def decide(self) -> None:
        """Takes the decisions that are due by the clock alone."""
        if self._settle():
            self._work.set()

    async def committed(self, *, urgent: bool = True) -> None:
        """Returns once everything recorded so far is durable. Raises Superseded if another writer took over.

        Not `urgent`: nobody waits for what follows, so it may be written with what comes next.
        Raises the store's error if that will not pass: then nothing can be recorded any more.
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

    async def look(self) -> None:
        """Finds out whether another writer took the log over. A store that is out of reach is left for the next time."""
        if self._writing or self._lines or self._broken is not None:
            return  # writing tells it anyway
        try:
            await asyncio.to_thread(self.log.look)
        except Superseded as error:
            self.superseded, self._broken = True, error
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_exception(error)
        except Unavailable as error:
            logging.getLogger(__name__).info("could not look at the log: %s", error)

    async def write(self) -> None:
        """The committer: writes what gathers, one segment at a time, until another writer takes over."""
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
            except Exception as error:  # noqa: BLE001 - whatever it is: nobody may wait for this writer any more
                self.superseded = isinstance(error, Superseded)
                self._broken = error
                # Those, too, who began to wait while it was being written.
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
        """Waits until another write is due, which is sooner where somebody waits for it. The last one does not wait."""
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
        """Proves where the log ends. One that cannot be sealed just now is no less whole."""
        try:
            self.log.seal()
        except RegrowError as error:
            logging.getLogger(__name__).warning("the end of the log was not sealed: %s", error)

    async def _compact(self) -> None:
        """Merges small segments beside the writing; what fails here is tried again later and costs nothing but objects."""
        try:
            await asyncio.to_thread(self.log.compact)
        except RegrowError as error:
            logging.getLogger(__name__).warning("the log was not compacted: %s", error)

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _take(self, event: AnyEvent) -> None:
        with self._search():
            self._planner.apply(event)
        self._lines.append(encode(event))
        self._settle()

    def _next(self) -> AnyEvent | None:
        """The next decision, applied. Where the user's own search raises nothing more is recorded: the log ends before that."""
        with self._search():
            decision = self._planner.next(self.now())
            if decision is not None:
                self._planner.apply(decision)
        return decision

    @contextmanager
    def _search(self) -> Iterator[None]:
        try:
            yield
        except SearchCodeError as error:
            self._broken = UserCodeError(str(error), user_trace(error.__cause__ or error))
            raise self._broken from None

    def _settle(self) -> bool:
        decided = False
        # What was applied and could not be written is in the history: nothing may follow from it.
        while self._broken is None and (decision := self._next()) is not None:
            decided = True
            self._lines.append(encode(decision))
            if isinstance(decision, Started):
                self.starts.append((decision.trial, decision.attempt))
            elif isinstance(decision, Ended) and decision.outcome == "paused":
                self._withdraw(decision.trial, decision.attempt)
            elif isinstance(decision, Dropped):
                self.drops.setdefault(decision.trial, []).extend(decision.manifests)
        return decided

    def _withdraw(self, trial: int, attempt: int) -> None:
        if (trial, attempt) in self.starts:  # nobody has it yet
            self.starts.remove((trial, attempt))
        else:
            self.withdrawn.append((trial, attempt))
