"""Whatever dies, and wherever: the experiment grows back, and what comes of it is what would have
come of it.

The ordinary run crosses, in each scenario, a transition of each kind (see `world.py`); the nightly one
all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.infra.stores.local import LocalStore
from tests.faults import cuts, tally
from tests.faults.scenarios import GROUPS, ONE, PLANS, SEED, forget, go_on, grown_back, whole
from tests.faults.session import USER
from tests.faults.world import Transition

EVENTS = (
    "created",
    "opened",
    "joined",
    "left",
    "capacity",
    "proposed",
    "started",
    "waited",
    "began",
    "reported",
    "decided",
    "saved",
    "dropped",
    "ended",
    "revived",
    "excluded",
    "priced",
    "milestone",
    "closing",
    "closed",
)
EFFECTS = (
    "attempt handed out", "message", "blob written", "manifest written", "manifest deleted", "blob deleted",
    "merged log object written", "log segment deleted", "merged log object deleted", "log seal written",
)  # fmt: skip
KINDS = tuple(f"log {event}" for event in EVENTS) + EFFECTS


@pytest.fixture(scope="module", autouse=True)
def _outcomes_end_with_this_file() -> Iterator[None]:
    yield
    forget()


def is_of(transition: Transition, kind: str) -> bool:
    """Whether a transition is of a kind; one segment makes several kinds of events durable."""
    if kind.startswith("log ") and not kind.endswith(("deleted", "written")):
        return transition.what.startswith("log ") and kind[4:] in transition.what[4:].split("+")
    return transition.what == kind


def crossings(name: str, kind: str) -> list[Transition]:
    """The transitions of a kind in the uninterrupted run; there are some, unless the scenario can't
    have them.
    """
    found = [t for t in whole(name).tape if is_of(t, kind)]
    assert (
        found
        or (kind == "log decided" and "asha" not in str(PLANS[name].spec["schedule"]))
        or _rare(name, kind)
    )
    return found


def _rare(name: str, kind: str) -> bool:
    later = PLANS[name].broken is not None or PLANS[name].dropped is not None
    if later and kind == "log created":
        return True
    if PLANS[name].more is None and kind in ("log milestone", "log closing"):
        return True
    if PLANS[name].price is None and kind == "log priced":
        return True
    if not PLANS[name].agents and kind in ("log joined", "log left"):
        return True
    if PLANS[name].dropped is None and kind == "log excluded":
        return True
    if PLANS[name].broken is None and kind == "log revived":
        return True
    if (not PLANS[name].rooms and kind == "log capacity") or (
        all(PLANS[name].spot) and kind == "log waited"
    ):
        return True
    return "merged" in kind or (
        name == "short trials in a row" and kind.endswith(("dropped", "deleted"))
    )


@pytest.mark.parametrize("name", PLANS)
def test_it_grows_back_after_everything_died_at_one_transition_of_each_kind(name: str) -> None:
    """Before, torn and after are chosen each on its own: another one in each scenario."""
    for kind in KINDS:
        found = crossings(name, kind)
        for when in sorted({transition.when for transition in found}):
            chance = random.Random(f"{SEED} {name} {kind} {when}")
            everything_dies(name, chance.choice([t for t in found if t.when == when]))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PLANS)
def test_it_grows_back_after_everything_died_at(name: str, kind: str) -> None:
    found = crossings(name, kind)
    for transition in found[:: 5 if name in GROUPS and len(found) > 6 else 1]:
        everything_dies(name, transition)


def everything_dies(name: str, transition: Transition) -> None:
    """Continues from what was durable there."""
    tally.cut("everything", name, transition.number, transition.kind)
    with cuts.told(f"everything died at {transition}"):
        grown_back(name, whole(name).states[transition.number], transition.number)


@pytest.mark.parametrize("name", PLANS)
def test_it_grows_back_after_it_died_again_and_again_while_growing_back(name: str) -> None:
    chance = random.Random(SEED)
    tape, states, died = whole(name).tape, whole(name).states, list[Transition]()
    for _ in range(3 if name in GROUPS else 7):
        recovery, died = tape, []
        for generation in ("first", "second", "third"):
            transition = chance.choice([t for t in recovery if not _torn_again(died, t)])
            died.append(transition)
            tally.cut(f"{generation} of 3", name, transition.number, transition.kind)
            with cuts.told(f"everything died at {', then at '.join(map(str, died))}"):
                world = grown_back(name, states[transition.number], transition.number)
            recovery, states = world.tape, world.states
        states = whole(name).states


def _torn_again(died: list[Transition], then: Transition) -> bool:
    """A claim that is torn right after a torn segment, also where another one died between the two
    before it had written its claim: see test_torn_twice.py.
    """
    claims = then.what.startswith("log opened")
    for before in reversed(died if claims and then.when == "torn" else ()):
        if before.when == "torn":
            return True
        if not (before.when == "before" and before.what.startswith("log opened")):
            return False
    return False


@pytest.mark.parametrize("name", ["asha, tpe", "fifo, random, 2 slots"])
def test_it_grows_back_in_a_folder(name: str, tmp_path: Path) -> None:
    for transition in random.Random(SEED).sample(whole(name).tape, 14):
        tally.cut("in a folder", name, transition.number, transition.kind)
        store = LocalStore(tmp_path / str(transition.number))
        for key, data in whole(name).states[transition.number].items():
            store.create(key, data)
        go_on(name, store, seed=transition.number)


THIRD = pytest.mark.parametrize(
    "part", [3, pytest.param(1, marks=pytest.mark.nightly)], ids=["by day", "by night"]
)
"""By day a third of what dies by night."""


@THIRD
@pytest.mark.parametrize("name", PLANS)
def test_it_grows_back_after_the_coordinator_died(name: str, part: int) -> None:
    """Ray starts it again, and sends again what was not answered; driver and workers know nothing
    of it.
    """
    stride = part * (29 if name in GROUPS else 6 if name in ONE else 9)
    for transition in whole(name).tape[::stride]:
        if transition.who == USER:
            continue  # before there is a coordinator
        tally.cut("coordinator", name, transition.number, transition.kind)
        cuts.coordinator_dies(name, transition)


@THIRD
@pytest.mark.parametrize("name", PLANS)
def test_it_grows_back_after_a_worker_died(name: str, part: int) -> None:
    """Of several ranks the first, with which the others end."""
    stride = 13 if name in GROUPS else 6 if name in ONE else 9
    of_workers = [
        transition
        for transition in whole(name).tape[::stride]
        if transition.who.startswith("worker") and "rank" not in transition.who
    ]
    for transition in of_workers[::part]:
        tally.cut("worker", name, transition.number, transition.kind)
        cuts.worker_dies(name, transition)


@pytest.mark.parametrize("name", GROUPS)
def test_it_grows_back_after_another_rank_died(name: str) -> None:
    """At each of its own transitions, and at some of rank 0's: always between the upload of all and
    the commit.
    """
    own = [t for t in whole(name).tape if "rank" in t.who]
    leaders = {t.who.partition(",")[0] for t in own}
    first = [t for t in whole(name).tape if t.who in leaders]
    commits = [t for t in first if t.kind == "before manifest written"]
    assert own
    assert commits
    for transition in sorted({*own, *commits, *first[::11]}, key=lambda t: t.number):
        assert cuts.another_rank_dies(name, transition)
        tally.cut("another rank", name, transition.number, transition.kind)
