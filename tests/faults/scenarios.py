"""The experiments that are cut: small, so that they can be cut everywhere. And how they continue. No
test lives here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from regrow.infra.log.reading import read_events
from regrow.search.events import AnyEvent, Ended
from regrow.tasks.ports.messages import Job
from regrow.tasks.ports.store import Store
from tests.faults import tally
from tests.faults.checks import (
    WATCHED,
    Entry,
    must,
    must_be_sound,
    must_equal,
    must_have_same_trials,
    must_keep_limits,
    normal,
    watch,
)
from tests.faults.clock import STEP_SECONDS
from tests.faults.session import Plan, Session
from tests.faults.world import State, Transition, World, restored
from tests.memory_store import MemoryStore

_SPEC: dict[str, Any] = {
    "name": "cut",
    "trainable": "tests.faults.work:train",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0.0, 1.0]}},
    "search": "random",
    "schedule": "fifo",
    "trials": 3,
    "max_steps": 3,
    "checkpoint": {"keep_last": 1, "keep_best": 1},
}
_ASHA: dict[str, Any] = {"schedule": {"asha": {"grace_period": 1, "reduction_factor": 2}}}
_PROMOTES: dict[str, Any] = {
    "schedule": {"asha": {"type": "promotion", "grace_period": 1, "reduction_factor": 2}}
}
_PBT: dict[str, Any] = {"schedule": {"pbt": {"perturbation_interval": 1, "quantile_fraction": 0.5}}}
_SPOT: dict[str, Any] = {"market": {"first": "spot", "after": 10, "evictions": 2}, "lease": 1000}
_WIDER: dict[str, Any] = {"schedule": {"resource_changing": {**_ASHA, "interval": 1}}}
_GROUP: dict[str, Any] = {"resources": {"workers": 2}}
_ELASTIC: dict[str, Any] = {"resources": {"workers": [1, 2]}}
_DEFINED: dict[str, Any] = {
    "trainable": "tests.faults.work:defined",
    "space": {},
    "enqueue": [{"x": 0.75}],
    "search": {"define_by_run": {"options": {"n_startup_trials": 2}}},
}
_GAPS: dict[str, Any] = {"step_metric": {"name": "epoch", "first": 0}, "max_steps": 5, **_ASHA}
_CHOICES: dict[str, Any] = {"space": {"x": {"choice": [0.2, 0.5, 0.8]}}, "trials": None}
"""As many trials as money and time allow: in the end, all that the space has."""
_DOLLAR: float = 3600 / STEP_SECONDS
"""The price of an hour of which a step costs a dollar."""
_TPE: dict[str, Any] = {"search": {"tpe": {"n_startup_trials": 2}}}


def _plan(
    slots: int,
    *,
    carry_on: bool = False,
    late: bool = False,
    rooms: tuple[int, ...] = (),
    spot: tuple[bool, ...] = (True,),
    agents: bool = False,
    price: float | None = None,
    more: dict[str, Any] | None = None,
    count: int | None = None,
    **changes: Any,
) -> Plan:
    return Plan(
        spec={**_SPEC, **changes},
        slots=slots,
        carry_on=carry_on,
        late=late,
        rooms=rooms,
        spot=spot,
        agents=agents,
        price=price,
        more=more,
        count=count,
    )


def _mended(slots: int, *, trials: int, **changes: Any) -> Plan:
    """All trials had failed; what was wrong is mended, and they are tried again, with one more."""
    return Plan(
        spec={**_SPEC, **changes, "trials": trials},
        slots=slots,
        broken="tests.faults.work:broken",
        trials=trials + 1,
    )


def _without(trial: int, slots: int, *, trials: int, **changes: Any) -> Plan:
    """All trials have ended; the user drops one, and two more follow."""
    spec = {**_SPEC, **changes, "trials": trials}
    return Plan(spec=spec, slots=slots, dropped=trial, trials=trials + 2)


ONE: dict[str, Plan] = {
    "fifo, random": _plan(1),
    "asha, tpe": _plan(1, **_ASHA, **_TPE, trials=4, max_steps=3),
    "steps with gaps, the last one counts": _plan(1, **_GAPS, **_TPE, score="last", trials=4),
    "define by run": _plan(1, **_DEFINED, **_ASHA, trials=4),
    "short trials in a row": _plan(
        1, carry_on=True, **_ASHA, max_steps=3, checkpoint={"every_steps": 2, "keep_last": 2}
    ),
    "late checkpoints": _plan(1, late=True, **_ASHA, trials=2),
    "tried again": _mended(1, trials=2),
    "one dropped": _without(0, 1, trials=3, **_TPE),
    "a node that comes and goes": _plan(
        1, rooms=(1, 0, 1, 0, 1), **_ASHA, **_TPE, trials=4, max_steps=3
    ),
    "agents that come and go, and lead in turn": _plan(
        1, agents=True, rooms=(1, 0, 1, 0, 1), **_ASHA, **_TPE, trials=3, max_steps=3
    ),
    "two ranks": _plan(2, **_GROUP, **_PROMOTES, **_TPE),
    "one rank or two": _plan(
        2, rooms=(1, 2, 2, 1, 2, 0, 2), spot=(True, False), **_ELASTIC, **_PROMOTES, concurrency=1
    ),
    "late checkpoints of two ranks": _plan(2, late=True, **_GROUP, **_ASHA, trials=2),
    "a population of groups": _plan(
        2, rooms=(2, 1, 1, 2), **_ELASTIC, **_PBT, trials=2, concurrency=1
    ),
    "the money ends in the middle": _plan(
        1,
        **_CHOICES,
        max_steps=4,
        count=3,
        price_per_hour=_DOLLAR,
        stop={"dollars": 3.0},
        more={"dollars": 1000.0},
    ),
    "a budget in place of trials": _plan(
        1, **_ASHA, **_TPE, trials=None, budget={"steps": 11}, max_steps=3, count=5
    ),
    "spot first": _plan(1, spot=(True, False, False), **_SPOT, **_ASHA, trials=4, max_steps=3),
}
"""One attempt at a time: nothing happens at the same time."""
SEVERAL: dict[str, Plan] = {
    "fifo, random, 2 slots": _plan(2, trials=2, max_steps=4),
    "asha, tpe, 3 slots": _plan(3, **_ASHA, **_TPE, trials=4, max_steps=3),
    "late checkpoints, 2 slots": _plan(2, late=True),
    "short trials in a row, 2 slots": _plan(2, carry_on=True, **_ASHA, trials=4, max_steps=3),
    "a cluster that grows and shrinks": _plan(
        3, rooms=(1, 3, 0, 2), **_ASHA, **_TPE, trials=4, max_steps=3
    ),
    "steps with gaps, only ends count": _plan(2, **_GAPS, **_TPE, score="final", trials=4),
    "define by run, 2 slots": _plan(2, **_DEFINED, **_ASHA, trials=4),
    "attempts as wide as there is room": _plan(
        3, rooms=(1, 3, 2, 0, 3), **_WIDER, trials=2, max_steps=4
    ),
    "two ranks, two at a time": _plan(4, **_GROUP, **_ASHA, **_TPE),
    "one rank or two, as there is room": _plan(3, rooms=(2, 3, 0, 3), **_ELASTIC, **_PROMOTES),
    "spot first, 2 slots": _plan(2, spot=(True, False), **_SPOT, **_ASHA, trials=4, max_steps=3),
    "a deadline, and nodes with a price, 2 slots": _plan(
        2,
        rooms=(2, 1, 2),
        **_CHOICES,
        **_PROMOTES,
        count=3,
        price=_DOLLAR,
        stop={"dollars": 90.0, "deadline": 160},
        more={"dollars": 1000.0, "deadline": 10_000},
    ),
    "a budget in place of trials, 2 slots": _plan(2, trials=None, budget=3, count=3),
    "tried again, 2 slots": _mended(
        2, trials=2, schedule={"asha": {"grace_period": 2, "reduction_factor": 2}}
    ),
}
PLANS = ONE | SEVERAL
GROUPS = [name for name in PLANS if PLANS[name].widths[1] > 1]
"""Those whose attempts have several ranks. Each of their runs takes twice as long, so that fewer
are made.
"""
SEED = 7
"""Orders the uninterrupted run; what follows a crash has another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A run that nobody cut: every transition of it, the durable state at each, and its log."""

    tape: list[Transition]
    states: list[State]
    events: list[AnyEvent]
    entries: list[Entry]

    @property
    def open(self) -> list[Transition]:
        """The transitions before it wrote that it is closed."""
        closing = [t.number for t in self.tape if t.what.startswith("log ") and "closed" in t.what]
        return self.tape[: closing[0]]


@cache
def whole(name: str) -> Whole:
    """The uninterrupted run of a scenario."""
    return uncut(name)


def uncut(name: str, *, check: bool = True) -> Whole:
    """The same, made anew."""
    world = World(beginning(name), watch=watch)
    run(world, name, seed=SEED)
    events = must_have_ended(world.store, name) if check else []
    return Whole(tape=world.tape, states=world.states, events=events, entries=normal(events))


def trials_of(name: str) -> int:
    """The total number of trials."""
    plan = PLANS[name]
    total: int = plan.count or plan.trials or plan.spec["trials"]
    return total


def beginning(name: str) -> MemoryStore:
    """What is there before a scenario: nothing, or an experiment all of whose trials have
    failed.
    """
    return restored(_before(name))


@cache
def _before(name: str) -> State:
    plan, world = PLANS[name], World(MemoryStore())
    if plan.broken is not None:
        with Session(
            world, replace(plan, broken=None, trials=None), driver="driver-0", seed=SEED
        ) as session:
            broken = session.job.spec.model_copy(update={"trainable": plan.broken})
            session.job = Job.of(broken, folder=None)
            assert session.open().run().finish().status == "failed"
    if plan.dropped is not None:
        with Session(
            world, replace(plan, dropped=None, trials=None), driver="driver-0", seed=SEED
        ) as session:
            session.open().run().finish()
    return {key: world.store.read(key) for key in world.store.list("")}


def run(world: World, name: str, *, driver: str = "driver-1", seed: int = 0) -> Session:
    """A session from its start to its end."""
    with Session(world, PLANS[name], driver=driver, seed=seed, **WATCHED) as session:
        return session.open().run().finish()


def must_have_ended(store: Store, name: str) -> list[AnyEvent]:
    """What holds at the end of a scenario that was not cut. Returns its events."""
    events = must_be_sound(store, trials=trials_of(name))
    if PLANS[name].more is not None:
        ended = _must_keep_limits(events, name)
        must("a limit ends it in the middle", ended == 1, ended)
        lost = [e for e in events if isinstance(e, Ended) and e.outcome == "lost"]
        must("nothing is lost at a limit", not lost, lost)
    return events


def must_have_grown_back(store: Store, name: str) -> list[AnyEvent]:
    """What holds at the end of a scenario that was cut. Returns its events."""
    events = must_be_sound(store, trials=trials_of(name))
    plan = PLANS[name]
    if plan.repeats:
        must_equal(normal(events), whole(name).entries)
    if plan.more is not None:
        _must_keep_limits(events, name)
    return events


def _must_keep_limits(events: list[AnyEvent], name: str) -> int:
    """See `must_keep_limits`. Also that the trials became what they are without limits."""
    ended = must_keep_limits(events)
    if PLANS[name].spec["schedule"] == "fifo":
        must_have_same_trials(events, _unlimited(name))
    return ended


@cache
def _unlimited(name: str) -> list[AnyEvent]:
    """The events of a run that nobody cut, and that no limit ended."""
    plan, world = PLANS[name], World(MemoryStore())
    assert plan.more is not None
    spec = {**plan.spec, "stop": dict(plan.more)}
    with Session(world, replace(plan, spec=spec), seed=SEED) as session:
        session.open().run()
    return read_events(world.store)


_outcomes: dict[tuple[str, frozenset[tuple[str, bytes]]], World | AssertionError] = {}


def grown_back(name: str, state: State, seed: int) -> World:
    """A new driver continues from a durable state, to the end, and what must hold holds; once for
    equal states.
    """
    key = name, frozenset(state.items())
    if key not in _outcomes:
        try:
            _outcomes[key] = go_on(
                name, restored(state), driver=f"driver-{len(_outcomes) + 2}", seed=seed
            )
        except AssertionError as error:
            _outcomes[key] = error
        tally.resumes(name)
    outcome = _outcomes[key]
    if isinstance(outcome, AssertionError):
        raise outcome
    return outcome


def forget() -> None:
    """Free the memory of what `grown_back` has kept: 100 MB after all that is cut by day."""
    _outcomes.clear()


def go_on(name: str, store: Store, *, driver: str = "driver-2", seed: int = 0) -> World:
    """A new driver on what is in the store, to the end; what must hold holds."""
    world = World(store, watch=watch)
    run(world, name, driver=driver, seed=seed)
    must_have_grown_back(store, name)
    return world
