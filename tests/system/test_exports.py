"""One real experiment, exported while it runs and after it ended, opened by the tools that the
exports are for.
"""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser import SCREENSHOTS, empty_page
from tests.system.conftest import TRAIN, Desk, desk_in

TRIALS, STEPS = 6, 6
DASHBOARD = [
    "optuna_dashboard._cli",
    "sqlite:///x.db",
    "--host",
    "127.0.0.1",
    "--port",
    "PORT",
    "--server",
    "wsgiref",
]
"""Not gunicorn, which waits half a minute for a browser's open connections before it ends."""
TENSORBOARD = ["tensorboard.main", "--logdir", "tb", "--host", "127.0.0.1", "--port", "PORT"]
MEANWHILE = """
import regrow as rg

result = rg.open("exported")
before = len(result.points())
print(result.status, before, len(result.dataframe()), flush=True)
input()  # until the experiment has ended
result.refresh()
best = result.best
print(result.status, len(result.points()), best.trial, best.value, best.config["x"])
curve = result.history(best.trial)
print(list(curve["score"]), list(curve.index))
print((best.load_checkpoint("best") / "model.json").read_text())
print(result)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An experiment that has ended, exported twice each way, and what a script said that looked at
    it meanwhile.
    """

    desk: Desk
    midway: dict[str, Any]
    script: list[str]


@pytest.fixture(scope="module")
def exported(
    tmp_path_factory: pytest.TempPathFactory, prefect_of_session: dict[str, str]
) -> Iterator[Exported]:
    with desk_in(tmp_path_factory.mktemp("exports")) as desk:
        desk.environment |= prefect_of_session
        waits = TRAIN.replace(
            "time.sleep(SECONDS)", "while step == 3 and not Path('go').exists(): time.sleep(0.05)"
        )
        file = desk.write("exported", train=waits, trials=TRIALS, max_steps=STEPS)
        process = desk.start("run", file)
        # of two trials, which wait at their third step
        desk.await_events("exported", "reported", 2, process)
        script = subprocess.Popen(
            [sys.executable, "-c", MEANWHILE],
            cwd=desk.folder,
            env=desk.environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert script.stdout is not None
        first = script.stdout.readline()
        desk.run(
            "export",
            "exported",
            "--tensorboard",
            "tb",
            "--optuna",
            "sqlite:///x.db",
            "--study-name",
            "midway",
        )
        midway = {
            "rows": len(desk.run("trials", "exported", "--csv").stdout.splitlines()),
            "running": process.poll() is None,
        }
        (desk.folder / "go").touch()
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
        rest, _ = script.communicate("\n", timeout=60)
        assert script.returncode == 0
        study = f"sqlite:///{desk.folder}/x.db"
        desk.look("export", "exported", "--tensorboard", desk.folder / "tb", "--optuna", study)
        yield Exported(desk=desk, midway=midway, script=[first.strip(), *rest.splitlines()])


@contextmanager
def server(command: list[str], desk: Desk) -> Iterator[str]:
    """A server on a free port of loopback, once it answers. `PORT` in the command stands for the
    port.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.replace("PORT", str(port)) for word in command]
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=desk.folder,
        env=desk.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
                assert time.monotonic() < deadline, f"{command[0]} does not answer"
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON answer of a server, to a POST where there is a body."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=30
    ) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with empty_page(height=1100) as page:
        yield page


def test_while_it_runs_it_is_exported_as_it_stands(exported: Exported) -> None:
    assert exported.midway["running"]
    assert 2 <= exported.midway["rows"] <= TRIALS + 1


def test_optuna_dashboard_shows_every_trial_with_its_curve(exported: Exported, page: Page) -> None:
    view = exported.desk.show("exported")
    points = exported.desk.points("exported")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with server(DASHBOARD, exported.desk) as url:
        studies = {
            one["study_name"]: one["study_id"]
            for one in ask(f"{url}/api/studies")["study_summaries"]
        }
        assert sorted(studies) == ["exported", "midway"]
        study = ask(f"{url}/api/studies/{studies['exported']}")
        for trial, ours in zip(study["trials"], view["trials"], strict=True):
            assert (trial["number"], trial["state"]) == (ours["number"], "Complete")
            assert trial["values"] == [ours["value"]]
            assert {p["name"]: p["param_external_value"] for p in trial["params"]} == {
                k: str(v) for k, v in ours["config"].items()
            }
            curve = [(p["step"], p["score"]) for p in points if p["trial"] == ours["number"]]
            assert [(p["step"], p["value"]) for p in trial["intermediate_values"]] == curve
        page.goto(f"{url}/dashboard/studies/{studies['exported']}")
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
        expect(page.get_by_text(f"Best Trial (number={view['best']['trial']})")).to_be_visible()
        page.screenshot(path=SCREENSHOTS / "optuna-dashboard.png")
        page.goto("about:blank")
    assert errors == []


def test_tensorboard_shows_every_trial_with_its_curve_and_its_hyperparameters(
    exported: Exported, page: Page
) -> None:
    view = exported.desk.show("exported")
    points = exported.desk.points("exported")
    statuses = ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING", "STATUS_UNKNOWN"]
    wanted = {
        "experimentName": "",
        "allowedStatuses": statuses,
        "startIndex": 0,
        "sliceSize": 100,
        "colParams": [{"metric": {"group": "", "tag": "best/score"}, "order": "ORDER_DESC"}],
    }
    with server(TENSORBOARD, exported.desk) as url:
        deadline = time.monotonic() + 60
        while (
            len(
                groups := ask(f"{url}/data/plugin/hparams/session_groups", wanted).get(
                    "sessionGroups", []
                )
            )
            < TRIALS
        ):
            assert time.monotonic() < deadline, f"{len(groups)} of {TRIALS} trials"
            time.sleep(0.2)
        ranked = sorted(view["trials"], key=lambda trial: -trial["value"])
        assert [group["name"] for group in groups] == [
            f"trial-{trial['number']:04}" for trial in ranked
        ]
        for group, trial in zip(groups, ranked, strict=True):
            assert group["hparams"] == pytest.approx(trial["config"])
            assert {session["status"] for session in group["sessions"]} == {"STATUS_SUCCESS"}
            told = {metric["name"]["tag"]: metric["value"] for metric in group["metricValues"]}
            assert told["best/score"] == pytest.approx(trial["value"])
        # The export of the half and that of the whole: every point is there once.
        assert sorted(ask(f"{url}/data/runs")) == sorted(group["name"] for group in groups)
        for trial in view["trials"]:
            curve = ask(
                f"{url}/data/plugin/scalars/scalars?run=trial-{trial['number']:04}&tag=score"
            )
            ours = [(p["step"], p["score"]) for p in points if p["trial"] == trial["number"]]
            assert [step for _, step, _ in curve] == [step for step, _ in ours]
            assert [value for _, _, value in curve] == pytest.approx([value for _, value in ours])
        page.goto(f"{url}/#hparams")
        for trial in view["trials"]:
            expect(page.get_by_text(f"trial-{trial['number']:04}").first).to_be_visible()
        expect(page.get_by_text("best/score").first).to_be_visible()
        page.screenshot(path=SCREENSHOTS / "tensorboard-hparams.png")
        page.goto("about:blank")


def test_the_csv_is_the_trials(exported: Exported) -> None:
    desk = exported.desk
    desk.look("trials", "exported", desk.folder / "trials.csv", "--csv")
    desk.look("trials", "exported", "--history", "--parquet", desk.folder / "steps.parquet")
    with (desk.folder / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, trial in zip(rows, desk.show("exported")["trials"], strict=True):
        assert (int(row["trial"]), row["state"], float(row["value"])) == (
            trial["number"],
            trial["state"],
            trial["value"],
        )
        assert (float(row["config.x"]), row["config.kind"]) == (
            trial["config"]["x"],
            trial["config"]["kind"],
        )
        assert float(row["metrics.score"]) == trial["value"]
        assert Path(row["checkpoint"]).is_file()
    assert (desk.folder / "steps.parquet").read_bytes().startswith(b"PAR1")
    assert (
        "exclude each other"
        in desk.run("trials", "exported", "--csv", "--parquet", expect=2).stderr
    )


def test_a_study_that_is_there_is_an_error_of_one_line(exported: Exported) -> None:
    before = (exported.desk.folder / "x.db").read_bytes()
    done = exported.desk.run("export", "exported", "--optuna", "sqlite:///x.db", expect=2)
    assert "has a study 'exported' already" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert (exported.desk.folder / "x.db").read_bytes() == before
    secret = exported.desk.run(
        "export", "exported", "--optuna", "postgresql://me:ses/ame@127.0.0.1:1/db", expect=2
    )
    assert "sesame" not in secret.stderr.replace("/", "")


def test_a_result_is_opened_by_name_and_reads_on(exported: Exported) -> None:
    view = exported.desk.show("exported")
    best = view["best"]
    first, second, curve, model, shown = exported.script
    status, before, rows = first.split()
    assert status == "running"
    assert 2 <= int(before) < TRIALS * STEPS
    assert 1 <= int(rows) <= TRIALS
    assert (
        second == f"finished {TRIALS * STEPS} {best['trial']} {best['value']} {best['config']['x']}"
    )
    ours = [p["score"] for p in exported.desk.points("exported") if p["trial"] == best["trial"]]
    assert curve == f"{ours} {list(range(1, STEPS + 1))}"
    assert json.loads(model) == {"total": best["value"]}
    assert shown.startswith(
        f"<Result 'exported': finished, {TRIALS} of {TRIALS} trials ({TRIALS} done); best score "
    )
    exported.desk.look("best", "exported", "--save", exported.desk.folder / "saved")
    assert (exported.desk.folder / "saved" / "model.json").read_text() == model
