"""Where people see what trials logged beside metrics: the page, the report, `regrow trial`, MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from PIL import Image

from regrow.flows.recording.media import MediaArtifacts
from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.mlflow.updates import SinkUnavailable
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.events import AnyEvent, Ended
from regrow.search.history import History
from regrow.show.report import logged as in_report
from regrow.show.report import report
from regrow.tasks.media import content
from regrow.tasks.media.content import Content
from regrow.tasks.media.items import Item
from regrow.tasks.ports.store import Unavailable
from tests.memory_store import MemoryStore
from tests.unit.exported import regrow
from tests.unit.figured import folded, run
from tests.unit.paged import Reader, logged, reader, stranger
from tests.unit.test_report import Page
from tests.unit.told import rows_of

NASTY = "<script>alert(1)</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"


@pytest.fixture(scope="module")
def events() -> Sequence[AnyEvent]:
    return run(trials=2, max_steps=3).events


@pytest.fixture(scope="module")
def history(events: Sequence[AnyEvent]) -> History:
    return folded(list(events))


@pytest.fixture(scope="module")
def root(
    tmp_path_factory: pytest.TempPathFactory, events: Sequence[AnyEvent], history: History
) -> Path:
    """An experiment whose best trial logged one thing of each kind, and an image twice."""
    import plotly.graph_objects as go

    root = tmp_path_factory.mktemp("state")
    name, best = history.spec.name, history.best
    assert best is not None
    logged(root, name, events)
    svg = root / "drawing.svg"
    svg.write_bytes(SVG)
    contents: list[tuple[str, int, Content]] = [
        ("pixels", 1, content.image(Image.new("RGB", (2, 2), "red"))),
        ("pixels", 2, content.image(Image.new("RGB", (2, 2), "blue"))),
        (f"text/{NASTY}", 2, content.text(NASTY * 400)),
        ("rows", 2, content.table([{"a": NASTY, "b": number / 3} for number in range(30)])),
        ("curve", 2, content.figure(go.Figure(go.Scatter(y=[1, 2])))),
        ("drawing", 2, content.file(svg)),
    ]
    for count, (title, step, made) in enumerate(contents, start=1):
        item = Item(
            trial=best,
            attempt=1,
            count=count,
            step=step,
            kind=made.kind,
            size=made.size,
            name=title,
            suffix=made.suffix,
        )
        LocalStore(root / name).create(item.key, made.data)
    return root


@pytest.fixture
def pages(root: Path) -> Reader:
    return reader(root)


def links(page: str) -> list[str]:
    return re.findall(r'(?:href|src)="(/e/[^"]+/media/[^"]+)"', page)


def test_the_page_of_a_trial_shows_the_newest_of_each_name_and_links_the_others(
    pages: Reader, history: History
) -> None:
    answer = pages.get(f"/e/{history.spec.name}/t/{history.best}")
    page = Page(answer.text)
    assert NASTY not in answer.text
    assert NASTY in page.text
    assert "and 6,000 more characters" in page.text
    assert "and 10 more rows" in page.text
    found = links(answer.text)
    assert len(found) == len(set(found)) + 1, "the image is shown and linked"
    assert {unquote(link).partition("?")[0].rpartition("-")[2] for link in found} == {
        "pixels.png",
        "text=2F=3Cscript=3Ealert=281=29=3C=2Fscript=3E.txt",
        "rows.json",
        "curve.json",
        "drawing.svg",
    }
    plots = [about["data-figure"] for tag, about in page.elements if about.get("class") == "plot"]
    assert [plot for plot in plots if plot and plot.endswith("-curve.json")] == plots
    assert len(plots) == 1
    other = 1 - (history.best or 0)
    assert links(pages.get(f"/e/{history.spec.name}/t/{other}").text) == []


def test_images_and_texts_are_opened_and_all_else_is_saved_by_the_browser(
    pages: Reader, root: Path, history: History
) -> None:
    served = {}
    for link in links(pages.get(f"/e/{history.spec.name}/t/{history.best}").text):
        answer = pages.get(link)
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; sandbox")
        shown = answer.headers["content-disposition"]
        served[shown.partition('"')[2]] = shown.partition(";")[0], answer.headers["content-type"]
        assert stranger(root).get(link).status_code == 401
    assert served == {
        'pixels-step-1.png"': ("inline", "image/png"),
        'pixels-step-2.png"': ("inline", "image/png"),
        'text-script-alert-1-script-step-2.txt"': ("inline", "text/plain; charset=utf-8"),
        'rows-step-2.json"': ("attachment", "application/octet-stream"),
        'curve-step-2.json"': ("attachment", "application/octet-stream"),
        'drawing-step-2.svg"': ("attachment", "application/octet-stream"),
    }


@pytest.mark.parametrize(
    "path",
    [
        "1/..%2f..%2f..%2flog%2f0000000001.jsonl",
        "1/000001-000000001-text-1-none.txt",
        "log/0000000001.jsonl",
        "1/0000000001.jsonl",
    ],
)
def test_nothing_but_an_item_is_served(pages: Reader, history: History, path: str) -> None:
    for kind in ("media", "figures"):
        answer = pages.get(f"/e/{history.spec.name}/t/{history.best}/{kind}/{path}")
        assert answer.status_code in (400, 404)


def test_a_figure_of_plotlys_is_drawn_by_the_pages_script(pages: Reader, history: History) -> None:
    base = f"/e/{history.spec.name}/t/{history.best}"
    plot = re.findall(r'data-figure="([^"]+)"', pages.get(base).text)[0]
    found = pages.get(f"{base}/figures/{plot}").json()
    assert (found["figure"]["data"][0]["type"], found["height"]) == ("scatter", 420)
    image = re.findall(r"/media/([^?\"]+pixels.png)", pages.get(base).text)[0]
    assert "nothing" in pages.get(f"{base}/figures/{image}").json()


def test_the_report_has_small_items_of_the_best_trial_inside(
    root: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> Page:
        return Page(report.html(rows_of(history), Places(root=str(root)), alive=False, now=0.0))

    page = made()
    images = [about["src"] or "" for tag, about in page.elements if tag == "img"]
    assert [image.partition(",")[0] for image in images] == ["data:image/png;base64"]
    assert f"Logged by trial {history.best}" in page.text
    assert NASTY in page.text
    assert "image, 79 bytes, step 2, 1 earlier" in page.text
    assert "logged-0" in next(script for script in page.scripts if "logged-0" in script)
    monkeypatch.setattr(in_report, "MOST_BYTES", 10)
    page = made()
    assert [about for tag, about in page.elements if tag == "img"] == []
    assert "step 2, 1 earlier; too large for this file" in page.text


def test_regrow_trial_lists_them(root: Path, history: History) -> None:
    name, best = history.spec.name, history.best
    shown = regrow("trial", name, best, "--state", root)
    assert shown.exit_code == 0, shown.output
    listed = shown.stdout.partition("logged:\n")[2].splitlines()[:5]
    assert [line.partition(":")[0].strip() for line in listed] == [
        "curve",
        "drawing",
        "pixels",
        "rows",
        f"text/{NASTY}",
    ]
    assert ": image, 79 bytes, of step 2, and of 1 earlier: " in listed[2]
    assert Path(listed[2].rpartition(": ")[2]).is_file()
    view = json.loads(regrow("trial", name, best, "--json", "--state", root).stdout)["media"]
    assert [(one["name"], one["step"], one["kind"]) for one in view][2:4] == [
        ("pixels", 1, "image"),
        ("pixels", 2, "image"),
    ]


def test_mlflow_gets_them_as_artifacts_of_the_trials_run_once(
    root: Path, events: Sequence[AnyEvent], history: History
) -> None:
    store = LocalStore(root / history.spec.name)
    runs = TrialRuns(lambda after: [], media=MediaArtifacts(store))
    found: dict[str, list[bytes]] = {}
    for event in events:
        ended = isinstance(event, Ended)
        runs.apply(msgspec.structs.replace(event, media=6) if ended else event)
        for update in [*runs.drain(), *runs.drain()]:
            for path, read in update.media.items():
                found.setdefault(f"{update.key}: {path}", []).append(read())
    run_of_best = f"trial-{history.best:04d}: media"
    assert sorted(found) == [
        f"{run_of_best}/curve/step-000002.json",
        f"{run_of_best}/drawing/step-000002.svg",
        f"{run_of_best}/pixels/step-000001.png",
        f"{run_of_best}/pixels/step-000002.png",
        f"{run_of_best}/rows/step-000002.json",
        f"{run_of_best}/text/_script_alert_1__/script_-feb563d7/step-000002.txt",
    ]
    assert found[f"{run_of_best}/drawing/step-000002.svg"] == [SVG]


class Away(MemoryStore):
    """Out of reach."""

    def list(self, prefix: str) -> list[str]:
        raise Unavailable(prefix, "away")


def test_mlflow_is_written_again_once_the_store_of_media_is_back(history: History) -> None:
    with pytest.raises(SinkUnavailable, match="media of a trial cannot be read"):
        MediaArtifacts(Away())(history.trials[0], "trial-0000")
