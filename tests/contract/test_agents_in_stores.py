"""What agents see of each other in each kind of store: who is there, who leads, who is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import msgspec
import pytest

from regrow.infra.state.agents import (
    FORGET_SECONDS,
    LEASE_SECONDS,
    AgentMember,
    Agents,
    Head,
    Term,
    TermEnd,
    living,
)
from regrow.infra.stores.local import LocalStore
from regrow.infra.stores.s3 import open_s3
from regrow.tasks.ports.store import Store, Unavailable
from tests.memory_store import MemoryStore


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            yield MemoryStore()
        case "local":
            yield LocalStore(tmp_path / "state")
        case _:
            yield open_s3(request.getfixturevalue("s3"))


class Away:
    """A store, which may be out of reach for its user."""

    def __init__(self, store: Store) -> None:
        self.store, self.away = store, False

    def list(self, prefix: str) -> list[str]:
        if self.away:
            raise Unavailable(prefix, "network")
        return self.store.list(prefix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Clock:
    """A monotonic clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def member(name: str, **changes: Any) -> AgentMember:
    fields: dict[str, Any] = {
        "host": name,
        "process": 1,
        "joined": 0.0,
        "address": "10.0.0.1",
        "port": 1,
        "nonce": "n",
        "cpus": 1,
    }
    return AgentMember(id=name, **{**fields, **changes})


def term(name: str) -> Term:
    return Term(agent=name, host=name, t=0.0)


def test_of_agents_that_claim_at_once_one_leads_and_the_others_see_it(store: Store) -> None:
    names = [f"agent-{n}" for n in range(8)]
    start = Barrier(len(names))

    def claim(name: str) -> int | None:
        agents = Agents(store)
        agents.refresh()
        start.wait()
        return agents.claimed(term(name))

    with ThreadPoolExecutor(len(names)) as pool:
        claimed = list(pool.map(claim, names))
    (winner,) = [name for name, number in zip(names, claimed, strict=True) if number == 1]
    seen = Agents(store)
    seen.refresh()
    assert (seen.term, seen.claim, seen.head, seen.over) == (1, term(winner), None, None)


def test_a_leader_is_lost_once_it_was_silent_for_the_lease_by_the_clock_of_who_looks(
    store: Store,
) -> None:
    clock = Clock()
    seen, reach = Agents(store, monotonic=clock), Away(store)
    seen._store = reach
    assert Agents(store).claimed(term("one")) == 1

    def look(seconds: float, *, sign: int | None = None) -> bool:
        clock.now += seconds
        if sign is not None:
            store.create(f"agents/term/00000001.alive-{sign}", b"")
        reach.away = False
        seen.refresh()
        assert seen.leader is not None
        return seen.leader.lost

    assert not look(0)
    assert not look(LEASE_SECONDS)
    assert look(1)
    assert not look(1, sign=9)
    assert not look(LEASE_SECONDS - 1)
    # it could not delete its last sign, which names itself after the newer one
    assert not look(2, sign=10)
    assert not look(LEASE_SECONDS - 1)

    reach.away = True
    clock.now += 60
    with pytest.raises(Unavailable):
        seen.refresh()
    assert not look(60), "nobody could be heard, nor give a sign"
    assert look(2)


def test_who_is_there_and_why_others_left(store: Store) -> None:
    clock = Clock()
    seen = Agents(store, monotonic=clock)
    first, second = Agents(store), Agents(store)
    with first.present(member("a", joined=2.0)) as because:
        with second.present(member("b", joined=1.0)):
            seen.refresh()
            assert [one.id for one in seen.living()] == ["b", "a"]
        seen.refresh()
        assert [one.id for one in seen.living()] == ["a"]
        assert (found := seen.left("b")) is not None
        assert found.why == "it ended"
        because("its time ended")
    seen.refresh()
    assert seen.living() == []
    assert (found := seen.left("a")) is not None
    assert found.why == "its time ended"
    clock.now += FORGET_SECONDS + 1
    seen.refresh()
    seen.forget_lost()
    assert store.list("agents/") == []


def test_an_agent_that_was_forgotten_while_it_was_away_is_there_again(store: Store) -> None:
    one, leader = Agents(store), Agents(store)
    with one.present(member("a")):
        store.delete(store.list("agents/member/"))
        leader.refresh()
        assert leader.living() == []
        one.refresh()
        leader.refresh()
        assert leader.living() == [member("a")]


def test_a_new_leader_forgets_the_terms_before_it_and_their_tokens(store: Store) -> None:
    head = Head(address="10.0.0.1:1", token="secret", versions={})
    agents = Agents(store)
    assert agents.claimed(term("a")) == 1
    with agents.leading(1) as end:
        agents.publish(1, head)
        agents.refresh()
        assert (agents.head, agents.over) == (head, None)
        end(TermEnd(why="it left"))
        end(TermEnd(why="it was already over"))
    agents.refresh()
    assert agents.over == TermEnd(why="it left")
    assert agents.claimed(term("b")) == 2
    with agents.leading(2):
        agents.refresh()
        assert (agents.term, agents.claim, agents.head) == (2, term("b"), None)
        assert not [key for key in store.list("agents/term/") if key < "agents/term/00000002"]


def test_a_command_sees_those_that_give_signs_of_life_alone(store: Store) -> None:
    assert living(store) == []
    agents = Agents(store)
    store.create(
        "agents/member/killed-before-its-first-sign", msgspec.json.encode(member("killed"))
    )
    with agents.present(member("there")):
        assert [one.id for one in living(store)] == ["there"]
