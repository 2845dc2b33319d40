"""Agents that come, lead, leave and are lost: nothing is done twice, and nobody types a command."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from regrow.infra.machine.versions import versions
from regrow.infra.state.agents import Agents, Head, Term
from tests.system.conftest import Desk
from tests.system.hosts import why_not
from tests.system.joined import (
    SPEC,
    Agent,
    Fleet,
    allow,
    behind_nat,
    dropped,
    fleet,
    listened,
    scores,
)
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


@pytest.mark.nightly  # below a leader is lost, once
def test_a_leader_that_is_lost_is_followed_by_another_as_often_as_it_happens(site: Fleet) -> None:
    losses: list[Callable[[Agent], None]] = [Agent.kill, Agent.lose]
    file = site.desk.write("lost", seconds=0.3, trials=6, max_steps=12, **SPEC)
    for host in range(3):
        site.join(host, file, "--cpus", 1)
    term, leader = site.await_leader("lost")
    for count, lose in enumerate(losses, 1):
        saves(site, "lost")
        lose(leader)
        term, leader = site.await_leader("lost", term)
        site.wait(
            lambda: len(site.events("lost", "opened", by="driver")) > count,  # noqa: B023
            "the next session",
        )
    for agent in site.agents:
        agent.ended()
    check_exact(site, "lost", 6)


# By day test_slurm.py tells a leader to leave while others are there, too, who go on at once.
def test_an_agent_that_is_told_to_leave_loses_no_step_and_the_next_one_to_come_continues_also_for_a_lost_leader(
    site: Fleet,
) -> None:
    hurry = site.desk.folder / "hurry"
    train = SPEC["train"].replace("SECONDS", f"0 if os.path.exists({str(hurry)!r}) else 0.3")
    changes = {**SPEC, "train": f"import os\n{train}", "trials": 3, "max_steps": 150}
    file = site.desk.write("leave", **changes)
    first = site.join(0, file, "--cpus", 1)
    site.await_leader("leave")
    second = site.join(1, file, "--cpus", 1)
    site.wait(lambda: len(nodes(site, "leave")) == 2, "a trial on each of them")
    saves(site, "leave")
    second.leave_with_all()
    assert "its trials save, and run elsewhere" in second.ended()
    assert second.process.returncode == 3
    (left,) = site.events("leave", "ended")
    assert (left["outcome"], left["cause"]) == ("preempted", "preempted")

    first.leave()
    assert "all trials save, and another agent leads next" in first.ended()
    assert first.process.returncode == 3
    view = site.desk.show("leave")
    assert (view["status"], view["wasted_steps"]) == ("interrupted", 0), "it rests"
    assert not site.events("leave", "ended", outcome="lost")

    third = site.join(2, "leave", "--cpus", 1)
    term, leader = site.await_leader("leave", 1)
    assert leader is third
    last = site.join(0, file, "--cpus", 1)
    site.wait(lambda: len(nodes(site, "leave")) == 4, "a trial on each of the next two")
    saves(site, "leave")
    third.lose()
    hurry.touch()
    assert site.await_leader("leave", term)[1] is last
    assert "leave has finished; this agent ends" in last.ended()
    assert last.process.returncode == 0
    check_exact(site, "leave", 3)
    done = site.desk.events("leave")
    again = site.join(1, file)
    assert again.ended() == "regrow: leave has finished; this agent ends\n"
    assert again.process.returncode == 0
    assert site.desk.events("leave") == done


def test_agents_need_only_the_ports_that_are_named_and_end_when_the_user_stops_it(
    site: Fleet,
) -> None:
    if shutil.which("nft") is None:
        pytest.skip("the command `nft` (nftables) is missing")
    brisk = {**SPEC, "train": SPEC["train"].replace("SECONDS", "0.5 if trial.attempt == 1 else 0")}
    file = site.desk.write("ports", trials=2, max_steps=100, **brisk)
    ports = range(20000, 20040)
    words = ("--cpus", 1, "--ports", f"{ports[0]}-{ports[-1]}")
    for host in site.hosts[:2]:
        allow(host, ports[0], ports[-1])
    behind_nat(site.hosts[2])
    site.join(0, file, *words)
    site.await_leader("ports")
    site.join(1, file, *words)
    hidden = site.join(2, file, *words)
    site.wait(lambda: len(nodes(site, "ports")) == 2, "a trial on each of them")
    listening = {port for host in site.hosts[:2] for port in listened(host)}
    assert listening <= {*ports}, "nothing else listens"
    assert "cannot reach this machine at 10.99.0.3:20000, as with NAT" in hidden.ended()
    assert hidden.process.returncode == 2
    site.desk.run("stop", "ports")
    for agent in site.agents[:2]:
        assert "ports was stopped; this agent ends" in agent.ended()
        assert agent.process.returncode == 0
    late = site.join(2, file)
    assert "was stopped by its user; `--resume` continues it" in late.ended()
    assert late.process.returncode == 0
    site.join(0, file, *words, "--resume").ended()
    check_exact(site, "ports", 2)
    assert [dropped(host) for host in site.hosts[:2]] == [0, 0]


@pytest.mark.nightly  # the lease and a session more; what the log refuses is in tests/faults
@pytest.mark.parametrize("all_of_it", [False, True], ids=["the agent", "all of its host"])
def test_a_leader_that_is_stopped_and_continues_does_no_harm_and_works_for_the_next_one(
    site: Fleet, *, all_of_it: bool
) -> None:
    file = site.desk.write("frozen", seconds=0.3, trials=8, max_steps=40, **SPEC)
    for host in range(3):
        site.join(host, file, "--cpus", 1)
    term, old = site.await_leader("frozen")
    site.wait(lambda: len(nodes(site, "frozen")) == 3, "a trial on each of them")
    frozen = old.host.processes() if all_of_it else [old.process.pid]
    for process in frozen:
        os.kill(process, signal.SIGSTOP)
    site.await_leader("frozen", term)
    site.wait(lambda: len(site.events("frozen", "opened", by="driver")) == 2, "the next session")
    saves(site, "frozen")
    for process in frozen:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    site.wait(lambda: old.said.read_text().count(" works for the leader ") == 1, "its next part")
    for agent in site.agents:
        agent.ended()
        assert agent.process.returncode == 0
    assert len(site.events("frozen", "opened", by="driver")) == 2, "one session more, and no third"
    check_exact(site, "frozen", 8)


def test_an_agent_of_another_version_is_refused(site: Fleet) -> None:
    site.desk.write("other", trials=1, **SPEC)
    agents = Agents(site.desk.places.store("other"))
    agents.refresh()
    number = agents.claimed(Term(agent="theirs", host="theirs", t=0.0))
    assert number == 1
    with agents.leading(number):
        theirs = {**versions(), "ray": "1.0"}
        agents.publish(number, Head(address="10.99.0.1:20001", token="", versions=theirs))
        other = site.join(0, "other.yaml")
        said = other.ended()
    assert f"the leader theirs has ray 1.0, and this machine {versions()['ray']}" in said
    assert other.process.returncode == 2


def nodes(site: Fleet, name: str) -> set[str]:
    """The nodes of Ray on which attempts have begun."""
    return {event["node_id"] for event in site.events(name, "began")}


def saves(site: Fleet, name: str) -> None:
    """Returns once there are four more checkpoints."""
    seen = len(site.events(name, "saved"))
    site.wait(lambda: len(site.events(name, "saved")) >= seen + 4, "four checkpoints")
