"""The coordinator and its ledger: nothing is acted on before it is durable, and nothing that was
owed is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from regrow.flows.coordinator import ledger as ledgers
from regrow.flows.coordinator.coordinator import METER_SECONDS
from regrow.flows.coordinator.ledger import Ledger
from regrow.infra.log.log import Superseded
from regrow.infra.log.reading import read_events, survey
from regrow.infra.state.experiments import carry_out_orders, request_order
from regrow.search.events import (
    Closed,
    Closing,
    Created,
    Ended,
    Excluded,
    Metered,
    Opened,
    Place,
    Queued,
    Rehearsed,
    Row,
    Saved,
    Started,
)
from regrow.search.history.orders import TrialOrder
from regrow.search.lifecycle import TrialState
from regrow.search.measured import Traffic
from regrow.search.planning.verify import verify
from regrow.tasks.errors import UserError
from regrow.tasks.ports.messages import Progress
from regrow.tasks.ports.store import Unavailable
from tests.memory_store import MemoryStore
from tests.unit.office import GatedStore, Office, began_at, offices
from tests.unit.simulated import created, opened

Make = Callable[..., Office]


@pytest.fixture
def make() -> Iterator[Make]:
    with offices(schedule="fifo", trials=4) as make:
        yield make


def arrival(
    trial: int, attempt: int = 1, *, run: str | None = None, restored: int = 0, rows: int = 0
) -> Progress:
    return Progress(
        trial=trial,
        attempt=attempt,
        began=began_at(Place("node"), task_run=run or f"run-{trial}", restored=restored),
        rows=tuple(
            Row(step, 0.0, {"score": 1.0}) for step in range(restored + 1, restored + rows + 1)
        ),
    )


def end(
    trial: int, attempt: int = 1, outcome: Any = "done", cause: Any = "", *, carry_on: bool = False
) -> Progress:
    ended = Ended(t=0.0, trial=trial, attempt=attempt, outcome=outcome, cause=cause)
    return Progress(trial=trial, attempt=attempt, ended=ended, carry_on=carry_on)


def leases(office: Office) -> list[tuple[int, int]]:
    return [(a.trial, a.attempt) for a in office.instructions().submit]


def lose(trial: int) -> Ended:
    return Ended(t=2.0, trial=trial, attempt=1, outcome="lost", cause="preempted", by="driver")


def test_after_too_many_failures_what_runs_is_stopped_at_once_and_stays_so(make: Make) -> None:
    office = make(slots=2, stop={"failures": 1})
    assert leases(office) == [(0, 1), (1, 1)]
    office.report(arrival(0))
    office.report(arrival(1, rows=2))
    office.report(end(0, outcome="failed", cause="error"))
    told = office.instructions()
    assert (told.forget, told.finished, told.submit) == (((1, 1),), "failed", ())
    assert office.report(arrival(1, rows=3)).reason == "fenced"
    for driver in ("driver-1", "driver-2"):  # the same command again
        assert office.history.trials[1].state is TrialState.STOPPED
        assert office.history.closing is not None
        assert office.history.closing.why.startswith("trial 0 failed")
        office.open(driver)
        told = office.instructions()
        assert (told.finished, told.submit) == ("failed", ())


# Durability


def claimed(store: MemoryStore) -> Ledger:
    ledger = Ledger(store, clock=lambda: 1.0)
    ledger.claim(created(schedule="fifo"), opened(1.0, slots=2, trials=6))
    return ledger


async def writing(store: GatedStore) -> None:
    """Returns once a write has reached the store."""
    assert await asyncio.to_thread(store.reached.wait, 20)


def test_a_claim_writes_what_it_decided_before_anybody_can_take_it() -> None:
    store = GatedStore()
    ledger = claimed(store)
    durable = [(e.trial, e.attempt) for e in read_events(store) if isinstance(e, Started)]
    assert ledger.starts == durable == [(0, 1), (1, 1)]


def test_who_asks_while_events_are_being_written_waits_for_them() -> None:
    async def scene() -> None:
        store = GatedStore()
        ledger = claimed(store)
        writer = asyncio.create_task(ledger.write())
        store.gate.clear()
        store.reached.clear()
        ledger.record(lose(0))
        await writing(store)
        asked = asyncio.create_task(ledger.committed())
        await asyncio.sleep(0.02)
        assert not asked.done(), "the loss and the start that followed are not durable yet"
        store.gate.set()
        await asked
        assert isinstance(read_events(store)[-1], Started)
        writer.cancel()

    asyncio.run(scene())


def test_everybody_who_waits_hears_that_another_writer_took_over() -> None:
    async def scene() -> None:
        store = GatedStore()
        ledger = claimed(store)
        asyncio.create_task(ledger.write())  # noqa: RUF006 - it ends by itself, which is what is looked at
        claimed_by_another = Ledger(store)
        claimed_by_another.claim(opened(2.0, driver="another"))
        store.gate.clear()
        store.reached.clear()
        ledger.record(Closing(t=2.0, status="stopped", why="", by="user"))
        first = asyncio.create_task(ledger.committed())
        await writing(store)
        ledger.decide()
        second = asyncio.create_task(ledger.committed())
        await asyncio.sleep(0.02)
        store.gate.set()
        for waiting in (first, second):
            with pytest.raises(Superseded):
                await asyncio.wait_for(waiting, 20)
        with pytest.raises(Superseded):
            await asyncio.wait_for(ledger.committed(), 20)
        with pytest.raises(Superseded):
            ledger.record(lose(0))

    asyncio.run(scene())


def test_a_store_that_refuses_for_good_is_told_to_everybody() -> None:
    async def scene() -> None:
        store = GatedStore()
        ledger = claimed(store)
        asyncio.create_task(ledger.write())  # noqa: RUF006 - it ends by itself, which is what is looked at
        store.error = UserError("no permission")
        ledger.record(lose(0))
        for _ in range(2):
            with pytest.raises(UserError, match="no permission"):
                await asyncio.wait_for(ledger.committed(), 20)

    asyncio.run(scene())


def test_a_store_that_is_away_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "RETRY_SECONDS", (0.001,))

    async def scene() -> None:
        store = GatedStore()
        ledger = claimed(store)
        writer = asyncio.create_task(ledger.write())
        store.error = Unavailable("log/", "no network")
        store.reached.clear()
        ledger.record(lose(0))
        asked = asyncio.create_task(ledger.committed())
        await writing(store)
        assert not asked.done()
        store.error = None
        await asyncio.wait_for(asked, 20)
        assert len([e for e in read_events(store) if isinstance(e, Ended)]) == 1
        writer.cancel()

    asyncio.run(scene())


def test_a_caller_that_gave_up_leaves_the_writer_running() -> None:
    async def scene() -> None:
        store = GatedStore()
        ledger = claimed(store)
        writer = asyncio.create_task(ledger.write())
        store.gate.clear()
        store.reached.clear()
        ledger.record(lose(0))
        asked = asyncio.create_task(ledger.committed())
        await writing(store)
        asked.cancel()
        store.gate.set()
        ledger.record(lose(1))
        await asyncio.wait_for(ledger.committed(), 20)
        writer.cancel()

    asyncio.run(scene())


def test_the_driver_is_only_told_to_submit_what_is_durable(make: Make) -> None:
    office = make(slots=2)
    assert leases(office) == [(0, 1), (1, 1)]
    store = office.store
    assert isinstance(store, GatedStore)
    for trial in (0, 1):
        office.report(arrival(trial, rows=1))

    async def scene() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        coordinator = office.coordinator
        ledger = coordinator._ledger

        async def two_end_one_after_the_other() -> None:
            ledger.record(Ended(t=ledger.now(), trial=0, attempt=1, outcome="done"))
            await ledger.committed()
            store.gate.clear()
            ledger.record(Ended(t=ledger.now(), trial=1, attempt=1, outcome="done"))

        first = asyncio.create_task(two_end_one_after_the_other())
        told = await asyncio.create_task(coordinator.instructions(20.0))
        assert first.done()
        durable = [(e.trial, e.attempt) for e in read_events(store) if isinstance(e, Started)]
        store.gate.set()
        return [(a.trial, a.attempt) for a in told.submit], durable

    submitted, durable = office.wait(scene())
    assert submitted == [(2, 1)]
    assert durable == [(0, 1), (1, 1), (2, 1)]
    assert leases(office) == [(3, 1)]


# Coming back


def test_attempts_that_nobody_saw_begin_are_handed_out_again_and_no_others(make: Make) -> None:
    office = make(slots=2)
    assert leases(office) == [(0, 1), (1, 1)]
    office.report(arrival(0))
    office.open("driver-1")
    assert leases(office) == [(1, 1)]
    office.report(arrival(1))
    office.report(end(1))
    assert leases(office) == [(2, 1)]
    assert office.history.sessions == 1


def test_a_coordinator_that_died_before_its_first_word_still_declares_lost_what_its_predecessor_left(
    make: Make,
) -> None:
    """Ray calls it a restart; for the log it is the first of its driver."""
    office = make(slots=2)
    assert leases(office) == [(0, 1), (1, 1)]
    office.report(arrival(0))
    office.open("driver-2")
    assert office.history.sessions == 2
    assert leases(office) == [(0, 2), (1, 2)]


def test_two_coordinators_of_one_driver_create_the_experiment_once(make: Make) -> None:
    office = make()
    office.open("driver-1")
    kinds = [type(event) for event in office.events]
    assert kinds.count(Created) == 1
    assert kinds.count(Opened) == 2
    assert office.history.elapsed() < 60


def test_a_worker_whose_last_message_was_answered_into_the_void_is_no_zombie(make: Make) -> None:
    office = make()
    leases(office)
    office.report(arrival(0, rows=1))
    office.report(end(0))
    before = len(office.events)
    office.open("driver-1")
    assert office.report(end(0)).reason == ""
    assert office.report(end(0, outcome="stopped")).reason == "fenced"
    assert office.report(end(7)).reason == office.report(end(0, attempt=5)).reason == "fenced"
    assert len(office.events) == before + 1


def test_time_never_goes_back_in_the_log() -> None:
    store = MemoryStore()
    Ledger(store, clock=lambda: 1000.0).claim(created(), opened(1000.0))
    later = Ledger(store, clock=lambda: 400.0)
    assert later.now() == 1000.0


# Fencing and losses


def test_one_lease_is_held_by_one_task_run(make: Make) -> None:
    office = make()
    leases(office)
    assert office.report(arrival(0, run="run-a")).reason == ""
    assert office.report(arrival(0, run="run-b")).reason == "fenced"
    assert office.report(arrival(0, run="run-a", rows=1)).reason == ""


def test_the_end_of_an_earlier_attempt_s_task_run_leaves_its_retry_alone(make: Make) -> None:
    """Both attempts are the same Prefect task run; the driver may look at the first after the
    second has begun.
    """
    office = make(retries={"error": 1})
    leases(office)
    office.report(arrival(0, rows=1))
    office.report(end(0, outcome="failed", cause="error"))
    assert leases(office) == [(0, 2)]
    office.report(arrival(0, 2))
    office.lost(0, 1, task_run="run-0")
    assert office.history.lease(0, 2) is not None


def test_a_task_run_that_is_gone_loses_all_that_it_carried(make: Make) -> None:
    office = make(slots=2)
    leases(office)
    for trial in (0, 1):
        office.report(arrival(trial, rows=1))
    following = office.report(end(0, carry_on=True)).next
    assert following is not None
    assert (following.trial, following.attempt) == (2, 1)
    assert leases(office) == [], "nobody else gets it"
    office.lost(0, 1, task_run="run-0")
    assert office.history.trials[2].attempts[0].outcome == "lost"
    assert leases(office) == [(2, 2)]
    assert office.history.lease(1, 1) is not None


def test_an_attempt_that_never_began_carries_no_other(make: Make) -> None:
    """If its task run were lost, nobody would know of the other, which then stayed running
    forever.
    """
    office = make(slots=2)
    leases(office)
    answer = office.report(end(0, outcome="failed", cause="infrastructure", carry_on=True))
    assert answer.next is None
    assert leases(office) == [(0, 2)]


def test_abandoned_attempts_are_fenced_and_not_submitted(make: Make) -> None:
    office = make(slots=2)
    office.wait(office.coordinator.close("interrupted", "by the user"))
    office.wait(office.coordinator.abandon("too slow"))
    told = office.instructions()
    assert told.submit == ()
    assert told.finished == "interrupted"
    assert office.report(arrival(0)).reason == "fenced"


def test_a_superseded_coordinator_says_so_and_answers_everybody(make: Make) -> None:
    office = make()
    leases(office)
    office.report(arrival(0))
    other = Office(store=office.store, driver="driver-2", schedule="fifo", trials=4)
    assert office.report(arrival(0, rows=1)).reason == "fenced"
    office.lost(0, 1)
    office.interrupt()
    office.wait(office.coordinator.abandon("too slow"))
    assert office.instructions().superseded
    assert office.report(arrival(0, rows=2)).reason == "fenced"
    assert other.history.sessions == 2
    other.close()


# Checkpoints


def test_checkpoints_that_are_not_needed_are_handed_over_with_those_that_are(make: Make) -> None:
    office = make(checkpoint={"keep_last": 1, "keep_best": 0})
    leases(office)
    office.report(arrival(0, rows=3))
    saved = tuple(
        Saved(t=0.0, trial=0, attempt=1, step=s, manifest=f"m{s}", size=1) for s in (1, 2, 3)
    )
    news = Progress(trial=0, attempt=1, saved=saved)
    order = office.report(news)
    assert (order.drop, order.keep) == (("m1", "m2"), ("m3",))
    before = len(office.events)
    assert office.report(news).drop == ()
    assert len(office.events) == before, "what was dropped is not saved again"


def test_a_checkpoint_beyond_what_is_known_is_not_recorded(make: Make) -> None:
    office = make()
    leases(office)
    office.report(arrival(0, rows=1))
    office.report(
        Progress(
            trial=0,
            attempt=1,
            saved=(Saved(t=0.0, trial=0, attempt=1, step=2, manifest="m", size=1),),
        )
    )
    assert office.history.trials[0].checkpoints == {}
    assert office.history.trials[0].state is TrialState.RUNNING


# The clock


def test_a_clock_that_steps_back_takes_no_event_with_it() -> None:
    store, clock = MemoryStore(), iter([500.0, 100.0, 90.0, *[80.0] * 50])
    ledger = Ledger(store, clock=lambda: next(clock))
    ledger.claim(created(schedule="fifo"), opened(ledger.now(), slots=1, trials=2))
    ledger.record(lose(0))
    again = Ledger(store, clock=lambda: 70.0)  # the next machine's is wrong, too
    again.claim(opened(again.now(), driver="next"))
    times = [event.t for event in read_events(store)][1:]
    assert times == sorted(times)
    assert times[0] == 500.0
    assert verify(read_events(store)).difference is None
    assert again.history.elapsed(again.now()) == 0.0


def test_what_keeps_a_checkpoint_from_being_saved_reaches_the_driver_until_it_is_over(
    make: Make,
) -> None:
    office = make()
    office.submitted()
    office.report(Progress(trial=0, attempt=1, began=began_at(Place("a"), task_run="run-0")))
    assert office.instructions().trouble is None
    office.report(Progress(trial=0, attempt=1, trouble="no space left on /data"))
    assert office.instructions().trouble == "no space left on /data"
    office.report(Progress(trial=0, attempt=1))
    assert office.instructions().trouble is None
    office.report(Progress(trial=0, attempt=1, trouble="no space left on /data"))
    office.lost(0, 1)
    assert office.instructions().trouble is None


# Orders of the user


def test_a_trial_is_dropped_while_others_run_once_it_has_ended(make: Make) -> None:
    office = make(slots=2)
    leases(office)
    office.report(arrival(0, rows=9))
    office.report(arrival(1, rows=2))
    office.report(end(0))

    def order(trial: int, what: TrialOrder) -> None:
        office.wait(office.coordinator.order(trial, what))

    request_order(office.store, [0, 1, 0], "drop")
    office.store.create("control/trials-damaged", b"{")
    carry_out_orders(office.store, order)
    assert office.store.list("control/") == []
    orders = [event for event in read_events(office.store) if isinstance(event, Excluded)]
    assert [event.trial for event in orders] == [0], "trial 1 runs, and once is enough"
    assert verify(read_events(office.store)).difference is None


def test_values_that_are_queued_after_the_end_leave_the_log_closed(make: Make) -> None:
    office = make()
    office.interrupt()
    office.wait(office.coordinator.abandon("it is given up"))
    office.wait(office.coordinator.queue({"x": 0.5}, {}))
    assert isinstance(office.events[-1], Queued), "the next session uses them"
    assert isinstance(survey(office.store).last, Closed)


class Bucket(GatedStore):
    """Two writes since it was last asked."""

    def pop_traffic(self) -> Traffic:
        return Traffic(writes=2)


def test_requests_of_driver_and_coordinator_add_up_in_an_event_a_minute(make: Make) -> None:
    office = make(store=Bucket(), store_prices={"per_1000_writes": 1})

    def asked(writes: int) -> list[int]:
        office.wait(office.coordinator.instructions(0.0, traffic=Traffic(writes=writes)))
        return [e.traffic.writes for e in office.events if isinstance(e, Metered)]

    before = asked(3)
    assert asked(4) == before, "a minute is not over"
    office.monotonic += METER_SECONDS
    assert asked(5) == [*before, 3 + 4 + 5 + 2]


def test_what_the_end_of_a_session_takes_is_recorded_if_it_has_a_deadline(make: Make) -> None:
    for stop, recorded in (({"deadline": "8h"}, [3.5]), ({"failures": 1}, [])):
        office = make(stop=stop)
        office.wait(office.coordinator.rehearsed(3.5))
        assert [e.seconds for e in office.events if isinstance(e, Rehearsed)] == recorded
