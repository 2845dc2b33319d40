"""`regrow serve` as its users have it: real processes under real load, whose models are switched,
break, and are killed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from tests.system.answered import CLIENTS, MODELS, Load, Server
from tests.system.conftest import Desk, await_no_process, desk_in
from tests.unit.kept import Kept

REQUESTS = 3_000


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("serve")) as found:
        (found.folder / "serve.py").write_text(MODELS)
        temporary = found.folder / "tmp"
        temporary.mkdir()
        found.environment["TMPDIR"] = str(temporary)
        yield found


@pytest.fixture(scope="module")
def kept(desk: Desk) -> Kept:
    return Kept(LocalStore(desk.folder / ".regrow" / "kept"))


@pytest.fixture(scope="module")
def server(desk: Desk, kept: Kept) -> Server:
    """It was started before there was anything to serve, with the first trial for a canary."""
    found = Server.start(desk, "--follow", "--replicas", 2, "--canary", "0=10%")
    assert (found.get("/healthz")[0], found.get("/readyz")[0]) == (200, 503)
    assert json.loads(found.get("/version")[1]) == {
        "experiment": "kept",
        "trial": None,
        "canary": None,
    }
    kept.best(0.1)
    kept.best(0.5)
    found.said("serving trial 1, step 1, score 0.5")
    found.said("the canary is trial 0, step 1, score 0.1")
    return found


@pytest.fixture(scope="module")
def loaded(server: Server, kept: Kept) -> Load:
    """What became of 3,000 requests and more, while the model was switched twice and two broken
    ones came.
    """
    load = Load(server)
    load.until(500)
    kept.best(0.6)
    server.said("serving trial 2, step 1, score 0.6, in place of trial 1")
    kept.best(0.9, broken=True)
    server.said("refused trial 3, step 1, score 0.9: ValueError: this checkpoint is broken")
    kept.best(0.95, dies=True)
    server.said(
        r"refused trial 4, step 1, score 0.95: the process in which it was tried ended \(exit code 7\)"
    )
    last = kept.best(0.7)
    server.said("serving trial 5, step 1, score 0.7, in place of trial 2")
    kept.drop(last)
    load.until(max(REQUESTS, load.count + 500))
    load.end()
    return load


def test_no_request_fails_over_two_switches_and_two_broken_models(
    loaded: Load, server: Server
) -> None:
    assert loaded.failed == []
    assert loaded.answers.total() >= REQUESTS
    assert loaded.answers.keys() == {"0", "1", "2", "5"}
    version = json.loads(server.get("/version")[1])
    assert (version["trial"], version["step"], version["value"], version["metric"]) == (
        5,
        1,
        0.7,
        "score",
    )
    assert version["manifest"] == "manifests/5/1/0000000001.json"
    assert "Traceback (most recent call last):" in server.lines
    assert '    raise ValueError("this checkpoint is broken")' in server.lines


def test_the_canary_gets_a_tenth_of_the_requests(loaded: Load, server: Server) -> None:
    assert 0.07 < loaded.answers["0"] / loaded.answers.total() < 0.13
    assert json.loads(server.get("/version")[1])["canary"]["percent"] == 10.0


def test_the_metrics_are_the_sum_of_all_processes(loaded: Load, server: Server) -> None:
    assert len(server.replicas()) == 2
    for _ in range(4):  # whichever process answers
        found = server.metrics()
        counted = {
            trial: int(found[f'regrow_serve_requests_total{{status="200",trial="{trial}"}}'])
            for trial in loaded.answers
        }
        assert counted == loaded.answers
        assert found['regrow_serve_seconds_count{trial="5"}'] == loaded.answers["5"]
        assert found['regrow_serve_batch_inputs_sum{trial="5"}'] == loaded.answers["5"], (
            "a warm-up is nobody's request"
        )


def test_with_a_killed_replica_only_the_requests_that_it_had_begun_are_lost(
    loaded: Load, server: Server
) -> None:
    before = server.metrics()['regrow_serve_requests_total{status="200",trial="5"}']
    load = Load(server)
    load.until(200)
    killed = server.replicas()[0]
    os.kill(killed, signal.SIGKILL)
    at = load.count
    server.said(r"replica \d ended \(SIGKILL\); another one is started")
    load.until(at + 500)
    load.end()
    assert len(load.failed) <= CLIENTS, load.failed
    deadline = time.monotonic() + 30
    while len(server.replicas()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    after = server.metrics()['regrow_serve_requests_total{status="200",trial="5"}']
    assert after - before >= load.answers["5"], "what it had counted is not lost with it"


def test_what_is_no_input_is_refused_with_the_field(server: Server, loaded: Load) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/predict", b'[{"x": 1}, {"y": 1}]', server.given)
    answer = connection.getresponse()
    assert answer.status == 422
    assert json.loads(answer.read())["detail"] == [
        {"type": "missing", "loc": ["body", 1, "x"], "msg": "Field required"}
    ]
    connection.close()


def test_told_to_end_it_answers_what_is_under_way_and_leaves_nothing_behind(
    server: Server, loaded: Load, desk: Desk
) -> None:
    answers: list[int] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", "/predict", b'{"x": 1, "seconds": 1.5}', server.given)
        answers.append(connection.getresponse().status)
        connection.close()

    slow = [threading.Thread(target=ask) for _ in range(4)]
    for thread in slow:
        thread.start()
    load = Load(server)
    load.until(500)
    server.process.send_signal(signal.SIGTERM)
    for thread in slow:
        thread.join(30)
    assert server.process.wait(30) == 0
    load.end()
    assert answers == [200] * 4
    assert load.failed == [], "each client under load was told to come no more with its last answer"
    assert await_no_process(desk.folder) == []
    assert list((desk.folder / "tmp").glob("regrow-serve-*")) == []


def test_with_a_token_it_answers_elsewhere_and_without_its_supervisor_it_ends(
    desk: Desk, kept: Kept, loaded: Load
) -> None:
    token = "0123456789abcdef-of-a-test"
    server = Server.start(desk, "--host", "0.0.0.0", REGROW_SERVE_TOKEN=token)
    server.said("serving trial 2, step 1, score 0.6")  # the best that is kept
    assert [server.get("/version", host)[0] for host in ("127.0.0.1", "127.0.0.2")] == [401, 401]
    assert server.get("/version", "127.0.0.2", Authorization=f"Bearer {token}")[0] == 200
    assert server.get("/readyz", "127.0.0.2")[0] == 200
    assert token not in "\n".join(server.lines)
    processes = [server.process.pid, *server.replicas()]
    assert len(processes) == 2
    assert not [pid for pid in processes if token in Path(f"/proc/{pid}/cmdline").read_text()]
    server.process.kill()
    assert await_no_process(desk.folder) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("nothing", "--model", "serve.py:Model"),
            r"regrow: there is no experiment 'nothing' in .* \(there: kept\); .*",
        ),
        (
            ("kept", "--model", "serve.py:NoInput"),
            r"regrow: --model: serve.py:NoInput has no Input; .*",
        ),
        (
            ("kept", "--model", "serve.py:Model", "--trial", "3"),
            r"Traceback .*ValueError: this checkpoint is broken\nregrow: nothing to serve: manifests/3/1/0000000001.json: ValueError: .*",
        ),
    ],
)
def test_what_cannot_be_served_is_told_in_a_line_after_the_users_own_traceback(
    desk: Desk, kept: Kept, loaded: Load, arguments: tuple[str, ...], said: str
) -> None:
    done = desk.run("serve", *arguments, "--port", 0, expect=2)
    assert re.fullmatch(said, done.stderr.strip(), re.DOTALL), done.stderr


def test_a_better_checkpoint_is_a_canary_first_and_takes_over_if_it_does_as_well(
    tmp_path: Path,
) -> None:
    with desk_in(tmp_path) as desk:
        (desk.folder / "serve.py").write_text(MODELS)
        kept = Kept(LocalStore(desk.folder / ".regrow" / "kept"))
        kept.best(0.5)
        server = Server.start(desk, "--follow", "--replicas", 2, "--canary", "20% for 2s")
        server.said("serving trial 0, step 1, score 0.5")
        load = Load(server)
        kept.best(0.6, moody=True)
        server.said("the canary is trial 1, step 1, score 0.6 of kept, with 20 % for 2 s")
        server.said(
            r"refused trial 1, step 1, score 0.6: as a canary it failed (\d+) of \1 requests, the others 0 of \d+ requests"
        )
        assert json.loads(server.get("/version")[1])["canary"] is None
        load.until(load.count + 50)  # what was on its way to it has failed as well by then
        lost = len(load.failed)
        kept.best(0.7)
        server.said("the canary is trial 2, step 1, score 0.7 of kept")
        both = load.answers["0"], load.count
        server.said("serving trial 2, step 1, score 0.7, in place of trial 0, step 1, score 0.5")
        load.until(load.count + 100)
        load.end()
        assert load.failed[lost:] == []
        assert load.answers["0"] > both[0], "not all requests were the canary's"
        assert load.answers.keys() == {"0", "2"}


def test_the_state_may_be_in_a_bucket_and_ctrl_c_is_a_good_end(s3: str, tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        (desk.folder / "serve.py").write_text(MODELS)
        kept = Kept(Places.at(s3).store("kept"))
        kept.best(0.5)
        aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        server = Server.start(desk, "--follow", "--state", s3, **aws)
        server.said("serving trial 0, step 1, score 0.5")
        kept.best(0.6)
        server.said("serving trial 1, step 1, score 0.6, in place of trial 0, step 1, score 0.5")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0


def test_what_is_exported_for_a_container_answers_without_the_experiment(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        (desk.folder / "sizes.py").write_text("def times(x, size): return x * size\n")
        own = MODELS.replace("import json", "import json, sizes").replace(
            "each.x * self.size", "sizes.times(each.x, self.size)"
        )
        (desk.folder / "serve.py").write_text(own)
        kept = Kept(LocalStore(desk.folder / ".regrow" / "kept"))
        kept.best(0.9, broken=True)
        to_write = ("export", "kept", "--image", "image", "--model", "serve.py:Model")
        told = desk.run(*to_write[:-1], "serve.py:json", expect=2).stderr
        assert told.startswith("regrow: --model: serve.py:json is no subclass of rg.Served")
        assert len(told.splitlines()) == 1
        told = desk.run(*to_write, expect=2).stderr
        assert re.search(
            r"Traceback .*the class does not load the checkpoint: ValueError: this checkpoint is broken",
            told,
            re.DOTALL,
        )
        assert not list(desk.folder.glob("*image*"))
        kept.best(0.95)
        assert "image: trial 1, step 1, score 0.95" in desk.run(*to_write).stdout
        assert "image is there already" in desk.run(*to_write, expect=2).stderr
        image = tmp_path / "elsewhere"
        (desk.folder / "image").rename(image)
        needed = (image / "requirements.txt").read_text()
        assert re.search(r"^fastapi==", needed, re.MULTILINE)
        assert not re.search(r"^(ray|prefect|mlflow|optuna|pytest)\b", needed, re.MULTILINE)
        shutil.rmtree(desk.folder / ".regrow")
        started = subprocess.Popen(
            [sys.executable, "-m", "regrow.apps.serving.image_server", str(image), "--port", "0"],
            cwd=tmp_path,
            env=desk.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        desk.started.append(started)
        server = Server.of(started)
        while server.get("/readyz")[0] != 200:
            assert started.poll() is None
        assert json.loads(server.get("/version")[1])["manifest"] == "manifests/1/1/0000000001.json"
        load = Load(server)
        load.until(50)
        load.end()
        assert load.failed == []
        assert load.answers.keys() == {"1"}
        started.terminate()
        assert started.wait(30) == 0


def test_a_schedules_newest_experiment_takes_over_once_it_passes_the_gate(desk: Desk) -> None:
    root = desk.folder / ".regrow"
    first = Kept(LocalStore(root / "night-2026-11-22T04"), name="night-2026-11-22T04")
    first.best(0.1)
    first.best(0.9)  # its manifest has the name of that which takes over
    server = Server.of(
        desk.start(
            "serve",
            "night",
            "--model",
            "serve.py:Model",
            "--port",
            0,
            "--follow",
            "--gate",
            "score > 0.5",
        )
    )
    server.said("night-2026-11-22T04 is served")
    second = Kept(LocalStore(root / "night-2026-11-23T04"), name="night-2026-11-23T04")
    second.best(0.4)
    server.said("the gate score > 0.5 turned away trial 0, step 1, score 0.4")
    second.best(0.6)
    server.said("night-2026-11-23T04 is served, in place of night-2026-11-22T04")
    told = json.loads(server.get("/version")[1])
    assert (told["experiment"], told["gate"], told["trial"]) == (
        "night-2026-11-23T04",
        "score > 0.5",
        1,
    )
    server.process.terminate()
    assert server.process.wait(30) == 0
