"""Agents that come, lead, leave and are lost: nothing is done twice, and nobody types a command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.conftest import Desk
from tests.system.hosts import why_not
from tests.system.joined import SPEC, Fleet, fleet, scores
from tests.system.test_main_job import check_whole

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "hosts can be made")


@pytest.fixture
def site(desk: Desk) -> Iterator[Fleet]:
    with fleet(desk, 3) as found:
        yield found


def check_exact(site: Fleet, name: str, trials: int) -> int:
    """What must hold of each experiment in the end: its values are those of trials that were never
    interrupted. Returns the steps that were done twice.
    """
    view = check_whole(site.desk, name, trials)
    points = site.desk.points(name)
    for trial in view["trials"]:
        values = [p["score"] for p in points if p["trial"] == trial["number"]]
        assert values == scores(trial["number"], trial["config"]["x"], len(values))
    wasted: int = view["wasted_steps"]
    return wasted


def test_a_leader_that_is_lost_is_followed_by_another_as_often_as_it_happens(site: Fleet) -> None:
    file = site.desk.write("lost", seconds=0.3, trials=6, max_steps=12, **SPEC)
    for host in range(3):
        site.join(host, file, "--cpus", 1)
    term, leader = site.await_leader("lost")
    site.wait(lambda: len(site.events("lost", "saved")) > 6, "checkpoints")
    leader.lose()
    term, leader = site.await_leader("lost", term)
    site.wait(lambda: len(site.events("lost", "opened")) > 1, "the next session")
    seen = len(site.events("lost", "saved"))
    site.wait(lambda: len(site.events("lost", "saved")) > seen + 2, "checkpoints")
    leader.kill()
    for agent in site.agents:
        agent.ended()
    check_exact(site, "lost", 6)
