"""What an attempt relies on of its machine: the Host port, in a Ray worker and in a process of the
user's own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

from regrow.flows.local_host import LocalHost
from regrow.infra.ray.cluster import connect, disconnect
from regrow.infra.ray.host import RayHost
from regrow.search.events import Place
from regrow.tasks.ports.messages import Host

FAMILY = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '300']).pid, flush=True); time.sleep(300)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A node that its launcher says to be of the group `spot-gpu`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_NODE_TYPE_NAME", "spot-gpu")
        connect(cpus=1, env={})
    yield
    disconnect()


@pytest.fixture(params=[RayHost, LocalHost])
def on(request: pytest.FixtureRequest) -> Callable[[Callable[[Host], Any]], Any]:
    """Calls a function with the host where that one's attempts run."""
    if request.param is LocalHost:
        return lambda what: what(LocalHost("here"))
    request.getfixturevalue("cluster")
    return lambda what: ray.get(ray.remote(num_cpus=0)(lambda: what(RayHost())).remote())


def test_it_says_which_node_it_is(
    on: Callable[[Callable[[Host], Any]], Any], request: pytest.FixtureRequest
) -> None:
    found: Place = on(lambda host: host.place())
    assert found.node
    if "RayHost" in request.node.name:
        assert (found.node_id, found.node_type) == (
            ray.get_runtime_context().get_node_id(),
            "spot-gpu",
        )
    else:
        assert (found.node_id, found.node_type) == ("", "")


def test_a_worker_that_is_to_go_away_tells_it(cluster: None) -> None:
    def terminated() -> list[bool]:
        import threading

        heard, told = threading.Event(), list[bool]()

        def tell(why: str, node: bool) -> None:
            told.append(node)
            heard.set()

        with RayHost().listen(tell):
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.wait(60)
        return told

    assert ray.get(ray.remote(num_cpus=0)(terminated).remote()) == [False]


def test_children_and_theirs_are_ended(cluster: None) -> None:
    def left() -> list[bool]:
        child = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        pids = [child.pid, int(child.stdout.readline())]
        RayHost().end_children()
        child.wait(60)
        return [
            os.path.exists(f"/proc/{pid}/exe") and os.readlink(f"/proc/{pid}/exe") != ""
            for pid in pids[1:]
        ]

    assert ray.get(ray.remote(num_cpus=0)(left).remote()) == [False]
