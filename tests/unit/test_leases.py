"""Attempts and nodes that go away: in silence, where the lease decides, or with a notice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from regrow.flows.coordinator.leases import Awake, Leases
from regrow.infra.log.log import Superseded
from regrow.search.events import Closing, Ended, Place, Row, Saved, Started, encode
from regrow.search.lifecycle import TrialState
from regrow.search.needs import ClusterCapacity
from regrow.tasks.ports.messages import Progress
from tests.unit.office import GatedStore, Office, began_at, offices

Make = Callable[..., Office]


@pytest.fixture
def make() -> Iterator[Make]:
    with offices(schedule="fifo", trials=2, lease=10) as make:
        yield make


def arrive(
    office: Office,
    trial: int = 0,
    attempt: int = 1,
    *,
    rows: int = 0,
    saved: int = 0,
    restored: int = 0,
    node: str = "n1",
) -> str:
    """An attempt says that it runs on a node, and what it did; returns the reason that it is told
    to end for.
    """
    lease: dict[str, Any] = {"trial": trial, "attempt": attempt}
    done = tuple(Row(s, float(s), {"score": 1.0}) for s in range(restored + 1, restored + rows + 1))
    kept = (Saved(t=0.0, **lease, step=saved, manifest=f"m{saved}", size=1),) if saved else ()
    began = began_at(Place("node", node), task_run=f"run-{trial}", restored=restored)
    return office.report(Progress(**lease, began=began, rows=done, saved=kept)).reason


def say(
    office: Office, trial: int = 0, attempt: int = 1, *, draining: str = "", node: str = ""
) -> str:
    return office.report(
        Progress(trial=trial, attempt=attempt, draining=draining, draining_node=node)
    ).reason


def losses(office: Office) -> list[tuple[int, int, str]]:
    return [
        (e.trial, e.attempt, e.message)
        for e in office.events
        if isinstance(e, Ended) and e.outcome == "lost"
    ]


# ---- silence


def test_an_attempt_that_was_silent_for_its_lease_is_lost_and_goes_on_elsewhere(make: Make) -> None:
    office = make()
    office.instructions()
    arrive(office, rows=3, saved=2)
    office.monotonic = 9.0
    assert office.instructions().forget == ()
    office.monotonic = 10.5
    told = office.instructions()
    assert told.forget == ((0, 1),)
    (again,) = told.submit
    assert (again.trial, again.attempt, again.checkpoints) == (0, 2, ("m2",))
    ((trial, attempt, why),) = losses(office)
    assert (trial, attempt) == (0, 1)
    assert "no message came" in why
    assert why in again.explanation
    assert "continues after step 2" in again.explanation
    assert office.history.trials[0].state is TrialState.RUNNING


def test_what_the_zombie_says_afterwards_is_refused_and_changes_nothing(make: Make) -> None:
    office = make()
    office.instructions()
    arrive(office, rows=1)
    office.monotonic = 11.0
    office.instructions()
    before = office.events
    for progress in (
        Progress(trial=0, attempt=1, rows=(Row(2, 0.0, {"score": 9.0}),)),
        Progress(
            trial=0,
            attempt=1,
            saved=(Saved(t=0.0, trial=0, attempt=1, step=1, manifest="zombie", size=1),),
        ),
        Progress(trial=0, attempt=1, ended=Ended(t=0.0, trial=0, attempt=1, outcome="done")),
    ):
        assert office.report(progress).reason == "fenced"
    assert office.events == before


def test_attempts_that_have_ended_are_forgotten() -> None:
    watch = Leases(lambda: 0.0)
    for trial in range(100):
        watch.record_message(trial, 1)
        watch.suspect([(trial, 2)])
        watch.keep({(trial, 1)})
    assert (set(watch._last_message), set(watch._suspects)) == ({(99, 1)}, set())


def test_a_coordinator_that_did_not_run_itself_blames_nobody_for_the_silence() -> None:
    now = 100.0
    watch = Leases(Awake(lambda: now))
    watch.record_message(0, 1)
    now += 3600.0  # suspended
    assert not watch.silent(0, 1, 10.0, began=True)
    for _ in range(6):  # what the attempt says now arrives; if it says nothing, it is lost
        assert not watch.silent(0, 1, 10.0, began=True)
        now += 1.0
    assert watch.silent(0, 1, 10.0, began=True)


def test_each_word_renews_the_lease(make: Make) -> None:
    office = make()
    office.instructions()
    arrive(office)
    for _ in range(5):
        office.monotonic += 8.0
        say(office)
        office.instructions()
    assert losses(office) == []


def test_one_that_waits_for_a_slow_store_is_not_silent(make: Make) -> None:
    office = make()
    office.instructions()
    arrive(office)
    store = office.store
    assert isinstance(store, GatedStore)
    store.gate.clear()
    speaker = threading.Thread(target=arrive, args=(office,), kwargs={"rows": 1})
    store.reached.clear()
    speaker.start()
    assert store.reached.wait(20)
    office.monotonic = 100.0
    told = office.instructions()
    assert (told.forget, told.submit) == ((), ())
    store.gate.set()
    speaker.join(20)
    assert office.instructions().forget == ()
    assert losses(office) == []


def test_one_that_has_not_begun_may_wait_for_a_place_as_long_as_it_takes(make: Make) -> None:
    office = make()
    office.instructions()
    office.monotonic = 3600.0
    office.instructions()
    assert losses(office) == []


def test_one_that_has_not_begun_when_a_node_is_lost_gets_one_lease_to_do_so(make: Make) -> None:
    office = make()
    office.instructions()
    office.wait(office.coordinator.node_lost("n9"))
    office.monotonic = 9.0
    assert office.instructions().forget == ()
    office.monotonic = 11.0
    assert office.instructions().forget == ((0, 1),)
    ((_, _, why),) = losses(office)
    assert "did not begin" in why


def test_one_for_which_the_cluster_has_no_room_may_wait_though_a_node_was_lost(make: Make) -> None:
    office = make(slots=2)
    full, larger = ClusterCapacity(slots=1, widest=1), ClusterCapacity(slots=2, widest=1)
    office.instructions()
    arrive(office, 0)
    office.wait(office.coordinator.node_lost("n9"))
    for office.monotonic in (9.0, 18.0, 27.0, 36.0):
        say(office)
        assert office.wait(office.coordinator.instructions(0.0, full)).forget == ()
    # now there is room, and it does not begin
    for office.monotonic, forgotten in ((45.0, ()), (56.0, ((1, 1),))):
        say(office)
        assert office.wait(office.coordinator.instructions(0.0, larger)).forget == forgotten


def test_after_a_restart_of_the_coordinator_every_attempt_has_its_whole_lease(make: Make) -> None:
    office = make()
    office.instructions()
    arrive(office)
    office.monotonic = 9.0
    office.open("driver-1")
    office.instructions()
    office.monotonic = 18.0
    office.instructions()
    assert losses(office) == []
    office.monotonic = 20.0
    office.instructions()
    assert len(losses(office)) == 1


def test_what_was_lost_before_a_restart_of_the_coordinator_is_forgotten_by_its_driver(
    make: Make,
) -> None:
    office = make()
    office.instructions()
    arrive(office, node="n1")
    office.wait(office.coordinator.node_lost("n1"))  # and it ends before the driver asks again
    office.open("driver-1")
    told = office.instructions()
    assert told.forget == ((0, 1),)
    assert [(a.trial, a.attempt) for a in told.submit] == [(0, 2)]
    assert office.instructions().forget == ()


# ---- lost nodes


def test_what_ran_on_a_lost_node_is_lost_at_once_and_nothing_else(make: Make) -> None:
    office = make(slots=2)
    office.instructions()
    arrive(office, 0, node="n1")
    arrive(office, 1, node="n2")
    office.wait(office.coordinator.node_lost("n1"))
    told = office.instructions()
    assert told.forget == ((0, 1),)
    assert [(a.trial, a.attempt) for a in told.submit] == [(0, 2)]
    assert losses(office) == [(0, 1, "the node was lost")]


def test_after_three_losses_of_its_node_a_trial_avoids_spot_machines(make: Make) -> None:
    office = make(retries={"infrastructure": 0, "preempted": "unlimited"})
    for attempt in (1, 2, 3):
        (assignment,) = office.instructions().submit
        assert not assignment.avoid_spot
        arrive(office, 0, attempt, node=f"n{attempt}")
        office.wait(office.coordinator.node_lost(f"n{attempt}"))
    (assignment,) = office.instructions().submit
    assert assignment.avoid_spot
    assert [e.avoid_spot for e in office.events if isinstance(e, Started)] == [
        False,
        False,
        False,
        True,
    ]
    assert office.history.trials[0].evictions == 3


def test_the_loss_of_a_driver_moves_no_trial_away_from_spot_machines(make: Make) -> None:
    office = make(retries={"spot": 1})
    office.instructions()
    arrive(office)
    office.open("driver-2")
    (assignment,) = office.instructions().submit
    assert (assignment.attempt, assignment.avoid_spot) == (2, False)


# ---- notices


def test_a_node_that_one_attempt_knows_to_be_doomed_is_left_by_all_that_run_there(
    make: Make,
) -> None:
    office = make(slots=3, trials=3)
    office.instructions()
    for trial, node in ((0, "n1"), (1, "n1"), (2, "n2")):
        assert arrive(office, trial, node=node) == ""
    assert say(office, 0, draining="AWS takes the node back") == "preempted"
    assert say(office, 1) == "preempted"
    assert say(office, 2) == ""
    assert office.instructions().drain == (("n1", "AWS takes the node back"),)
    say(office, 0, draining="AWS takes the node back")
    assert office.instructions().drain == ()


def test_a_node_that_the_cluster_drains_is_left_without_draining_it_again(make: Make) -> None:
    office = make()
    office.instructions()
    arrive(office, node="n1")
    office.wait(office.coordinator.mark_draining("n1", "drained"))
    assert say(office) == "preempted"
    assert office.instructions().drain == ()


def test_a_preempted_attempt_costs_no_retry_and_goes_on_after_its_last_step(make: Make) -> None:
    office = make(retries={"infrastructure": 0, "error": 0})
    for attempt in range(1, 6):
        office.instructions()
        arrive(office, 0, attempt, restored=attempt - 1, rows=1, saved=attempt)
        ended = Ended(
            t=0.0,
            trial=0,
            attempt=attempt,
            outcome="preempted",
            cause="preempted",
            message="the node goes away",
        )
        office.report(Progress(trial=0, attempt=attempt, ended=ended))
    history = office.history
    assert history.trials[0].state is TrialState.RUNNING
    assert history.lost_steps == 0
    assert [a.outcome for a in history.trials[0].attempts] == ["preempted"] * 5 + [None]


# ---- two drivers


def test_a_writer_with_nothing_to_write_learns_that_another_one_took_over(make: Make) -> None:
    office = make()
    office.instructions()
    other = Office(schedule="fifo", trials=2, driver="driver-2", store=office.store)
    try:
        office.monotonic = 6.0  # a look is due
        for _ in range(200):
            if office.instructions().superseded:
                break
        assert office.instructions().superseded
        assert say(office) == "fenced"
    finally:
        other.close()


def test_looking_finds_only_a_successor(make: Make) -> None:
    office = make()
    log = office.coordinator._ledger.log
    log.raise_if_superseded()
    other = Office(schedule="fifo", trials=2, driver="driver-2", store=office.store)
    other.close()
    with pytest.raises(Superseded):
        log.raise_if_superseded()


def test_a_coordinator_that_ray_restarts_after_its_driver_was_superseded_takes_nothing_back(
    make: Make,
) -> None:
    office = make()
    office.instructions()
    other = Office(schedule="fifo", trials=2, driver="driver-2", store=office.store)
    try:
        before = office.events
        office.open("driver-1")
        assert office.instructions().superseded
        assert say(office) == "fenced"
        assert office.events == before
    finally:
        other.close()


def test_a_claim_gets_through_beside_a_writer_that_keeps_writing(make: Make) -> None:
    office = make(slots=2)
    store = office.store
    create, turns = store.create, iter(range(3))

    def others_first(key: str, data: Any) -> None:
        """The old coordinator's segment comes before the claim, three times."""
        if key.startswith("log/") and next(turns, None) is not None:
            store.create = create  # type: ignore[method-assign]
            log.append([encode(closing)])
            store.create = others_first  # type: ignore[method-assign]
        create(key, data)

    log = office.coordinator._ledger.log
    closing = Closing(t=0.0, status="stopped", why="", by="user")
    store.create = others_first  # type: ignore[method-assign]
    other = Office(schedule="fifo", trials=2, driver="driver-2", store=store)
    try:
        assert other.instructions().superseded is False
    finally:
        other.close()
