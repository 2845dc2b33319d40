"""What was taken for dead and continues: nothing that it does counts.

A *zombie* is a driver with its coordinator and workers while another driver has taken the log over,
or a worker whose attempt was declared lost. Both continue in turn with those that replaced them, in an
order that depends on a seed.
"""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest

from regrow.infra.log.reading import read_events
from regrow.search.events import AnyEvent
from regrow.search.planning.planner import Planner
from tests.faults import cuts, tally
from tests.faults.checks import must_be_sound
from tests.faults.scenarios import GROUPS, PLANS, SEED, SEVERAL, trials_of, whole
from tests.faults.session import Session
from tests.faults.world import Transition, World
from tests.memory_store import MemoryStore


def pauses(name: str, count: int) -> list[Transition]:
    """Where sessions are overtaken."""
    return random.Random(SEED).sample(whole(name).open, count)


@pytest.mark.parametrize("name", PLANS)
def test_a_driver_that_goes_on_beside_its_successor_does_nothing_that_counts(name: str) -> None:
    for transition in pauses(name, 4 if name in GROUPS else 8):
        if cuts.overtaken(name, transition):
            tally.cut("overtaken", name, transition.number, transition.kind)


@pytest.mark.parametrize("name", PLANS)
def test_a_driver_that_wakes_up_when_all_is_over_does_nothing_that_counts(name: str) -> None:
    for transition in pauses(name, 3 if name in GROUPS else 6):
        if cuts.overslept(name, transition):
            tally.cut("overslept", name, transition.number, transition.kind)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_worker_that_was_declared_lost_and_goes_on_does_nothing_that_counts(name: str) -> None:
    workers = [t for t in whole(name).tape if t.who.startswith("worker")]
    for transition in random.Random(SEED).sample(workers, 8 if name in GROUPS else 12):
        tally.cut("cut off", name, transition.number, transition.kind)
        cuts.worker_is_cut_off(name, transition)


def test_a_driver_that_wakes_up_in_its_sweep_deletes_nothing_of_its_successor() -> None:
    name, store = "fifo, random, 2 slots", MemoryStore()
    old = Session(World(store), PLANS[name]).open().run()
    new = Session(World(store), PLANS[name], driver="driver-2", trials=trials_of(name) + 1)
    listed = store.list

    def slow_list(prefix: str) -> list[str]:
        """The successor runs between the sweep's reading of the log and its look at what is
        there.
        """
        store.list = listed  # type: ignore[method-assign]
        new.open().run()
        return listed(prefix)

    events = read_events(store)
    with patch("tests.faults.session.replay", lambda _: replayed(events).history):
        store.list = slow_list  # type: ignore[method-assign]
        old.finish()
    must_be_sound(store, trials=trials_of(name) + 1, swept=False)


def replayed(events: list[AnyEvent]) -> Planner:
    """What `places.replay` gives of a log that ends there."""
    planner = Planner()
    for event in events:
        planner.apply(event)
    return planner
