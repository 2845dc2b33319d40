"""The coordinator: a Ray actor near the driver that owns the experiment's log and planner.

It answers attempts, gives the driver its instructions, and lets readers follow the log. It restarts
by replaying the log, which has everything it knows; callers repeat the requests that it had not
answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from regrow.flows.coordinator.callers import Callers
from regrow.flows.coordinator.capacity import LastCapacity, fits, nodes_of
from regrow.flows.coordinator.claim import SessionOpening, claimed
from regrow.flows.coordinator.external import external_of
from regrow.flows.coordinator.instructions import Instructions, assignment
from regrow.flows.coordinator.leases import Awake, Lease, Leases, TaskRunLeases, holders
from regrow.flows.coordinator.ledger import Unrecordable
from regrow.flows.coordinator.news import is_impostor, is_repeated, node_of, observe, refuse
from regrow.flows.coordinator.present import PresentAgents, changes, ending
from regrow.infra.log.log import CorruptLog, Segments, Superseded
from regrow.infra.ray.notices import ignore_sigterm
from regrow.infra.state.experiments import make_importable
from regrow.search.errors import SpecError
from regrow.search.events import (
    Answered,
    Capacity,
    Cause,
    Closing,
    Metered,
    Priced,
    Proceeded,
    Queued,
    Rehearsed,
    Status,
    Waited,
)
from regrow.search.history import Attempt, History
from regrow.search.history.orders import TrialOrder, as_event
from regrow.search.lifecycle import IllegalMove
from regrow.search.measured import Traffic
from regrow.search.needs import ClusterCapacity, ClusterPrice
from regrow.search.planning import limits
from regrow.search.planning.market import waiting_long
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError
from regrow.tasks.output.traces import printable
from regrow.tasks.ports.messages import LogLine, Progress, Reply
from regrow.tasks.ports.store import Store

LOOK_SECONDS = 5.0
"""Seconds between two checks for another writer of the log, while there is nothing to write."""
POLL_SECONDS = 0.5
"""Seconds that the driver waits for instructions at least when the store is slow."""
MOST_LINES = 5_000
"""Most printed lines that wait for the driver; the oldest are dropped. The state has all."""
MOST_ADDRESSES = 10_000
"""Addresses of rank 0 that are kept; those of attempts that ended long ago are not needed."""
METER_SECONDS = 60.0
"""Seconds between two records of what coordinator and driver asked of the store, as each record is
written to it, too. There is also one with each end of an attempt.
"""
RUNNING_A_LOOK, LOOKING_SECONDS = 1_000, 0.1
"""Seconds between checks for silent attempts, for each thousand: that many take 1 ms."""
FENCED = Reply(reason="fenced", why="the lease is not held any more")


class Coordinator:
    """Class of the actor. Async: all state changes happen in its single event loop.

    `driver` is unique to a driver's session: it tells a coordinator whether it is the first of its
    driver. (Ray knows whether an actor was restarted, but not whether it had written anything
    before.)
    """

    def __init__(
        self,
        store: Store,
        opening: SessionOpening,
        driver: str,
        *,
        monotonic: Callable[[], float] | None = None,
        given: object = None,
    ) -> None:
        self._failed: RegrowError | SpecError | None = None
        """Exception of the first decisions. Raised by later calls, as an exception in the
        constructor would reach the driver only as the actor's death.
        """
        ignore_sigterm()
        make_importable(Spec.recorded(opening.created.spec))
        try:
            self._ledger = claimed(store, opening, driver)
            spec = self._ledger.history.spec
            if external := external_of(store, spec, opening.opened.code, given):
                self._ledger.have(external)
        except (RegrowError, SpecError, CorruptLog) as error:
            self._failed = error
            return
        self._monotonic = monotonic = monotonic or Awake()
        self._leaving = False
        self._writer: asyncio.Task[None] | None = None
        self._leases = Leases(monotonic)
        self._callers = Callers(monotonic, driver)
        history = self._ledger.history
        self._carriers = TaskRunLeases(history)
        for n, a in holders(history):  # after a restart: their leases begin now
            if a.t_began is not None:
                self._leases.record_message(n, a.number)
        self._troubles: dict[tuple[int, int], str] = {}
        """Why attempts cannot save their checkpoints at present."""
        # After a restart: the previous coordinator may not have told its driver to forget these.
        self._forget = [
            (trial.number, a.number)
            for trial in history.trials
            for a in trial.attempts[-2:]
            if a.outcome == "lost"
        ]
        self._lines: deque[tuple[str, LogLine]] = deque(maxlen=MOST_LINES)
        self._asked = Traffic()
        """What the driver asked of the store that is not in the log yet."""
        self._looked = self._expired = self._metered = monotonic()
        self._looking: asyncio.Task[None] | None = None
        self._seen = LastCapacity(
            fixed=opening.fixed, least=opening.least, on_demand=opening.on_demand
        )
        self._addresses: dict[tuple[int, int], str] = {}
        """Addresses of rank 0, by attempt. After a restart rank 0 publishes its address again."""
        self._published = asyncio.Condition()

    @property
    def history(self) -> History:
        """All events so far, for callers in this process."""
        return self._ledger.history

    # ---- for attempts

    async def report(self, progress: Progress) -> Reply:
        """Record an attempt's news, and answer once they are durable."""
        self._start()
        self._callers.record_call((progress.trial, progress.attempt))
        (answer,) = await self._durable([(progress, self._record_news(progress))])
        return answer

    async def report_all(
        self,
        news: Sequence[Progress],
        relay: str,
        lines: Sequence[tuple[str, Sequence[LogLine]]] = (),
    ) -> list[Reply]:
        """Take what a relay has gathered, as `report` and `show`; answers are in its order."""
        self._start()
        self._callers.record_call(relay, relay=True)
        for task_run, printed in lines:
            await self.show(task_run, printed)
        taken: list[tuple[Progress, Reply]] = []
        for progress in news:
            try:
                answer = self._record_news(progress)
            except Exception as error:  # noqa: BLE001 - concerns only this attempt, which it ends as `report` would
                answer = Reply(reason="fenced", why=str(error))
            taken.append((progress, answer))
        return await self._durable(taken)

    async def _durable(self, taken: Sequence[tuple[Progress, Reply]]) -> list[Reply]:
        """Return the answers once the events they depend on are in the log."""
        held = [
            (progress.trial, progress.attempt)
            for progress, answer in taken
            if answer.reason != "fenced"
        ]
        # Attempts that wait for an answer are not silent, however long the store is unreachable.
        with self._leases.speaking(held):
            try:
                if held:
                    await self._ledger.committed(
                        urgent=any(progress.urgent for progress, _ in taken)
                    )
            except Superseded:
                return [FENCED for _ in taken]
        return [answer for _, answer in taken]

    def _record_news(self, progress: Progress) -> Reply:
        """Record an attempt's news, and return the answer to be given once they are durable."""
        ledger, history = self._ledger, self._ledger.history
        attempt = history.lease(progress.trial, progress.attempt)
        self._leases.seen(node_of(history, progress))
        if attempt is None and is_repeated(history, progress):
            return FENCED if ledger.superseded else Reply()
        if ledger.superseded or attempt is None or is_impostor(progress, attempt):
            return FENCED
        self._leases.record_message(progress.trial, progress.attempt)
        lease = progress.trial, progress.attempt
        self._troubles.pop(lease, None)
        if progress.trouble and progress.ended is None:
            self._troubles[lease] = progress.trouble
        if progress.draining:
            node_id = progress.began.node_id if progress.began else ""
            self._leases.mark_draining(
                progress.draining_node or attempt.node_id or node_id, progress.draining
            )
        self._leases.avoid(progress.silent_node)
        try:
            if progress.ended is not None:
                self._record_traffic()  # the session may be over with this attempt
            draining = self._leases.draining_of(attempt.nodes) is not None
            refused = observe(ledger, progress, attempt, draining=draining)
        except (IllegalMove, Unrecordable) as error:
            self._carriers.ended(lease)
            return Reply(reason="fenced", why=refuse(ledger, progress, error))
        if progress.began is not None and progress.began.task_run is not None:
            self._carriers.began(lease, progress.began.task_run)
        # Made before waiting: it reflects what has been recorded by now, and nothing that comes
        # meanwhile.
        answer = self._answer(progress, attempt)
        trial = history.trials[progress.trial]
        asked = [one.name for one in progress.asked if one.name in trial.config]
        fields = {
            "pace": self._callers.pace,
            "relay": self._callers.relay(attempt.node_id),
            "suggested": {name: trial.config[name] for name in asked},
            "refused": refused,
        }
        if drop := ledger.drops.pop(progress.trial, ()):
            # Clones of its checkpoints belong to other trials, but share its files.
            clones = [one for one, owner in history.borrowed.items() if owner == trial.number]
            kept = [saved.manifest for saved in trial.checkpoints.values()]
            fields |= {"drop": tuple(drop), "keep": (*kept, *clones)}
        return msgspec.structs.replace(answer, **fields)

    async def show(self, task_run: str, lines: Sequence[LogLine]) -> None:
        """Keep printed lines of a task run's attempts until the driver fetches them."""
        self._lines += [(task_run, line) for line in lines]

    async def trouble(self) -> str | None:
        """Return why the log or a checkpoint cannot be written at present; None if all is well."""
        held = (
            why
            for lease, why in sorted(self._troubles.items())
            if self._ledger.history.lease(*lease) is not None
        )
        return self._ledger.trouble or next(held, None)

    def _answer(self, progress: Progress, attempt: Attempt) -> Reply:
        ledger, history = self._ledger, self._ledger.history
        draining = self._leases.draining_of(attempt.nodes)
        if progress.ended is not None:
            if (
                not progress.carry_on
                or attempt.task_run is None
                or draining is not None
                or not fits(history, ledger.starts[:1], attempt)
            ):
                return Reply()
            following = ledger.starts.pop(0)
            self._carriers.give(following, attempt.task_run)
            return Reply(next=assignment(history, *following))
        if attempt.stop is not None:
            return Reply(reason="stopped", why=attempt.stop)
        if attempt.leave is not None:
            clones = history.trials[progress.trial].clone is not None
            return Reply(reason="paused", why=attempt.leave, unsaved=clones)
        if draining is not None:
            return Reply(reason="preempted", why=draining)
        if (closing := history.closing) is not None:
            return Reply(reason="paused" if closing.pauses else "stopped", why=closing.why)
        return Reply(until=attempt.until)

    async def meet(self, trial: int, attempt: int, address: str, timeout: float) -> str:
        """Exchange the address of an attempt's rank 0: rank 0 sets it (`address`), the other ranks
        wait for it (""). Returns "" if it is not set within `timeout` seconds.
        """
        lease, known = (trial, attempt), self._addresses
        async with self._published:
            if address:
                known[lease] = address
                while len(known) > MOST_ADDRESSES:
                    del known[next(iter(known))]
                self._published.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._published.wait_for(lambda: lease in known)
            return known.get(lease, "")

    # ---- for the driver

    async def instructions(
        self,
        timeout: float,
        room: ClusterCapacity | None = None,
        present: PresentAgents | None = None,
        price: ClusterPrice | None = None,
        traffic: Traffic | None = None,
    ) -> Instructions:
        """Return what to do next; waits up to `timeout` seconds for something.

        Args:
            timeout: seconds.
            room: current capacity of the cluster; None if it is unknown.
            present: the agents; None without agents.
            price: what its nodes cost now; None if it is unknown.
            traffic: what the driver asked of the store since its last call; None for nothing, or if
                that costs nothing.

        """
        self._start()
        ledger = self._ledger
        self._record_cluster(room, present, price, traffic)
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            self._expire()
            self._check_writer()
            ledger.decide()
            # Taken before waiting: later decisions may not be durable after this commit.
            starts, ledger.starts = ledger.starts, []
            withdrawn, ledger.withdrawn = ledger.withdrawn, []
            closed = ledger.history.closed
            try:
                async with asyncio.timeout(
                    max(deadline - asyncio.get_running_loop().time(), POLL_SECONDS)
                ):
                    await ledger.committed(urgent=bool(starts) or closed is not None)
            except TimeoutError:
                ledger.starts, ledger.withdrawn = (
                    starts + ledger.starts,
                    withdrawn + ledger.withdrawn,
                )
                return Instructions(
                    nodes=nodes_of(ledger.history),
                    trouble=await self.trouble(),
                    overdue=limits.overdue(ledger.history, ledger.now()),
                )
            except Superseded:
                return Instructions(superseded=True)
            starts = [lease for lease in starts if ledger.history.lease(*lease) is not None]
            self._forget += withdrawn
            if (
                starts
                or closed is not None
                or ledger.superseded
                or self._forget
                or self._leases.undrained
                or limits.overdue(ledger.history, ledger.now())
            ):
                break
            if not await self._news(deadline - asyncio.get_running_loop().time()):
                break
        return await self._new_instructions(starts, closed.status if closed is not None else None)

    async def _new_instructions(
        self, starts: Sequence[Lease], finished: Status | None
    ) -> Instructions:
        """Return the instructions to start these attempts, and whatever else the driver is to do.
        `starts` and `finished` are durable.
        """
        ledger = self._ledger
        forget, self._forget = tuple(self._forget), []
        return Instructions(
            submit=tuple(assignment(ledger.history, *lease) for lease in starts),
            forget=forget,
            drain=self._leases.pop_undrained(),
            relay=self._callers.pop_wanted(),
            # the cluster learns of draining nodes only after this
            avoid=(*self._leases.avoided(), *self._leases.draining),
            nodes=nodes_of(ledger.history),
            trouble=await self.trouble(),
            finished=finished,
            overdue=limits.overdue(ledger.history, ledger.now()),
            superseded=ledger.superseded,
        )

    def _record_cluster(
        self,
        room: ClusterCapacity | None,
        present: PresentAgents | None,
        price: ClusterPrice | None,
        traffic: Traffic | None,
    ) -> None:
        """Record what the driver observed of the cluster; see `instructions`."""
        ledger = self._ledger
        if present is not None:
            self._record_present(present)
        if (
            not ledger.superseded
            and (changed := self._seen.update(room, ledger.history)) is not None
        ):
            ledger.record(Capacity(t=ledger.now(), **msgspec.structs.asdict(changed)))
        self._record_price(price)
        if traffic is not None:
            self._asked += traffic
        if self._monotonic() - self._metered >= METER_SECONDS:
            self._record_traffic()

    def _record_price(self, price: ClusterPrice | None) -> None:
        """Record what the cluster costs, if that has changed."""
        ledger, known = self._ledger, self._ledger.history.spending
        if price is None or ledger.superseded or ledger.history.closed is not None:
            return
        if (price.per_hour, price.nodes) != (known.per_hour, known.nodes):
            ledger.record(Priced(t=ledger.now(), per_hour=price.per_hour, nodes=price.nodes))

    def _record_traffic(self) -> None:
        """Record what this process and the driver asked of the store since the last call, if it
        costs anything.
        """
        ledger = self._ledger
        if ledger.history.spec.store_prices is None or ledger.history.closed is not None:
            return
        self._metered = self._monotonic()
        if ledger.superseded:
            return
        asked, self._asked = self._asked + (ledger.pop_traffic() or Traffic()), Traffic()
        if asked:
            ledger.record(Metered(t=ledger.now(), traffic=asked))

    def _record_present(self, present: PresentAgents) -> None:
        """Record who came and left, and have trials leave machines whose time ends."""
        ledger = self._ledger
        if ledger.superseded or ledger.history.closed is not None:
            return
        for change in list(changes(ledger.history, present, ledger.now())):
            ledger.record(change)
        for node_id, why in ending(ledger.history, present.nodes, ledger.now()):
            self._leases.mark_draining(node_id, why)

    async def lines(self) -> list[tuple[str, LogLine]]:
        """Return the lines printed since the last call, with their task runs."""
        found = list(self._lines)
        self._lines.clear()
        return found

    async def lost(
        self, task_run: str, trial: int, attempt: int, cause: Cause, message: str
    ) -> bool:
        """Record that a task run has ended: attempts that it carried and that have not ended are
        lost.

        Returns whether its trial gets another attempt.
        """
        self._start()
        history = self._ledger.history
        # If a coordinator that died and the next one both assigned the attempt, one task run was
        # fenced, and the other one is alive.
        holder = history.lease(trial, attempt)
        own = {(trial, attempt)} if holder is None or holder.task_run in (None, task_run) else set()
        for lease in sorted({*own, *self._carriers.release(task_run, trial)}):
            self._declare_lost(*lease, cause=cause, message=message)
        await self._settled()
        return not history.trials[trial].state.final

    async def mark_draining(self, node_id: str, why: str) -> None:
        """Record that a node is about to go away: its attempts save a checkpoint and leave."""
        self._leases.mark_draining(node_id, why, drained=True)

    async def node_lost(self, node_id: str) -> None:
        """Record that a node is gone, with its attempts; those on their way there are suspect."""
        self._start()
        history = self._ledger.history
        for n, a in holders(history):
            if a.t_began is not None and node_id in a.nodes:
                self._forget.append((n, a.number))
                self._declare_lost(n, a.number, cause="preempted", message="the node was lost")
        self._leases.suspect((n, a.number) for n, a in holders(history) if a.t_began is None)
        await self._settled()

    def _expire(self) -> None:
        """Give up attempts that were silent for a lease and do not just wait for slots."""
        history = self._ledger.history
        if self._callers.due():
            placed = [a.node_id for _, a in holders(history) if a.t_began is not None]
            self._callers.adjust(placed, history.spec.lease)
        if (
            self._monotonic() - self._expired
            < len(history.running) // RUNNING_A_LOOK * LOOKING_SECONDS
        ):
            return
        self._expired = self._monotonic()
        free = self._seen.free(history)
        self._leases.keep({(n, a.number) for n, a in holders(history)})
        for n, a in holders(history):
            began = a.t_began is not None
            if not self._leases.silent(n, a.number, history.spec.lease, began=began):
                continue
            if began:
                self._leases.avoid(a.node_id)
                message = (
                    f"no message came from it for {history.spec.lease:g} s: its node was cut off,"
                    " its process stopped, or stuck in code that holds Python's lock"
                )
            elif free[market := a.market or ("on-demand" if a.avoid_spot else "")] < a.width:
                # No free slots: it waits for some, and its suspicion starts again.
                self._leases.suspect([(n, a.number)])
                continue
            else:
                free[market] -= a.width
                message = "it did not begin: the node that it was sent to was lost"
            self._forget.append((n, a.number))
            self._declare_lost(n, a.number, cause="preempted", message=message)
        for n, number, waited in (
            waiting_long(history, self._leases.waits) if not self._ledger.superseded else ()
        ):
            self._ledger.record(
                Waited(t=self._ledger.now(), trial=n, attempt=number, seconds=waited)
            )

    def _check_writer(self) -> None:
        """Look for another writer of the log, unnoticed while there is nothing to write."""
        if self._monotonic() - self._looked > LOOK_SECONDS and (
            self._looking is None or self._looking.done()
        ):
            self._looked = self._monotonic()
            self._looking = asyncio.get_running_loop().create_task(self._ledger.check_writer())

    async def close(self, status: Status, why: str) -> None:
        """Begin to end the session: nothing starts, what runs saves a checkpoint and ends."""
        self._start()
        history = self._ledger.history
        if history.closing is None and history.closed is None and not self._ledger.superseded:
            self._ledger.record(
                Closing(t=self._ledger.now(), status=status, why=printable(why), by="user")
            )
        await self._settled()

    async def order(self, trial: int, what: TrialOrder) -> None:
        """Record what the user wants of a trial. Ignored where its state does not allow that, or if
        it is so already.
        """
        self._start()
        ledger = self._ledger
        with suppress(IllegalMove, Superseded):
            ledger.record(as_event(trial, what, ledger.now()))
        await self._settled()

    async def queue(self, values: dict[str, Any], attributes: dict[str, Any]) -> None:
        """Record values that the user wants tried; see Queued."""
        self._start()
        event = Queued(t=self._ledger.now(), values=values, attributes=attributes)
        self._ledger.record(event)
        await self._settled()

    async def rehearsed(self, seconds: float) -> None:
        """Record what the end of the session takes (seconds), if it has a deadline."""
        self._start()
        ledger, history = self._ledger, self._ledger.history
        ended = ledger.superseded or history.closing is not None or history.closed is not None
        if not ended and history.spec.stop.deadline is not None:
            ledger.record(Rehearsed(t=ledger.now(), seconds=round(seconds, 3)))
            await self._settled()

    async def stop_study(self) -> None:
        """Record that the study was stopped: no further trial is proposed, those that run go on."""
        self._start()
        ledger = self._ledger
        if not (ledger.superseded or ledger.history.over or ledger.history.closed):
            ledger.record(Answered(t=ledger.now(), over="stopped"))
        await self._settled()

    async def proceed(self, for_good: bool = False) -> None:
        """Record that decisions need not wait; see Proceeded."""
        self._start()
        ledger = self._ledger
        if (ledger.held or for_good) and not ledger.superseded and not ledger.history.closed:
            ledger.record(Proceeded(t=ledger.now(), for_good=for_good))
        await self._settled()

    async def abandon(self, message: str) -> None:
        """Give up all running attempts; their later messages are refused."""
        self._start()
        history = self._ledger.history
        for n, a in holders(history):
            self._declare_lost(n, a.number, cause="preempted", message=message)
        await self._settled()

    async def _settled(self) -> None:
        """Wait for the log. A takeover by another driver is reported by the next `instructions`."""
        with suppress(Superseded):
            await self._ledger.committed()

    def _declare_lost(self, trial: int, attempt: int, *, cause: Cause, message: str) -> None:
        ledger, lease = self._ledger, (trial, attempt)
        if ledger.superseded or ledger.history.lease(*lease) is None:
            return
        self._carriers.ended(lease)
        if lease in ledger.starts:
            ledger.starts.remove(lease)
        ledger.end(lease, "lost", cause, message)

    async def identity(self) -> str:
        """Return the experiment's ID, a UUID."""
        self._start()
        return self._ledger.history.id

    async def close_readers(self) -> int:
        """Release all readers; return the number of the last segment, after which none comes."""
        await self._ledger.committed()
        self._leaving = True
        async with self._ledger.news:
            self._ledger.news.notify_all()
        return self._ledger.log.last

    # ---- for readers

    async def follow(self, after: int, timeout: float) -> Segments:
        """Return segments after number `after`, up to one answer; waits `timeout` s for one."""
        self._start()
        deadline = asyncio.get_running_loop().time() + timeout
        while self._ledger.log.last <= after:
            if self._leaving or not await self._news(deadline - asyncio.get_running_loop().time()):
                return []
        return await asyncio.to_thread(self._ledger.log.answer, after)

    async def _news(self, timeout: float) -> bool:
        if timeout <= 0:
            return False
        try:
            async with asyncio.timeout(timeout), self._ledger.news:
                await self._ledger.news.wait()
        except TimeoutError:
            return False
        return True

    def _start(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._ledger.write())
