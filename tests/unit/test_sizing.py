"""An agent on a machine of a fleet: as the leader it starts on-demand machines as attempts wait for
them, and it leaves if its own is idle. The log is real; what would ask the cloud is a program.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from regrow.apps.agent import reach, sizing
from regrow.apps.agent.agent import AgentProcess
from regrow.apps.agent.notices import Notices
from regrow.apps.agent.request import Request
from regrow.infra.clusters.clouds import own_fleet
from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent, Ended, Joined, Opened, Proposed, Started, encode
from tests.contract.test_agents_in_stores import member
from tests.unit.programs import await_true
from tests.unit.simulated import created

CLOUD = """
import os, pathlib, sys
assert "AWS_SECRET_ACCESS_KEY" not in os.environ, "the machine's own rights are meant"
asked = pathlib.Path(__file__).with_name("asked")
if sys.argv[1] == "machines":
    print('{"on-demand": 1}')
    sys.exit()
with asked.open("a") as file:
    print(*sys.argv[1:], file=file)
if asked.read_text().count("start") == 1:
    sys.exit("regrow: no capacity")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the machine has: its fleet, and the program that asks the cloud."""
    (tmp_path / "machine.py").write_text(CLOUD)
    found = {
        "on_need": True,
        "idle": 300.0,
        "python": sys.executable,
        "sizes": [["spot", "spot", 4], ["on-demand", "on-demand", 3]],
    }
    (tmp_path / "fleet.json").write_text(json.dumps(found))
    monkeypatch.setenv(own_fleet.FLEET, str(tmp_path))
    monkeypatch.setattr(sizing, "PACE", (0.01, 0.05))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the user")
    return tmp_path


Make = Callable[..., AgentProcess]


@pytest.fixture
def said() -> list[str]:
    """What the agent shows its user."""
    return []


@pytest.fixture
def make(folder: Path, tmp_path: Path, said: list[str]) -> Iterator[Make]:
    """An agent of an experiment with these events after those of its opening."""
    with reach.waiting("127.0.0.1", 0, "nonce") as calls:

        def made(*events: AnyEvent) -> AgentProcess:
            places = Places.at(str(tmp_path / "state"))
            opened = Opened(t=1.0, by="driver", driver="d", slots=4, trials=6, agent="first")
            Log.open(places.store("simulated")).claim(
                [encode(one) for one in (created(market="spot"), opened, *events)]
            )
            request = Request(
                name="simulated",
                places=places,
                spec=None,
                trials=None,
                command=(),
                fleet=own_fleet.here(),
            )
            return AgentProcess(request, member("me"), Notices(None), calls, said.append)

        yield made


def joined(agent: str) -> Joined:
    return Joined(
        t=time.time() - 400.0,
        agent=agent,
        host="h",
        node_id=f"node-{agent}",
        cpus=2.0,
        gpus=0.0,
        market="on-demand",
    )


def waits(trial: int) -> list[AnyEvent]:
    t = time.time() - 60.0
    return [
        Proposed(t=t, trial=trial, config={"x": 0.5}),
        Started(t=t, trial=trial, attempt=1, market="on-demand"),
    ]


def test_a_leader_starts_what_attempts_wait_for_and_asks_again_where_the_cloud_refuses(
    make: Make, folder: Path, said: list[str]
) -> None:
    agent = make(joined("first"), *waits(0), *waits(1), *waits(2))
    asked = folder / "asked"
    with sizing.starting_machines(agent):
        assert await_true(lambda: asked.exists() and asked.read_text().count("\n") >= 2)
    # three machines are needed, and `most` leaves room for two
    assert asked.read_text().splitlines()[0] == "start on-demand 2"
    assert "the cloud: regrow: no capacity; trying again" in said


def test_another_group_is_asked_where_the_cloud_refuses_one(make: Make, folder: Path) -> None:
    found = json.loads((folder / "fleet.json").read_text())
    found["sizes"].append(["dearer", "on-demand", 3])
    (folder / "fleet.json").write_text(json.dumps(found))
    agent = make(joined("first"), *waits(0), *waits(1), *waits(2))
    asked = folder / "asked"
    with sizing.starting_machines(agent):
        assert await_true(lambda: asked.exists() and "start dearer 3" in asked.read_text())
    # at first the group that comes first in the file, with the other one for what it has no room for
    assert asked.read_text().splitlines()[:2] == ["start on-demand 2", "start dearer 1"]


def test_an_idle_machine_leaves(make: Make) -> None:
    agent = make(joined("first"), joined("me"))
    with sizing.leaving(agent):
        assert await_true(lambda: agent.notices.why is not None)
    assert agent.notices.why == "its machine had no trial for 5 min"


def test_an_agent_leaves_that_was_asked_to_once_no_trial_is_left_for_its_machine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(own_fleet.FLEET)
    monkeypatch.setattr(sizing, "PACE", (0.01, 0.05))
    agent = make(joined("first"), joined("me"), *(one for n in range(5) for one in failed(n)))
    agent.request = replace(agent.request, fleet=None, idle=30.0)
    with sizing.leaving(agent):
        assert await_true(lambda: agent.notices.why is not None)
    assert agent.notices.why == "its machine had no trial for 30 s"


def failed(trial: int) -> list[AnyEvent]:
    t = time.time() - 50.0
    return [
        *waits(trial),
        Ended(t=t, trial=trial, attempt=1, outcome="failed", cause="error"),
    ]


def test_elsewhere_an_agent_follows_nothing(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads((folder / "fleet.json").read_text())
    (folder / "fleet.json").write_text(json.dumps({**found, "on_need": False}))
    with sizing.leaving(make()) as nothing:
        assert nothing is None, "a spot machine stays"
    del found["sizes"]
    (folder / "fleet.json").write_text(json.dumps(found))
    assert own_fleet.here() is None, "all machines are there from the start"
    monkeypatch.delenv(own_fleet.FLEET)
    assert own_fleet.here() is None
