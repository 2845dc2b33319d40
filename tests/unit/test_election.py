"""Which agent leads next, and when nobody does."""

from __future__ import annotations

import random

from regrow.apps.agent import election
from regrow.infra.state.agents import LEASE_SECONDS, LastSeen, TermEnd
from tests.contract.test_agents_in_stores import member


def test_machines_that_stay_lead_before_those_that_may_go() -> None:
    preferred = [
        member("first", joined=1.0),
        member("second", joined=2.0, market="on-demand"),
        member("long", ends=2000.0),
        member("short", ends=1000.0),
        member("spot", market="spot"),
        member("short-spot", market="spot", ends=1000.0),
    ]
    shown = [*preferred, member("never", leads=False)]
    random.Random(0).shuffle(shown)
    assert election.order(shown) == preferred


def test_an_agent_waits_for_those_before_it_but_not_for_each_of_many() -> None:
    there = [member(f"{n:02}", joined=float(n)) for n in range(20)]
    waits = [election.wait(there, one.id) for one in there]
    turn, most = election.TURN_SECONDS, election.MOST_TURNS
    assert waits[: most + 1] == [n * turn for n in range(most + 1)]
    assert set(waits[most:]) == {most * turn}
    assert election.wait([*there, member("never", leads=False)], "never") is None
    assert election.wait(there, "unseen") is None


def test_nobody_leads_before_a_claim_after_the_end_of_a_term_and_after_the_lease() -> None:
    def leader(silent: float) -> LastSeen:
        return LastSeen(keys={}, silent=silent)

    refused = election.refused_after(1.0)
    assert refused < LEASE_SECONDS
    assert election.has_no_leader(None, None)
    assert election.has_no_leader(leader(0.0), TermEnd(why="it left"))
    assert not election.has_no_leader(leader(LEASE_SECONDS), None)
    assert election.has_no_leader(leader(LEASE_SECONDS + 0.1), None)
    assert not election.has_no_leader(leader(refused), None, patience=refused)
    assert election.has_no_leader(leader(refused + 0.1), None, patience=refused)
