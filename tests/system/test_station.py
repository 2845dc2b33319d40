"""A station: sessions are handed over to it, it survives the loss of each of its parts, and nothing
of it is left at its end. It listens beyond the loopback: nobody gets in without a password, and its
owner's commands know it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Error, Page, expect

from regrow.apps.serving.status import ServerStatus
from regrow.apps.station.state import Serving
from regrow.flows import crash_report
from regrow.flows.recording.catch_up import is_recorded
from regrow.infra.mlflow.updates import CURSOR_TAG
from regrow.infra.prefect.home import read_record
from regrow.infra.state import passwords
from regrow.infra.state import station_record as record
from regrow.infra.state.driver_lock import runs_here
from regrow.infra.state.places import Places
from regrow.infra.state.station_record import Station
from regrow.infra.stores.local import LocalStore
from regrow.tasks.group.world import free_port
from tests.system.browser import SCREENSHOTS, empty_page
from tests.system.conftest import TRAIN, Desk, await_no_process, desk_in
from tests.system.served_models import MODEL, SMALL, answers, standing
from tests.unit.kept import Kept

T = TypeVar("T")
BRISK = TRAIN.replace("SECONDS", "0.3 if trial.attempt == 1 else 0.01")
"""Slow until it is interrupted, and then soon at its end."""
STARTS = """
import os
from pathlib import Path

import ray


def seen():
    variables = map(os.environ.get, ("WISH", "MISSED", "GIVEN"))
    return *variables, os.getcwd(), Path("here.txt").read_text()


@ray.remote
class Child:
    def call(self, function):
        return seen(), function()


def train(trial):
    assert ray.get(Child.remote().call.remote(seen)) == (seen(), seen())
    print(*seen())
    for step in trial.steps():
        trial.report({"score": trial.config["x"]})
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with a station, which all tests of this module share."""
    with desk_in(tmp_path_factory.mktemp("station")) as found:
        said = found.run("up", "--host", "0.0.0.0").stdout
        assert str(passwords.file_of(found.places.services)) in said
        assert not [one for one in secrets_of(found) if one in said]
        yield found
        found.run("down")
        assert await_no_process(found.folder) == []


@pytest.fixture
def station(desk: Desk) -> Station:
    return the_station(desk)


def the_station(desk: Desk) -> Station:
    return wait_for(lambda: record.find(Places.at(str(desk.folder / ".regrow"))), "no station")


def wait_for(found: Callable[[], T | None], what: str, seconds: float = 90.0) -> T:
    """What `found` gives once that is something."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < seconds:
        if (value := found()) is not None and value is not False:
            return value
        time.sleep(min(0.1 + waited / 50, 0.5))  # many of the looks are a request or a command
    raise AssertionError(what)


def process_of(desk: Desk, part: str) -> int:
    """The process of a part, 0 while there is none; quicker than `regrow status`."""
    if part == "supervisor":
        return the_station(desk).pid
    if part == "prefect":
        return int(read_record(Places.at(str(desk.folder / ".regrow")).prefect_home).get("pid", 0))
    return int(the_station(desk).parts().get(part, {}).get("pid", 0))


def driver_of(desk: Desk, name: str) -> int:
    """The process of the station that runs an experiment."""
    folder = desk.folder / ".regrow" / ".services" / "station"

    def found() -> int | None:
        return next(
            (pid for pid, known in record.drivers(folder, idle=False) if known["name"] == name),
            None,
        )

    return wait_for(found, f"nobody runs {name}")


def flow_run(desk: Desk, name: str) -> dict[str, Any]:
    return dict(
        desk.prefect("POST", "flow_runs/filter", json={"flow_runs": {"name": {"any_": [name]}}})[0]
    )


def set_state(desk: Desk, experiment: str, **state: Any) -> None:
    """What Prefect's page sends when a button is pressed."""
    run = flow_run(desk, experiment)
    answer = desk.prefect(
        "POST", f"flow_runs/{run['id']}/set_state", json={"state": state, "force": True}
    )
    assert answer["status"] == "ACCEPT"


def start_slow(desk: Desk, name: str, *, trials: int) -> tuple[subprocess.Popen[str], Path]:
    """Starts an experiment of trials of 300 steps, which takes minutes unless the file is made;
    returns when it has saved.
    """
    hurry = desk.folder / f"hurry-{name}"
    train = TRAIN.replace(
        "time.sleep(SECONDS)", f"time.sleep(0 if Path('{hurry}').exists() else 1.0)"
    )
    running = desk.start("run", desk.write(name, train=train, max_steps=300, trials=trials))
    desk.await_events(name, "saved", 2, running)
    return running, hurry


def await_end(desk: Desk, name: str, status: str = "finished") -> dict[str, Any]:
    places = Places.at(str(desk.folder / ".regrow"))

    def ended() -> dict[str, Any] | None:
        # while it does, a look by the command would take its time from the driver
        if runs_here(places, name):
            return None
        view = desk.show(name)
        return view if view["status"] == status else None

    return wait_for(ended, f"{name} does not end as {status}")


def test_run_hands_its_session_over_and_trials_and_what_they_start_find_what_the_terminal_has(
    desk: Desk,
) -> None:
    children = {"cpu": 1, "children": {"cpu": 1, "count": 1}}
    sizes: dict[str, Any] = {"trials": 1, "max_steps": 1, "concurrency": 1, "resources": children}
    file = desk.write("handed", train=STARTS, env={"GIVEN": "5"}, **sizes)
    (desk.folder / "here.txt").write_text("found")
    done = desk.run("run", file, WISH="42", MLFLOW_TRACKING_URI=f"sqlite:///{desk.folder}/mine.db")
    assert "handed finished: 1 of 1 trials (1 done)" in done.stdout
    assert "MLFLOW_TRACKING_URI names another server" in done.stdout
    assert done.stdout.count("Prefect:") == 1
    assert "all as recorded" in desk.look("verify", "handed")
    assert f"42 None 5 {desk.folder} found" in desk.look("logs", "handed", "0")
    # What Prefect is told comes after the prompt.
    wait_for(
        lambda: flow_run(desk, "handed")["state"]["type"] == "COMPLETED", "Prefect was not told"
    )
    desk.run("resume", "handed", "--trials", "2", MISSED="7")
    assert f"None 7 5 {desk.folder} found" in desk.look("logs", "handed", "1")


TUNE = """
import os
from ray import tune

def train(config):
    tune.report({"score": config["x"]})

results = tune.Tuner(
    train, param_space={"x": tune.grid_search([1, 2])}, run_config=tune.RunConfig(name="tuned"),
    tune_config=tune.TuneConfig(metric="score", mode="max"),
).fit()
print("END", os.getpid(), [result.config["x"] for result in results])
"""


def test_a_script_of_ray_tunes_hands_its_session_over_too(desk: Desk) -> None:
    script = desk.folder / "script.py"
    script.write_text(TUNE)
    done = desk.run("tune", "--json", script)
    pid, configs = done.stderr.partition("END ")[2].split(" ", 1)
    assert configs.strip() == "[1, 2]"
    (opened,) = [
        event
        for event in map(json.loads, done.stdout.splitlines())
        if event["event"] == "opened" and event["by"] == "driver"
    ]
    assert opened["driver"].split(":")[1] != pid


def test_mistakes_are_told_as_without_a_station(desk: Desk) -> None:
    file = desk.write("mistaken", train="import nothing_of_this_name\n\n\ndef train(trial): ...")
    told = desk.run("run", file, expect=2).stderr
    assert "ModuleNotFoundError" in told.splitlines()[-2]
    assert told.splitlines()[-1].startswith("regrow: trainable:")
    assert "there is no experiment" in desk.run("resume", "nobody", expect=2).stderr


@pytest.mark.nightly
def test_what_mlflow_could_not_be_told_at_the_end_it_is_told_later(desk: Desk) -> None:
    desk.run("run", desk.write("owed", trials=1))
    root = Places.at(str(desk.folder / ".regrow"))
    wait_for(
        lambda: is_recorded(root, "owed") and not runs_here(root, "owed"), "it was not recorded"
    )
    with closing(sqlite3.connect(root.services / "mlflow.db")) as database, database:
        database.execute("delete from tags where key = ?", (CURSOR_TAG,))
    assert not is_recorded(root, "owed")
    crash_report.mark_pending(root, "owed")
    wait_for(lambda: is_recorded(root, "owed"), "nobody told it")
    wait_for(
        lambda: not list((root.services / "unfinished").iterdir()), "it would be told for ever"
    )
    desk.look("verify", "owed")


def test_a_driver_that_is_lost_before_or_in_its_session_is_replaced_and_its_terminal_sees_the_end(
    desk: Desk,
) -> None:
    running = desk.start("run", desk.write("orphaned", train=BRISK, max_steps=40, trials=2))
    os.kill(driver_of(desk, "orphaned"), signal.SIGKILL)
    desk.await_events("orphaned", "saved", 2, running)
    before = flow_run(desk, "orphaned")["id"]
    os.kill(driver_of(desk, "orphaned"), signal.SIGKILL)
    said, _ = running.communicate(timeout=180)
    assert running.returncode == 0, said
    assert "before the session began; another one is given it" in said
    assert "the driver on the station was lost" in said
    assert "orphaned finished: 2 of 2 trials (2 done)" in said
    points = [(point["trial"], point["step"]) for point in desk.points("orphaned")]
    assert len(points) == len(set(points)) == 80
    assert len(desk.show("orphaned")["sessions"]) == 2
    after = flow_run(desk, "orphaned")
    assert (after["id"], after["run_count"]) == (before, 2)
    assert "all as recorded" in desk.look("verify", "orphaned")
    desk.run("rm", "orphaned", "--yes")
    asked = {"flow_runs": {"name": {"any_": ["orphaned"]}}}
    assert desk.prefect("POST", "flow_runs/filter", json=asked) == []


def test_what_the_station_cannot_go_on_with_is_told_ctrl_c_ends_a_session_and_one_goes_on_without_its_terminal(
    desk: Desk,
) -> None:
    hurry = desk.folder / "hurry-lacking"
    train = TRAIN.replace("SECONDS", f"0 if Path({str(hurry)!r}).exists() else 0.3")
    file = desk.write("lacking", train=train, max_steps=60, trials=2, env={"ONLY_HERE": None})
    running = desk.start("run", file, ONLY_HERE="1")
    desk.await_events("lacking", "saved", 2, running)
    os.kill(driver_of(desk, "lacking"), signal.SIGKILL)
    said, _ = running.communicate(timeout=180)
    assert running.returncode == 1, said
    assert "the station itself lacks ONLY_HERE" in said, "before it is too late"
    why = "the station could not continue with lacking by itself: env.ONLY_HERE"
    assert why in said
    assert why in desk.look("show", "lacking")
    assert why in desk.look("status")

    running = desk.start("resume", "lacking", ONLY_HERE="1")
    desk.await_events("lacking", "saved", saves(desk, "lacking") + 2, running)
    assert "could not continue" not in desk.look("show", "lacking") + desk.look("status")
    os.kill(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 3, said
    assert "continue with: regrow resume lacking" in said
    # The driver may still be telling Prefect when the prompt is there.
    wait_for(
        lambda: flow_run(desk, "lacking")["state"]["name"] == "Interrupted", "Prefect was not told"
    )

    running = desk.start("resume", "lacking", ONLY_HERE="1")
    desk.await_events("lacking", "saved", saves(desk, "lacking") + 2, running)
    assert running.poll() is None
    running.kill()
    running.communicate()
    hurry.touch()
    assert await_end(desk, "lacking")["counts"]["done"] == 2
    assert {point["attempt"] for point in desk.points("lacking")} == {1, 2, 3}


def saves(desk: Desk, name: str) -> int:
    """How many checkpoints there are by now."""
    return sum(event["event"] == "saved" for event in desk.events(name))


@pytest.mark.nightly
def test_a_driver_that_was_not_heard_for_a_while_keeps_its_run(desk: Desk) -> None:
    running, hurry = start_slow(desk, "suspended", trials=1)
    set_state(desk, "suspended", type="CRASHED", message="its driver sent no more signs of life")
    wait_for(
        lambda: "still runs" in (flow_run(desk, "suspended")["state"]["message"] or ""),
        "it was taken from its driver",
    )
    hurry.touch()
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert {point["attempt"] for point in desk.points("suspended")} == {1}
    wait_for(
        lambda: flow_run(desk, "suspended")["state"]["type"] == "COMPLETED", "Prefect was not told"
    )


@pytest.mark.nightly  # test_station_page.py presses the button itself
def test_cancel_in_the_page_stops_and_retry_goes_on(desk: Desk) -> None:
    running = desk.start("run", desk.write("clicked", train=BRISK, max_steps=25, trials=2))
    desk.await_events("clicked", "saved", 2, running)
    set_state(desk, "clicked", type="CANCELLING")
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 3, said
    wait_for(
        lambda: flow_run(desk, "clicked")["state"]["type"] == "CANCELLED", "it was not cancelled"
    )
    assert desk.show("clicked")["status"] == "stopped"
    set_state(desk, "clicked", type="SCHEDULED", name="AwaitingRetry", message="Retry from the UI")
    assert await_end(desk, "clicked")["counts"]["done"] == 2
    wait_for(
        lambda: flow_run(desk, "clicked")["state"]["type"] == "COMPLETED", "Prefect was not told"
    )


@pytest.mark.nightly
def test_retry_tries_failed_trials_of_a_mended_trainable_again(desk: Desk) -> None:
    broken = "def train(trial):\n    raise ValueError('not yet')\n"
    file = desk.write("mended", train=broken, trials=1, max_steps=2)
    assert desk.run("run", file, expect=1)
    wait_for(lambda: flow_run(desk, "mended")["state"]["type"] == "FAILED", "Prefect was not told")
    desk.write("mended", trials=1, max_steps=2)
    set_state(desk, "mended", type="SCHEDULED", name="AwaitingRetry", message="Retry from the UI")
    assert await_end(desk, "mended")["counts"]["done"] == 1


@pytest.mark.parametrize(
    "killed",
    [
        ["mlflow", "worker", "prefect", "supervisor", "keeper"],
        pytest.param(["ray"], marks=pytest.mark.nightly),
    ],
    ids=" ".join,
)
def test_parts_that_are_killed_come_back_and_what_runs_is_not_lost(
    desk: Desk, killed: list[str]
) -> None:
    name = f"without-{killed[0]}"
    running, hurry = start_slow(desk, name, trials=2)
    for part in killed:
        before = wait_for(lambda: process_of(desk, part) or None, f"there is no {part}")  # noqa: B023
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: process_of(desk, part) not in (0, before), f"{part} did not come back")  # noqa: B023
    parts = json.loads(desk.look("status", "--json"))["parts"]
    killed = [part for part in killed if part != "keeper"]  # it starts the supervisor, too
    restarts = {one["name"]: one["restarts"] for one in parts if one["name"] in killed}
    assert restarts == dict.fromkeys(killed, 1)
    hurry.touch()
    said, _ = running.communicate(timeout=180)
    assert running.returncode == 0, said
    assert "all as recorded" in desk.look("verify", name)
    points = [(point["trial"], point["step"]) for point in desk.points(name)]
    assert len(points) == len(set(points)) == 600


@pytest.mark.nightly
def test_what_down_interrupts_goes_on_with_the_next_station(desk: Desk) -> None:
    running = desk.start("run", desk.write("paused", train=BRISK, max_steps=200, trials=2))
    desk.await_events("paused", "saved", 2, running)
    desk.run("down")
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 3, said
    assert desk.show("paused")["status"] == "interrupted"
    assert await_no_process(desk.folder) == []
    desk.run("up")
    assert await_end(desk, "paused")["counts"]["done"] == 2
    assert {point["attempt"] for point in desk.points("paused")} == {1, 2}


@pytest.mark.nightly
def test_what_a_schedule_finds_is_rolled_out_and_served_whatever_is_killed(desk: Desk) -> None:
    port, root = free_port("127.0.0.1"), desk.folder / ".regrow"

    def said(enough: Callable[[Serving], object], what: str) -> ServerStatus:
        return wait_for(
            lambda: one.status if (one := standing(Places.at(str(root)))) and enough(one) else None,
            what,
        )

    (desk.folder / "serve.py").write_text(MODEL)
    file = desk.write(
        "night", **SMALL, serve={"model": "serve.py:Model", "gate": "score > 0.5", "port": port}
    )
    (desk.folder / "level.txt").write_text("0.6")
    with socket.create_server(("127.0.0.1", port)):  # somebody else has it
        told = desk.run("schedule", file, "--hook").stdout
        assert (
            "serve: the station serves the newest experiment of night; `regrow status` shows where"
            in told
        )
        said(
            lambda one: f"serve.port: {port} cannot be used" in one.status.trouble,
            "nobody says that the port is taken",
        )
    said(
        lambda one: one.state == "waiting" and not one.status.trouble,
        "it does not take the port that is free",
    )

    secret = json.loads((root / ".services/station/hooks.json").read_text())["night"]
    httpx.post(
        f"{the_station(desk).page_url}/hooks/night", headers={"Authorization": f"Bearer {secret}"}
    ).raise_for_status()
    wait_for(lambda: answers(port, desk.places) == 1.2, "what its run found was not served")
    # Further nights as their drivers would write them, at a tenth of the cost.
    Kept(LocalStore(root / "night-2999-01-01T02"), name="night-2999-01-01T02").best(0.9, level=0.9)
    wait_for(lambda: answers(port, desk.places) == 1.8, "the better one was not rolled out")
    Kept(LocalStore(root / "night-2999-01-02T02"), name="night-2999-01-02T02").best(0.3, level=0.3)
    found = said(lambda one: one.status.refused, "nothing was refused")
    assert (
        found.refused == "night-2999-01-02T02: trial 0, step 1, score 0.3 does not meet score > 0.5"
    )
    assert found.main is not None
    assert (found.main.experiment, found.url, answers(port, desk.places)) == (
        "night-2999-01-01T02",
        f"http://127.0.0.1:{port}",
        1.8,
    )

    before = process_of(desk, "serve-night")
    os.kill(before, signal.SIGKILL)
    wait_for(
        lambda: (
            process_of(desk, "serve-night") not in (0, before) and answers(port, desk.places) == 1.8
        ),
        "it did not come back",
    )
    desk.run("down")
    assert answers(port, desk.places) is None
    desk.run("up")
    wait_for(lambda: answers(port, desk.places) == 1.8, "it did not come back with the station")
    lines = desk.look("status")
    assert (
        f"serves:  night: http://127.0.0.1:{port} night-2999-01-01T02, trial 0, step 1, score 0.9"
        in lines
    )
    assert "ago: night-2999-01-02T02: trial 0, step 1, score 0.3 does not meet score > 0.5" in lines

    schedule = desk.prefect("GET", "deployments/name/regrow/night")["id"]
    desk.prefect("DELETE", f"deployments/{schedule}")  # as its page does
    wait_for(
        lambda: answers(port, desk.places) is None and process_of(desk, "serve-night") == 0,
        "it outlives its schedule",
    )


def test_one_station_for_a_state_root(desk: Desk, station: Station) -> None:
    assert f"process {station.pid}" in desk.run("up").stdout
    assert the_station(desk).pid == station.pid


def test_another_station_refuses_this_ones_prefect_server(desk: Desk, station: Station) -> None:
    told = desk.run("up", "--state", "other", expect=2, PREFECT_API_URL=station.prefect_api).stderr
    assert f"names {station.prefect_api}" in told
    assert "unset it" in told


def secrets_of(desk: Desk) -> list[str]:
    """What opens the doors of its servers."""
    known = desk.passwords
    return [known.prefect, known.mlflow, known.page, known.cookies]


def test_others_need_a_password_and_ones_own_commands_find_it(desk: Desk, station: Station) -> None:
    known = desk.passwords
    for method, address, content, password in (
        ("POST", f"{station.prefect_url}/api/flow_runs/filter", "{}", known.prefect),
        ("GET", f"{station.page_url}/", None, known.page),
        (
            "POST",
            f"{station.mlflow_url}/ajax-api/2.0/mlflow/experiments/search",
            '{"max_results": 5}',
            known.mlflow,
        ),
    ):
        parts = urlsplit(address)
        headers = {
            "Content-Type": "application/json",
            "Origin": f"{parts.scheme}://{parts.netloc}",
        }  # as its own page asks
        answers = [
            httpx.request(
                method, address, content=content, auth=auth, headers=headers, timeout=30
            ).status_code
            for auth in (None, ("regrow", "wrong"), ("regrow", password))
        ]
        assert answers == [401, 401, 200], address
    asked = httpx.get(f"{station.prefect_url}/ui-settings", auth=("regrow", known.prefect))
    assert asked.json()["api_url"] == "/api"

    desk.run("schedule", desk.write("yearly", trials=1), "--cron", "0 2 1 1 *")
    assert re.search(r"yearly\b", desk.run("schedules").stdout)


def test_secrets_of_a_station_are_its_owners_alone(desk: Desk, station: Station) -> None:
    own = passwords.file_of(desk.places.services)
    files = [own, station.folder / "ray.json", *(station.folder / "drivers").iterdir()]
    assert {file.stat().st_mode & 0o077 for file in files} == {0}
    token = json.loads((station.folder / "ray.json").read_text())["token"]
    told = subprocess.run(
        ["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    told += "".join(log.read_text(errors="replace") for log in station.folder.glob("logs/*"))
    told += desk.look("status", "--json")
    assert not [secret for secret in (token, *secrets_of(desk)) if secret in told]


@pytest.fixture(scope="module")
def browser_page(desk: Desk) -> Iterator[Page]:
    """A browser that has opened the link to our page: by that it is logged in at Prefect's and
    MLflow's, too.
    """
    said = desk.run("ui", "--no-browser").stdout
    with empty_page(height=1000) as page:
        page.goto(re.findall(r"page: +(\S+)", said)[0])
        expect(page.get_by_role("heading").first).to_be_visible()
        assert "login" not in page.url
        yield page


def look(page: Page, name: str) -> None:
    with suppress(Error):  # pages that poll are never idle
        page.wait_for_load_state("networkidle", timeout=2000)
    page.screenshot(path=SCREENSHOTS / f"station-{name}.png")


def await_saved(desk: Desk, name: str, count: int = 2) -> None:
    def saved() -> bool:
        try:
            return len([event for event in desk.events(name) if event["event"] == "saved"]) >= count
        except json.JSONDecodeError:  # a line that is just being written
            return False

    wait_for(saved, f"{name} saves nothing")


def test_a_custom_run_has_the_number_of_trials_of_the_form_and_our_page_has_it_with_links_that_work(
    desk: Desk, browser_page: Page
) -> None:
    hurry = desk.folder / "hurry"
    train = TRAIN.replace("SECONDS", f"0 if Path({str(hurry)!r}).exists() else 0.5")
    desk.run(
        "schedule", desk.write("sized", train=train, trials=1, max_steps=200), "--every", "24h"
    )
    page, station = browser_page, the_station(desk)
    known = desk.prefect("GET", "deployments/name/regrow/sized")
    page.goto(f"{station.prefect_url}/deployments/deployment/{known['id']}/run")
    trials = page.locator(".p-label", has=page.get_by_text(re.compile(r"^trials"))).last
    look(page, "form")
    trials.get_by_role("button", name="int", exact=True).click()
    trials.locator("input").last.fill("3")
    look(page, "form-filled")
    page.get_by_role("button", name="Submit", exact=True).click()
    folder = desk.folder / ".regrow"
    name = wait_for(lambda: next((one.name for one in folder.glob("sized-20*")), None), "no run")
    await_saved(desk, name)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(station.page_url)
        expect(page.get_by_role("row", name=re.compile(name)).first).to_contain_text("running")
        planned = page.locator("#planned").get_by_role("row", name=re.compile("sized"))
        expect(planned).to_contain_text(re.compile(r"every[\s\S]*in \d+"))
        look(page, f"ours-{scheme}")
    page.goto(f"{station.page_url}/e/{name}")
    look(page, "ours-live")
    for place in ("Prefect", "MLflow"):
        page.goto(station.page_url)
        page.get_by_role("row", name=re.compile(f"compare {name}")).get_by_role(
            "link", name=place
        ).click()
        expect(page.get_by_text("trial-0000").first).to_be_visible()
        look(page, f"linked-{place.lower()}")
    hurry.touch()
    assert await_end(desk, name)["counts"]["done"] == 3
    page.goto(f"{station.prefect_url}/deployments/deployment/{known['id']}")
    expect(page.get_by_text(name).first).to_be_visible()
    look(page, "deployment")
    page.goto(f"{station.prefect_url}/runs")
    expect(page.get_by_text(name).first).to_be_visible()
    look(page, "runs")
