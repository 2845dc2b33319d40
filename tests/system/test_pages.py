"""The pages that a user looks at, in a real browser, after a real experiment that lost one of its
two nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from regrow.show.figures import KINDS
from tests.system.browser import SCREENSHOTS, empty_page
from tests.system.conftest import Desk, desk_in
from tests.system.hosts import await_, ray_cluster
from tests.system.test_report_page import Reader

PLOTS = """
plots => plots.map(plot => plot.data.map(trace => ({
    type: trace.type, name: trace.name, x: Array.from(trace.x ?? []), y: Array.from(trace.y ?? []),
    dimensions: (trace.dimensions ?? []).map(each => ({label: each.label, values: Array.from(each.values)})),
})))
"""
"""What Plotly drew: MLflow's charts and the report's figures are both made with it."""

TRIALS, STEPS = 10, 9
TRAIN = """
import math, time


def train(trial):
    rate, wide = trial.config["rate"], {"narrow": 0.8, "wide": 1.0}[trial.config["kind"]]
    for step in trial.steps():
        time.sleep(0.4)
        loss = math.exp(-rate * step * wide)
        print(f"step {step}: loss {loss:.4f}")
        trial.report({"accuracy": 1 - loss, "loss": loss}, checkpoint=lambda folder: (folder / "step").write_text(str(step)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An experiment that has ended, and the addresses of its pages."""

    desk: Desk
    mlflow: str
    prefect: str


def saved_on(desk: Desk, node_id: str) -> bool:
    """Whether an attempt that is under way on this node has saved a checkpoint and has some steps
    before it.
    """
    if not (desk.folder / ".regrow" / "pages" / "log").is_dir():
        return False
    events = desk.events("pages")
    there = {
        (e["trial"], e["attempt"])
        for e in events
        if e["event"] == "began" and e["node_id"] == node_id
    }
    there -= {(e["trial"], e["attempt"]) for e in events if e["event"] == "ended"}
    return any(
        e["event"] == "saved" and (e["trial"], e["attempt"]) in there and e["step"] < STEPS - 4
        for e in events
    )


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with ExitStack() as stack:
        desk = stack.enter_context(desk_in(tmp_path_factory.mktemp("pages")))
        cluster = stack.enter_context(ray_cluster(desk.environment))
        cluster.start("head", address="127.0.0.1", cpus=0)
        for name in ("b", "c"):
            cluster.start(name, address="127.0.0.1", cpus=1)
        file = desk.write(
            "pages",
            train=TRAIN,
            metric="accuracy",
            trials=TRIALS,
            max_steps=STEPS,
            search="random",
            space={"rate": {"loguniform": [0.01, 1.0]}, "kind": {"choice": ["narrow", "wide"]}},
            schedule={"asha": {"grace_period": 3, "reduction_factor": 3}},
        )
        process = desk.start("run", file, **cluster.environment)
        await_(
            lambda: saved_on(desk, cluster.nodes["c"]) or process.poll() is not None,
            "a checkpoint of a trial on node c",
        )
        cluster.lose("c")
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
        cluster.kill()
        pages = desk.start("ui", "pages", "--no-browser")
        assert pages.stdout is not None
        found: dict[str, str] = {}
        while len(found) < 2 and (line := pages.stdout.readline()):
            if match := re.match(r"(Prefect|MLflow): +(http\S+)", line):
                found[match[1]] = match[2]
        yield Seen(desk=desk, mlflow=found["MLflow"], prefect=found["Prefect"])


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    with empty_page(height=950) as page:
        yield page


def look(page: Page, name: str) -> None:
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def curves(seen: Seen) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """The points of each metric by the name of the trial's run, as the log has them."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for point in seen.desk.points("pages"):
        for metric in ("accuracy", "loss"):
            found.setdefault(metric, {}).setdefault(f"trial-{point['trial']:04}", []).append(
                (point["step"], point[metric])
            )
    return found


def test_mlflow_shows_exactly_the_trials_with_one_point_a_step(
    seen: Seen, browser_page: Page
) -> None:
    page, wanted = browser_page, curves(seen)
    page.goto(seen.mlflow)
    expect(page.get_by_text(f"{TRIALS} matching runs")).to_be_visible(timeout=60_000)
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length == 4")
    page.wait_for_function(
        f"[...document.querySelectorAll('.js-plotly-plot')].every(plot => plot.data.length >= {TRIALS})"
    )
    look(page, "mlflow-trials")
    expect(page.get_by_role("button", name="Sort: best_accuracy")).to_be_visible()
    names = page.locator("a", has_text=re.compile(r"^trial-\d+$")).all_inner_texts()
    values = {trial["number"]: trial["value"] for trial in seen.desk.show("pages")["trials"]}
    assert names == [f"trial-{n:04}" for n in sorted(values, key=lambda n: -values[n])], (
        "best first"
    )
    drawn = [plot for plot in page.locator(".js-plotly-plot").evaluate_all(PLOTS) if plot]
    assert len(drawn) == 4
    for plot, metric in zip(drawn, ("accuracy", "best_accuracy", "best_step", "loss"), strict=True):
        if metric.startswith("best"):
            continue
        lines = {
            match[0]: trace
            for trace in plot
            if (match := re.match(r"trial-\d+", trace["name"] or ""))
        }
        assert lines.keys() == wanted[metric].keys()
        for name, points in wanted[metric].items():
            steps, numbers = zip(*points, strict=True)
            assert lines[name]["x"] == list(steps)
            assert lines[name]["y"] == pytest.approx(numbers)


def test_mlflows_assistant_does_not_open_by_itself(seen: Seen, browser_page: Page) -> None:
    assert browser_page.context.browser is not None
    stranger = browser_page.context.browser.new_page()  # one that was never here
    page = urlsplit(seen.mlflow)._replace(query="").geturl()
    stranger.goto(seen.desk.passwords.link("mlflow", page))  # a link is good for one
    expect(stranger.get_by_text(f"{TRIALS} matching runs")).to_be_visible(timeout=60_000)
    # which it is not where the pane is open
    expect(stranger.get_by_role("button", name="MLflow Assistant")).to_be_visible()
    stranger.close()


def test_mlflow_compares_the_trials_with_parallel_coordinates(
    seen: Seen, browser_page: Page
) -> None:
    page, server = browser_page, seen.mlflow.partition("/?")[0]
    found = page.request.post(
        f"{server}/ajax-api/2.0/mlflow/runs/search",
        data={
            "experiment_ids": ["1"],
            "filter": "attributes.run_name LIKE 'trial-%'",
            "max_results": 100,
        },
    ).json()["runs"]
    assert len(found) == TRIALS
    runs = [run["info"]["run_id"] for run in found]
    page.goto(
        f"{server}/#/compare-runs?runs={quote(json.dumps(runs))}&experiments={quote(json.dumps(['1']))}"
    )
    page.wait_for_function(
        "document.querySelector('.js-plotly-plot')?.data?.[0]?.type == 'parcoords'"
    )
    look(page, "mlflow-compare")
    ((drawn,),) = page.locator(".js-plotly-plot").evaluate_all(PLOTS)
    by_label = {each["label"]: each["values"] for each in drawn["dimensions"]}
    assert by_label.keys() >= {"rate", "kind"}
    rates = sorted(trial["config"]["rate"] for trial in seen.desk.show("pages")["trials"])
    assert sorted(by_label["rate"]) == pytest.approx(rates)


def test_prefect_shows_the_retry_and_its_reason(seen: Seen, browser_page: Page) -> None:
    page, server = browser_page, seen.prefect.partition("/runs")[0]
    page.goto(seen.prefect)
    expect(page.get_by_text(f"{TRIALS} Task runs")).to_be_visible()
    look(page, "prefect-flow-run")
    (lost,) = [trial for trial in seen.desk.show("pages")["trials"] if len(trial["attempts"]) > 1]
    first, second = lost["attempts"]
    task_runs: list[Any] = page.request.post(f"{server}/api/task_runs/filter", data={}).json()
    (task_run,) = [run for run in task_runs if run["name"] == f"trial-{lost['number']:04}"]
    page.goto(f"{server}/runs/task-run/{task_run['id']}")
    expect(
        page.get_by_text(
            re.compile(f"attempt 1 was lost.*continues after step {second['from_step']}")
        ).first
    ).to_be_visible()
    expect(page.get_by_text("Run Count").locator("..")).to_contain_text("2")
    look(page, "prefect-task-run")
    assert first["reason"] == "the node was lost"


def test_the_report_shows_every_figure_and_the_lost_node(seen: Seen, browser_page: Page) -> None:
    seen.desk.run("report", "pages")
    assert browser_page.context.browser is not None
    reader = Reader(browser_page.context.browser, seen.desk.folder / "pages.html", width=1500)
    names = [place.get_attribute("data-figure") for place in reader.page.locator(".plot").all()]
    assert names == [
        name for name in KINDS if name not in ("lineage", "pareto_front", "scaling")
    ], "no population, one metric"
    reader.keep("pages")
    (timeline,) = reader.page.locator(
        "#f-timeline .js-plotly-plot, #f-timeline.js-plotly-plot"
    ).evaluate_all(PLOTS)
    assert [
        trace["name"] for trace in timeline if trace["name"] and trace["name"].startswith("lost")
    ] == ["lost (1)"]
    assert (reader.outside, reader.wrong) == ([], [])
    reader.close()
