"""The ways to cut an experiment in the middle of its run, at a transition of the uninterrupted one.
No test lives here.

Each raises AssertionError, naming the transition, if the experiment does not grow back as it
should. (That everything dies at once needs no run: see `scenarios.grown_back`.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from regrow.infra.log.reading import read_events
from regrow.search.events import Ended
from tests.faults.checks import WATCHED, must, watch
from tests.faults.scenarios import PLANS, SEED, beginning, go_on, must_have_grown_back
from tests.faults.session import Session
from tests.faults.world import Process, Transition, World


@contextmanager
def told(what: str) -> Iterator[None]:
    """Puts before a failure at which transition it came about."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


def _begun(name: str) -> Session:
    return Session(
        World(beginning(name), watch=watch, keep_states=False), PLANS[name], seed=SEED, **WATCHED
    )


def coordinator_dies(name: str, at: Transition) -> None:
    """Driver and workers live on, and Ray starts the coordinator again."""
    with told(f"the coordinator died at {at}"), _begun(name) as session:

        def kill(here: Transition, _: Process) -> None:
            if here.number == at.number:
                session.coordinating.killed = True

        session.world.on = kill
        session.open().run().finish()
        events = must_have_grown_back(session.world.store, name)
        must(
            "no attempt is lost with it",
            not [e for e in events if isinstance(e, Ended) and e.outcome == "lost"],
        )


def worker_dies(name: str, at: Transition) -> None:
    """The worker whose transition it is."""
    with told(f"a worker died at {at}"), _begun(name) as session:

        def kill(here: Transition, process: Process) -> None:
            if here.number == at.number:
                process.killed = True

        session.world.on = kill
        session.open().run().finish()
        must_have_grown_back(session.world.store, name)


def another_rank_dies(name: str, at: Transition) -> bool:
    """Rank 1 of the worker whose transition it is, or that of its rank 0. False if it has only
    one.
    """
    with told(f"rank 1 died at {at}"), _begun(name) as session:
        died: list[Process] = []
        complete: list[str] = []

        def kill(here: Transition, process: Process) -> None:
            for worker in [
                w for w in session.workers if here.number == at.number and process in w.processes
            ]:
                died.extend(worker.processes[1:2])
                attempt = worker.process.name.removeprefix("worker ")
                last = f"manifests/{attempt}/{session.job.spec.max_steps:010d}.json"
                complete.extend(session.world.store.list(last))
                for other in worker.processes[1:2]:
                    other.killed = True

        session.world.on = kill
        session.open().run().finish()
        events = must_have_grown_back(session.world.store, name)
        lost = [
            (e.cause, e.message) for e in events if isinstance(e, Ended) and e.outcome == "lost"
        ]
        known = not died or lost == [("infrastructure", "rank 1: the worker process died")]
        # At the last message, or once the last checkpoint is whole, there was nothing left for it
        # to do.
        must(
            "a loss is that of a rank",
            known or (not lost and (at.what == "message" or complete)),
            lost,
        )
    return bool(died)


def worker_is_cut_off(name: str, at: Transition) -> None:
    """The worker whose transition it is counts as lost, while it continues and its messages still
    arrive.
    """
    with told(f"a worker was cut off at {at}"), _begun(name) as session:

        def cut(here: Transition, process: Process) -> None:
            if here.number == at.number:
                for worker in [w for w in session.workers if process in w.processes]:
                    session.cut_off(worker)

        session.world.on = cut
        session.open().run().finish()
        events = must_have_grown_back(session.world.store, name)
        lost = [e for e in events if isinstance(e, Ended) and e.outcome == "lost"]
        must(
            "the end of a zombie is no other loss", all(e.cause == "preempted" for e in lost), lost
        )


def overtaken(name: str, at: Transition) -> bool:
    """Another driver takes over, while the first with all that it has continues. False if that had no
    occasion to.
    """
    with told(f"a driver was overtaken at {at}"), _begun(name) as old:
        old.open().run(until=lambda: len(old.world.tape) > at.number)
        if old.status is not None:
            return False
        since, chance = len(old.world.tape), random.Random(at.number)
        world = World(old.world.store, watch=watch)
        with Session(world, PLANS[name], driver="driver-2", seed=at.number, **WATCHED) as new:
            new.open()
            while going := [session for session in (old, new) if session.status is None]:
                chance.choice(going).step()
            _must_not_write(old, since)
            new.finish()
        must_have_grown_back(world.store, name)
    return True


def overslept(name: str, at: Transition) -> bool:
    """Another driver takes over and finishes; then the first wakes up. False if that had no
    occasion to.
    """
    with told(f"a driver slept from {at} on"), _begun(name) as old:
        old.open().run(until=lambda: len(old.world.tape) > at.number)
        if old.status is not None:
            return False
        since, store = len(old.world.tape), old.world.store
        go_on(name, store, driver="driver-2")
        before = read_events(store)
        old.run()
        _must_not_write(old, since)
        must("the log is as it was", read_events(store) == before)
        go_on(name, store, driver="driver-3")  # what the zombie left is collected
    return True


def _must_not_write(zombie: Session, since: int) -> None:
    """It made no part of the log from that transition on. Merging what is there is no harm."""
    written = [
        t
        for t in zombie.world.tape[since:]
        if t.when == "after" and t.what.startswith("log ") and "deleted" not in t.what
    ]
    must("a zombie writes nothing", not written, written)
    must("a zombie stops", zombie.status == "superseded", zombie.status)
