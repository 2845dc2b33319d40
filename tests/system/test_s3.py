"""An experiment whose state is in S3: cut, seen and resumed from another machine, and the S3 server
away for a while.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.local import s3_server
from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.events import encode
from regrow.tasks.errors import RegrowError
from tests.conftest import guarded_s3_server
from tests.system.conftest import TRAIN, Desk, await_no_process
from tests.system.test_main_job import check_whole


class Cloud(Desk):
    """A user whose state is in a bucket; the folder `.regrow` must never appear."""

    LOOK_SECONDS = 0.1

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log as it is in the bucket; nothing while the server is away."""
        try:
            return [
                json.loads(encode(event))
                for event in read_events(Places.at(self.environment["REGROW_STATE"]).store(name))
            ]
        except RegrowError:
            return []

    def _extent(self, name: str) -> object:
        """See Desk. In one request: the experiment needs the server, too."""
        try:
            return Places.at(self.environment["REGROW_STATE"]).store(name).list("log/")
        except RegrowError:
            return None

    def look(self, *arguments: object) -> str:
        """See Desk. In a process of its own: whether it runs is read from files in this user's home."""
        return self.run(*arguments).stdout

    def another_machine(self) -> Cloud:
        """The same folder of code, and nothing else of what this machine keeps."""
        home = Path(self.environment["HOME"]).with_name("another")
        home.mkdir()
        return Cloud(
            folder=self.folder,
            environment={**self.environment, "HOME": str(home)},
            started=self.started,
        )

    @property
    def services(self) -> Path:
        (only,) = Path(self.environment["HOME"], ".local", "share", "regrow").iterdir()
        return only


def cloud(
    desk: Desk, server: s3_server.S3Server, state: str, monkeypatch: pytest.MonkeyPatch
) -> Cloud:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    environment = {**desk.environment, **server.environment(), "REGROW_STATE": state}
    return Cloud(folder=desk.folder, environment=environment, started=desk.started)


@pytest.fixture
def sky(
    desk: Desk, s3: str, s3_server_of_session: s3_server.S3Server, monkeypatch: pytest.MonkeyPatch
) -> Cloud:
    return cloud(desk, s3_server_of_session, s3, monkeypatch)


def recorded(place: Cloud, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(place.services / "mlflow.db")) as database:
        return database.execute(query).fetchall()


def test_an_experiment_that_lost_its_machine_goes_on_from_the_bucket_on_another_one(
    sky: Cloud,
) -> None:
    prices = {"per_1000_writes": 0.005, "per_1000_reads": 0.0004, "per_gb_out": 0.09}
    gate = sky.folder / "gate"
    held = f"while step > 3 and not Path({str(gate)!r}).exists():\n            time.sleep(0.05)"
    file = sky.write(
        "spot",
        train=TRAIN.replace("time.sleep(SECONDS)", held),
        trials=6,
        max_steps=5,
        store_prices=prices,
    )
    process = sky.start("run", file)
    sky.await_events("spot", "saved", 6, process)  # of two trials, which now wait
    process.kill()
    said, _ = process.communicate()
    assert "MLflow:" in said
    assert await_no_process(sky.folder) == []
    gate.touch()
    shutil.rmtree(sky.services)
    seen = sky.events("spot")

    there = sky.another_machine()
    assert "spot" in there.run("ls").stdout
    assert there.show("spot")["status"] == "interrupted"
    there.run("resume", "spot")
    view = check_whole(there, "spot", 6)
    assert view["counts"]["done"] == 6
    asked = {
        kind: [e["traffic"] for e in there.events("spot") if e["event"] == kind and "traffic" in e]
        for kind in ("began", "saved", "ended", "metered")
    }
    assert any(one.get("sent") for one in asked["began"]), "what was restored came from the bucket"
    assert all("writes" in one for one in asked["saved"] + asked["metered"])
    writes = sum(one.get("writes", 0) for found in asked.values() for one in found)
    assert view["store"]["writes"] == writes > 2 * view["steps"]
    assert there.events("spot")[: len(seen)] == seen, "what was durable stays as it was"
    assert [p["step"] for p in there.points("spot")] == [1, 2, 3, 4, 5] * 6
    kept = {
        c["attempt"]: c for t in view["trials"] for c in t["attempts"] if c["outcome"] == "lost"
    }
    assert kept, "the kill cut somebody"
    for trial in view["trials"]:
        for before, after in zip(trial["attempts"], trial["attempts"][1:], strict=False):
            assert before["to_step"] - after["from_step"] <= 1, "with a checkpoint at every step"
    runs = recorded(
        there,
        "select name from runs where lifecycle_stage = 'active' and name like 'trial-%' order by name",
    )
    assert runs == [(f"trial-{n:04d}",) for n in range(6)]
    points = recorded(
        there,
        "select name, step from metrics join runs using (run_uuid) where lifecycle_stage = 'active' and key = 'score'"
        " order by name, step",
    )
    assert points == [(f"trial-{n:04d}", step) for n in range(6) for step in (1, 2, 3, 4, 5)]
    # Of one that ran after the kill: the last words of what the killed machine had just finished
    # may be lost.
    assert "trial 5 attempt" in there.run("logs", "spot", 5).stdout
    there.run("best", "spot", "--save", "best")
    assert (there.folder / "best" / "model.json").is_file()
    assert not (there.folder / ".regrow").exists()


@pytest.mark.usefixtures("shared_prefect")
def test_python_and_the_specification_name_the_bucket_as_well_and_stop_ends_what_is_in_it(
    sky: Cloud,
) -> None:
    state = f"{sky.environment.pop('REGROW_STATE')}/sub"
    file = sky.write("named", seconds=0.3, max_steps=100, state=state)
    (sky.folder / "script.py").write_text(
        "import regrow as rg\nfrom work import train\n"
        "result = rg.Experiment(train, name='named', space={'x': rg.uniform(0, 1)}, metric='score', mode='max', trials=2, max_steps=100,"
        f" state='{state}').run(quiet=True)\nprint(result.status, result.points()[0]['step'])"
    )
    process = sky.start_script("script.py")
    sky.environment["REGROW_STATE"] = state  # for those that look
    sky.await_events("named", "reported", 2, process)
    assert sky.show("named")["status"] == "running"
    del sky.environment["REGROW_STATE"]
    assert "'named' is running already" in sky.run("run", file, expect=2).stderr
    assert "named is stopped" in sky.run("stop", "named", "--state", state).stdout
    said, _ = process.communicate(timeout=60)
    assert said.endswith("stopped 1\n")
    assert "named" in sky.run("ls", "--state", state).stdout
    assert not (sky.folder / ".regrow").exists()


@pytest.mark.nightly  # in one process tests/faults has a driver overtaken at each transition
def test_of_two_drivers_at_once_the_one_that_is_overtaken_stops_and_nothing_of_it_counts(
    sky: Cloud,
) -> None:
    train = TRAIN.replace("time.sleep(SECONDS)", "time.sleep(0 if Path('hurry').exists() else 1.0)")
    process = sky.start("run", sky.write("duel", train=train, trials=4, max_steps=50))
    sky.await_events("duel", "saved", 6, process)
    there = sky.another_machine()
    second = there.start("resume", "duel")
    said, _ = process.communicate(timeout=120)
    assert second.poll() is None, "the first one stopped while the second one works: " + (
        second.communicate()[0] or ""
    )
    assert process.returncode == 2, said
    assert "another process took this experiment over; this one stops" in said
    (sky.folder / "hurry").touch()
    said, _ = second.communicate(timeout=240)
    assert second.returncode == 0, said
    view = check_whole(there, "duel", 4)
    assert view["counts"]["done"] == 4
    events = there.events("duel")
    claims = [place for place, event in enumerate(events) if event["event"] == "opened"]
    assert len(claims) == 2, "nobody took anything back"
    lost = {
        (e["trial"], e["attempt"])
        for e in events
        if e["event"] == "ended" and e["outcome"] == "lost"
    }
    late = [
        e
        for e in events[claims[1] :]
        if (e.get("trial"), e.get("attempt")) in lost and e["event"] != "ended"
    ]
    assert late == [], "what the first driver's attempts did after that"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[s3_server.S3Server]:
    with guarded_s3_server(tmp_path / "s3") as server:
        yield server


STEADY = """
import time


def train(trial):
    for step in trial.steps():
        time.sleep(0.3)
        with open("steps.txt", "a") as file:
            print(time.time(), file=file)
        trial.report({"score": trial.config["x"] * step}, checkpoint=lambda folder: (folder / "model").write_text("x"))
"""


def test_training_goes_on_while_the_bucket_is_away_and_nothing_is_lost(
    desk: Desk, own_server: s3_server.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = cloud(desk, own_server, "s3://regrow/away", monkeypatch)
    # With a checkpoint at every step training would wait for the second one that cannot be
    # uploaded.
    file = place.write(
        "away",
        train=STEADY,
        trials=2,
        max_steps=60,
        checkpoint={"every_steps": 20},
        working_dir=str(desk.folder),
    )
    process = place.start("run", file)
    place.await_events("away", "reported", 2, process)
    s3_server.stop(own_server.folder, at_once=True)
    gone = time.time()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(10.0)  # how long it is away
    back = time.time()
    s3_server.start(own_server.folder)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    steps = [float(line) for line in (desk.folder / "steps.txt").read_text().splitlines()]
    assert len(steps) == 120, "each step was done once"
    assert sum(gone + 1.0 < t < back for t in steps) >= 10, "training continued meanwhile"
    view = check_whole(place, "away", 2)
    assert view["wasted_steps"] == 0
    assert [len(t["attempts"]) for t in view["trials"]] == [1, 1]
    with closing(sqlite3.connect(place.services / "prefect" / "prefect.db")) as database:
        told = [
            m
            for (m,) in database.execute("select message from log order by timestamp")
            if "verything can be saved" in m
        ]
    assert [m.partition(" at ")[0] for m in told] == [
        "Not everything can be saved",
        "Everything can be saved again.",
    ]


def test_up_serves_until_down_and_keeps_what_is_in_it(desk: Desk) -> None:
    said = desk.run("up", "--s3", "--no-station").stdout
    try:
        folder = Path(desk.environment["HOME"], ".local", "share", "regrow", "s3")
        assert (
            (folder / "credentials").stat().st_mode & 0o777
            == (folder / "identities.json").stat().st_mode & 0o777
            == 0o600
        )
        assert (folder / "logs" / "weed.INFO").exists(), "not in the folder for temporary files"
        secret = (folder / "credentials").read_text().split()[-1]
        assert secret not in said
        assert secret.encode() not in b"".join(
            p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()
        )
        exports = dict(
            shlex.split(line)[1].split("=", 1)
            for line in said.splitlines()
            if line.startswith("export ")
        )
        again = desk.run("up", "--s3", "--no-station").stdout
        assert [line for line in again.splitlines() if line.startswith("export ")] == [
            line for line in said.splitlines() if line.startswith("export ")
        ]
        desk.environment |= exports
        store = (
            "import sys; from regrow.infra.stores.s3 import open_s3; store = open_s3(sys.argv[1]); "
        )
        python(desk, store + "store.create('k', b'kept')", f"{exports['REGROW_STATE']}/x")
        port = int(exports["AWS_ENDPOINT_URL_S3"].rpartition(":")[2])
        assert listening(range(port, port + 5)) | listening(
            range(port + 10_000, port + 10_005)
        ) == {"0100007F"}, "loopback alone"
        assert (
            "runs on port"
            in desk.run("up", "--s3", "--no-station", "--port", 12345, expect=2).stderr
        )
        other = desk.run(
            "up", "--s3", "--no-station", "--dir", "other", "--port", port, expect=2
        ).stderr
        assert f"port {port} for the S3 server is in use" in other
    finally:
        assert "has ended" in desk.run("down", "--s3").stdout
    assert "no S3 server" in desk.run("down", "--s3").stdout
    assert await_no_process(desk.folder) == []
    desk.run("up", "--s3", "--no-station")
    try:
        assert (
            python(desk, store + "print(store.read('k'))", f"{exports['REGROW_STATE']}/x")
            == "b'kept'\n"
        )
    finally:
        desk.run("down", "--s3")


def listening(ports: range) -> set[str]:
    """The addresses, in the kernel's hexadecimal, on which somebody listens at these ports."""
    sockets = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {
        local[:-5]
        for _, local, _, state, *_ in sockets
        if state == "0A" and int(local[-4:], 16) in ports
    }


def python(desk: Desk, code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=desk.environment,
        cwd=desk.folder,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
