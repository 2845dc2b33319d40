"""`regrow serve --ray`: the same class answers on Ray Serve, and whatever of it is killed comes
back.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from regrow.infra.stores.local import LocalStore
from tests.system.answered import MODELS, Load, Server
from tests.system.conftest import Desk, await_no_process, desk_in
from tests.unit.kept import Kept


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("serve")) as found:
        (found.folder / "serve.py").write_text(MODELS)
        yield found


@pytest.fixture(scope="module")
def kept(desk: Desk) -> Kept:
    made = Kept(LocalStore(desk.folder / ".regrow" / "kept"))
    made.best(0.5)
    return made


@pytest.fixture(scope="module")
def server(desk: Desk, kept: Kept) -> Server:
    found = Server.start(desk, "--follow", "--ray", "--replicas", 2)
    found.said("serving trial 0, step 1, score 0.5", 120)
    return found


def pids(server: Server, name: str) -> list[int]:
    """The processes below the server whose program, or the title that Ray gave them in its place,
    has this name.
    """
    found = []
    for one in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if name in " ".join(one.cmdline()[:1]):
                found.append(one.pid)
    return found


def kill(server: Server, name: str) -> None:
    psutil.Process(pids(server, name)[0]).kill()


def test_no_request_fails_over_a_switch_a_broken_model_and_a_killed_controller_and_a_killed_replica_costs_what_it_had_begun(
    server: Server, kept: Kept
) -> None:
    load = Load(server)
    load.until(200)
    kept.best(0.9, broken=True)
    server.said("refused trial 1, step 1, score 0.9: ValueError: this checkpoint is broken")
    kept.best(0.7)
    server.said("serving trial 2, step 1, score 0.7, in place of trial 0")
    load.until(load.count + 200)
    kill(server, "ray::ServeController")
    load.until(load.count + 500)
    assert load.failed == []
    assert load.answers.keys() == {"0", "2"}
    before = set(pids(server, "ray::ServeReplica"))
    assert len(before) == 2
    kill(server, "ray::ServeReplica")
    while len(after := set(pids(server, "ray::ServeReplica")) - before) == 0:
        load.until(load.count + 20)
    load.until(load.count + 300)
    load.end()
    assert len(load.failed) <= 8, load.failed[:3]  # one of each client
    assert len(after) == 1
    assert json.loads(server.get("/version")[1])["trial"] == 2
    assert server.get("/predict")[0] == 405
    assert server.get("/docs")[0] == 200


def test_after_the_loss_of_the_head_what_was_served_is_deployed_again(
    server: Server, kept: Kept
) -> None:
    kill(server, "gcs_server")
    server.said("the Ray cluster is lost: its gcs_server died")
    server.said("the process that deploys on Ray ended")
    kept.best(0.8)  # while there is no cluster
    server.said("serving trial 3, step 1, score 0.8, in place of trial 2", 120)
    load = Load(server)
    load.until(200)
    load.end()
    assert load.failed == []
    assert load.answers.keys() == {"3"}


def test_it_ends_in_good_order_and_leaves_nothing(desk: Desk, server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert await_no_process(desk.folder) == []
