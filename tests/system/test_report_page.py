"""The report as a reader has it: made by the command, opened from the disk in Chromium without a
network.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from regrow.infra.log.log import Log
from regrow.infra.log.reading import replayed
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.events import AnyEvent, Ended, encode
from regrow.show.figures import KINDS
from regrow.show.report.report import html
from tests.system.browser import SCREENSHOTS
from tests.system.browser import chromium as installed
from tests.system.conftest import Desk, desk_in
from tests.unit.figured import ASHA, AWAY, PBT, THREE, failed, run, three

DRAWN = "body:not(:has(.plot:not([data-drawn])))"
"""There once no figure is left to be drawn. (A predicate would be compiled, which the page's policy
refuses.)
"""
NASTY = "</script><script>window.hurt=1</script><img src=x onerror=window.hurt=1>"


def experiments() -> dict[str, list[AnyEvent]]:
    """Logs of simulated experiments, by name."""
    nasty = failed(2, message=f"ValueError: {NASTY}")
    return {
        "rich": run(
            schedule=ASHA,
            trials=150,
            workers=4,
            machines=(*AWAY, *AWAY),
            checkpoint={"every_steps": 2},
            price_per_hour=3.0,
            constraints=["seconds <= 0.95"],
        ).events,
        "several": run(
            metric=THREE, mode=None, value=three, constraints=["seconds <= 0.9"], trials=40
        ).events,
        "population": run(schedule=PBT, trials=12, workers=12, max_steps=24).events,
        "nasty": [*nasty[:-1], msgspec.structs.replace(nasty[-1], trace=NASTY)]
        if isinstance(nasty[-1], Ended)
        else nasty,
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A user's folder with these experiments, and a report of each."""
    with desk_in(tmp_path_factory.mktemp("reports")) as desk:
        for name, events in experiments().items():
            log = Log.open(LocalStore(desk.folder / ".regrow" / name))
            log.claim([encode(event) for event in events[:2]])
            log.append([encode(event) for event in events[2:]])
            if name == "rich":
                desk.run("report", name)
            else:  # the same without another process
                rows = replayed(LocalStore(desk.folder / ".regrow" / name))
                page = html(
                    rows,
                    Places(root=str(desk.folder / ".regrow")),
                    alive=False,
                    now=rows.history.t_last,
                )
                (desk.folder / f"{name}.html").write_text(page)
        yield desk


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with installed() as browser:
        yield browser


class Reader:
    """A report that is open, and everything that went wrong or over the network since."""

    def __init__(self, browser: Browser, file: Path, *, width: int, scheme: Any = "light") -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        self.page: Page = context.new_page()
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "console",
            lambda line: (
                self.wrong.append(line.text) if line.type in ("error", "warning") else None
            ),
        )
        self.page.goto(file.as_uri())
        self.page.wait_for_selector(DRAWN, state="attached", timeout=120_000)

    @property
    def outside(self) -> list[str]:
        """What was asked of anybody but the disk and the page itself."""
        return [url for url in self.asked if not url.startswith(("file://", "data:", "blob:"))]

    def column(self, title: str) -> list[str]:
        """The texts of a column of the table, as far as it is written."""
        titles = self.page.locator("#table thead tr:last-child th").all_inner_texts()
        place = [text.strip() for text in titles].index(title) + 1
        return self.page.locator(f"#table tbody tr.row > :nth-child({place})").all_inner_texts()

    def keep(self, name: str) -> None:
        """A picture of the whole page, for people."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"report-{name}.png", full_page=True)

    def close(self) -> None:
        self.page.context.close()


@pytest.fixture(scope="module", params=[1600, 400])
def rich(request: pytest.FixtureRequest, desk: Desk, chromium: Browser) -> Iterator[Reader]:
    reader = Reader(
        chromium,
        desk.folder / "rich.html",
        width=request.param,
        scheme="light" if request.param > 1000 else "dark",
    )
    yield reader
    reader.keep(f"rich-{request.param}")
    reader.close()


def test_every_figure_is_drawn_without_the_network_and_without_an_error(rich: Reader) -> None:
    names = [place.get_attribute("data-figure") for place in rich.page.locator(".plot").all()]
    assert names == [name for name in KINDS if name not in ("lineage", "pareto_front", "scaling")]
    rich.page.locator("#fold").click()
    for name in names:
        place = rich.page.locator(f"#f-{name}")
        marks = place.locator(".main-svg path, .main-svg image")
        assert marks.count() > 5, f"{name} is empty"
        box = place.bounding_box()
        assert box is not None
        assert box["height"] > 200
        place.scroll_into_view_if_needed()
        image = Image.open(io.BytesIO(place.screenshot())).convert("RGB")
        assert len(image.getcolors(2**24) or []) > 8, f"{name} is blank"
    assert rich.outside == []
    assert rich.wrong == []


def test_nothing_is_wider_than_the_window(rich: Reader) -> None:
    window, content = rich.page.evaluate("[innerWidth, document.documentElement.scrollWidth]")
    assert content <= window


def test_the_table_is_sorted_searched_and_opened(rich: Reader) -> None:
    page = rich.page
    scores = [float(text) for text in rich.column("score") if text]
    assert len(scores) >= 60
    assert scores == sorted(scores, reverse=True), "best first"
    page.locator("#table thead button", has_text="steps").last.click()
    steps = [int(text) for text in rich.column("steps")]
    assert steps == sorted(steps, reverse=True)
    page.locator("#table thead button", has_text="steps").last.click()
    steps = [int(text) for text in rich.column("steps")]
    assert steps == sorted(steps)
    page.fill("#search", "stopped rung")
    page.locator("#shown", has_text=" of 150 trials").wait_for()
    assert set(rich.column("state")) == {"stopped"}
    page.fill("#search", "")
    page.locator("#shown", has_text="150 trials").wait_for()
    page.locator("#table thead button", has_text="attempts").click()
    button = page.locator("#table tbody .open").first
    button.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    opened = page.locator("#table tbody td.detail").first.inner_text()
    assert "the node was lost" in opened
    assert "lr: " in opened
    button.press("Enter")
    assert page.locator("#table tbody td.detail").count() == 0


def test_all_trials_come_as_one_scrolls(rich: Reader) -> None:
    for _ in range(10):
        rich.page.locator("#sentinel").scroll_into_view_if_needed()
        rich.page.wait_for_timeout(50)
        if not rich.page.locator("#sentinel").inner_text():
            break
    assert rich.page.locator("#table tbody tr.row").count() == 150


def test_a_point_of_a_figure_leads_to_its_trial(rich: Reader) -> None:
    star = rich.page.locator("#f-optimization_history .points path").last
    star.scroll_into_view_if_needed()
    box = star.bounding_box()
    assert box is not None
    rich.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    rich.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    rich.page.locator("#table .open[aria-expanded=true]").wait_for(timeout=5000)
    number = rich.page.locator("#table .open[aria-expanded=true]").inner_text()
    data = json.loads(rich.page.locator("#data").text_content() or "")
    assert next(trial["cells"][0] for trial in data["trials"] if trial["best"]) == int(number)
    rich.page.locator("#table .open[aria-expanded=true]").click()


@pytest.mark.parametrize("rich", [1600], indirect=True)
def test_a_part_of_an_axis_keeps_the_lines_through_it(rich: Reader) -> None:
    page = rich.page
    drawn = page.locator("#f-parallel_coordinates .js-line")
    whole = drawn.count()
    assert whole > 100
    plot = page.locator("#f-parallel_coordinates .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    last = box["x"] + box["width"] * 0.958  # the axis of the objective
    page.mouse.move(last - 20, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(last, box["y"] + 40, steps=4)
    page.mouse.move(last + 20, box["y"] + box["height"] * 0.3, steps=4)
    page.mouse.up()
    expect(drawn).not_to_have_count(whole)
    assert 0 < drawn.count() < whole * 0.7
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(drawn).to_have_count(whole)
    assert rich.wrong == []


def test_the_lineage_of_a_population_is_drawn(desk: Desk, chromium: Browser) -> None:
    reader = Reader(chromium, desk.folder / "population.html", width=1200)
    assert reader.page.locator("#f-lineage .heatmaplayer image").count() == 1
    assert "took the weights of another" in (
        reader.page.locator("#f-lineage .legend").text_content() or ""
    )
    assert (reader.outside, reader.wrong) == ([], [])
    reader.keep("population-1200")
    reader.close()


def test_the_front_of_several_metrics_is_drawn(desk: Desk, chromium: Browser) -> None:
    reader = Reader(chromium, desk.folder / "several.html", width=1200)
    assert reader.page.locator("#f-pareto_front .subplot").count() == 3
    assert reader.page.locator("#best table").count() == 2
    assert (reader.outside, reader.wrong) == ([], [])
    reader.keep("several-1200")
    reader.close()


def test_what_users_wrote_does_nothing_in_a_browser(desk: Desk, chromium: Browser) -> None:
    reader = Reader(chromium, desk.folder / "nasty.html", width=1200)
    for button in reader.page.locator("#table .open").all():
        button.click()
    shown = reader.page.locator("#table").inner_text()
    assert NASTY in shown, "as text, whole"
    assert reader.page.evaluate("window.hurt") is None
    assert reader.page.locator("img").count() == 0
    assert (reader.outside, reader.wrong) == ([], [])
    reader.close()


def test_figures_are_written_as_pictures(desk: Desk, chromium: Browser) -> None:
    printed = desk.run("report", "population", "--png", "pictures").stdout.split()
    assert [Path(line).stem for line in printed] == [
        n for n in KINDS if n not in ("pareto_front", "rungs", "scaling", "wasted_work")
    ]
    for line in printed:
        image = Image.open(desk.folder / line)
        assert image.size[0] == 2000
        assert len(image.convert("RGB").getcolors(2**24) or []) > 20


def test_without_a_browser_pictures_are_refused_in_one_line(desk: Desk) -> None:
    done = desk.run("report", "population", "--png", "none", expect=2, BROWSER_PATH="/nonexistent")
    assert done.stderr.startswith(
        "regrow: PNGs need Chrome or Chromium, and none was found; install one"
    )
    assert done.stderr.count("\n") == 1


def test_a_report_replaces_a_report_and_nothing_else(desk: Desk) -> None:
    own = desk.folder / "own.html"
    own.write_text("<p>mine</p>")
    done = desk.run("report", "nasty", "--output", "own.html", expect=2)
    assert "is there already and is no report of regrow's" in done.stderr
    assert own.read_text() == "<p>mine</p>"
    assert desk.run("report", "nasty", "-o", "nasty.html").stdout.startswith("nasty.html (")
    assert desk.run("report", "nasty", "-o", ".", expect=2).stderr.count("\n") == 1
    assert "there is no experiment 'nast'" in desk.run("report", "nast", expect=2).stderr
    assert not list(desk.folder.glob(".*.html*")), "a half-written file was left"
