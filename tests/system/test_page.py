"""The page of all experiments as its reader has it: served by a process of its own, looked at in
Chromium.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from regrow.infra.log.log import Log
from regrow.infra.state import passwords
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent, Reported, encode
from tests.system.browser import SCREENSHOTS
from tests.system.browser import chromium as installed
from tests.unit.figured import ASHA, AWAY, failed, run
from tests.unit.paged import logged, unclosed

NASTY = "</script><script>window.hurt=1</script><img src=x onerror=window.hurt=1>"
MANY = 2_000


@dataclass
class Served:
    """A page that is served, and an experiment that somebody runs meanwhile: what it has said, and
    what it is about to say.
    """

    url: str
    auth: tuple[str, str]
    process: subprocess.Popen[str]
    log: Log
    rest: Sequence[AnyEvent]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("state")
    now = time.time()

    def recent(events: Sequence[AnyEvent], ago: float) -> list[AnyEvent]:
        """The same a while ago: simulated time begins with 0."""
        shift = now - ago - events[-1].t
        return [_moved(event, shift) for event in events]

    rich = run(
        schedule=ASHA,
        trials=60,
        workers=4,
        machines=(*AWAY, *AWAY),
        checkpoint={"every_steps": 2},
        price_per_hour=3.0,
    )
    logged(root, "digits", recent(rich.events, 3600))
    logged(
        root,
        "digits-tpe",
        recent(
            run(schedule=ASHA, trials=60, search="tpe", max_steps=27, price_per_hour=3.0).events,
            86400,
        ),
    )
    logged(root, "nasty", recent(failed(2, message=f"ValueError: {NASTY}"), 600))
    logged(root, "many", recent(run(schedule=ASHA, trials=MANY, workers=8).events, 7200))
    live = recent(unclosed(run(trials=200).events), 0)
    half = len(live) // 3
    log = logged(root, "live", live[:half])
    command = [sys.executable, "-m", "regrow.apps.page", "--state", str(root), "--port", "0"]
    environment = {**os.environ, "REGROW_PAGE_PREFECT": "http://127.0.0.1:4200"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with driving(Places(root=str(root)), "live"):
            url = process.stdout.readline().strip()
            known = passwords.make(Places(root=str(root)).services)
            yield Served(
                url=url,
                auth=(passwords.USER, known.page),
                process=process,
                log=log,
                rest=live[half:],
            )
    finally:
        process.kill()
        process.communicate()


def _moved(event: AnyEvent, shift: float) -> AnyEvent:
    if isinstance(event, Reported):
        event = msgspec.structs.replace(
            event, rows=[msgspec.structs.replace(row, t=row.t + shift) for row in event.rows]
        )
    return msgspec.structs.replace(event, t=event.t + shift)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with installed() as browser:
        yield browser


class Looking:
    """A window on the page, and what went wrong in it."""

    def __init__(
        self,
        served: Served,
        browser: Browser,
        *,
        width: int = 1500,
        scheme: Any = "light",
        **given: Any,
    ) -> None:
        for looked_at in browser.contexts:  # else it would ask and draw on behind this one
            looked_at.close()
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **given
        )
        name, password = served.auth
        context.set_extra_http_headers(
            {"Authorization": f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"}
        )
        self.page: Page = context.new_page()
        self.page.set_default_timeout(60_000)
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

    @property
    def ground(self) -> int:
        """How bright the page's ground is, up to 255."""
        color = self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return max(map(int, re.findall(r"\d+", color)[:3]))

    def see_figures(self) -> None:
        """Scroll to each figure until it is drawn: one that is passed too quickly is not."""
        for place in self.page.locator(".plot").all():
            place.scroll_into_view_if_needed()
            expect(place).to_have_attribute("data-drawn", "yes", timeout=60_000)

    def keep(self, name: str) -> None:
        """A picture of the whole page, for people."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"page-{name}.png", full_page=True)


def test_what_comes_in_is_seen_without_a_reload_and_a_click_leads_to_the_trials(
    served: Served, chromium: Browser
) -> None:
    looking = Looking(served, chromium)
    page = looking.page
    page.goto(served.url)
    expect(page.locator("#list")).not_to_contain_text("Still being read", timeout=60_000)
    rows = page.locator("#list tbody th a[href^='/e/']")
    expect(rows.first).to_have_text("live")
    expect(rows).to_have_count(5)
    page.locator("input[value=digits]").check()
    page.locator("input[value=digits-tpe]").check()
    before = page.locator("tr.is-running .quiet").first.inner_text()
    served.log.append([encode(event) for event in served.rest])
    expect(page.locator("tr.is-running .quiet").first).not_to_have_text(before, timeout=30_000)
    expect(page.locator("input[value=digits]"), "what was ticked stays so").to_be_checked()
    looking.keep("index-light")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("svg.chart")).to_have_count(3)
    looking.keep("compare-light")
    page.goto(served.url)
    page.get_by_role("link", name="digits", exact=True).click()
    expect(page.locator("#trials tbody tr")).to_have_count(50)
    page.get_by_role("link", name="trial", exact=True).click()
    expect(page.locator("#trials tbody th").first).to_have_text("0")
    looking.see_figures()
    assert looking.ground > 200
    looking.keep("experiment-light")
    page.locator("#trials tbody th a").nth(3).click()
    expect(page.locator("h1")).to_contain_text("Trial 3")
    assert [
        url for url in looking.asked if not url.startswith((served.url, "data:", "blob:"))
    ] == []
    assert looking.wrong == []


def test_it_is_dark_where_that_is_wanted_and_fits_a_narrow_window(
    served: Served, chromium: Browser
) -> None:
    looking = Looking(served, chromium, width=400, scheme="dark")
    for name, path in (
        ("index", "/"),
        ("experiment", "/e/digits"),
        ("compare", "/compare?e=digits&e=digits-tpe"),
    ):
        looking.page.goto(served.url + path)
        if name == "experiment":
            looking.see_figures()
        assert looking.ground < 60
        assert looking.page.evaluate("document.documentElement.scrollWidth") <= 400, (
            f"{path} is to be scrolled sideways"
        )
        looking.keep(f"{name}-dark-400")
    assert looking.wrong == []


def test_what_users_wrote_does_nothing_and_nothing_needs_a_script(
    served: Served, chromium: Browser
) -> None:
    for scripts in (True, False):
        looking = Looking(served, chromium, java_script_enabled=scripts)
        for path in ("/e/nasty", "/e/nasty/t/1", "/compare?e=nasty&e=digits"):
            looking.page.goto(served.url + path)
            if scripts:
                assert looking.page.evaluate("window.hurt") is None
        looking.page.goto(f"{served.url}/e/nasty/t/1")
        expect(looking.page.locator("#attempts")).to_contain_text(NASTY)
        looking.page.goto(served.url)
        looking.page.get_by_role("link", name="digits", exact=True).click()
        expect(looking.page.locator("#trials tbody tr")).to_have_count(50)
        assert looking.wrong == []


def test_a_page_of_thousands_of_trials_is_small(served: Served) -> None:
    with httpx.Client(base_url=served.url, auth=served.auth, timeout=120) as client:
        while "Still being read" in client.get("/").text:
            pass
        for path in ("/", "/e/many", "/e/many?sort=number&page=30"):
            answer = client.get(path)
            assert (answer.status_code, len(answer.content) < 300_000) == (200, True), path
        assert f"of {MANY:,}" in client.get("/e/many").text


@pytest.mark.parametrize("scripts", [True, False])
def test_what_is_chosen_and_ticked_stands_in_the_address(
    served: Served, chromium: Browser, scripts: bool
) -> None:
    looking = Looking(served, chromium, java_script_enabled=scripts)
    page = looking.page
    page.goto(served.url)
    page.get_by_label("Name").fill("digits")
    page.get_by_label("Group by").select_option("state")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#list tbody th a[href^='/e/']")).to_have_count(2)
    expect(page.locator("#list th[scope=rowgroup]")).to_have_text("finished 2")
    page.locator("input[name=e][value=digits]").check()
    page.locator("input[name=e][value=digits-tpe]").check()
    if not scripts:
        page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("q=digits&.*e=digits&e=digits-tpe$"))
    page.reload()
    expect(page.locator("#list input:checked")).to_have_count(2)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("svg.chart")).to_have_count(3)
    page.get_by_role("link", name="Choose others").click()
    expect(page.locator("#list input:checked")).to_have_count(2)
    expect(page.get_by_label("Group by")).to_have_value("state")
    page.goto(f"{served.url}/e/digits?sort=number")
    page.locator("input[name=t]").nth(0).check()
    if scripts:
        following = page.locator("#trials").get_by_role("link", name="Next")
        expect(following).to_have_attribute("href", "?sort=number&t=0&page=2")
        following.click()
    else:
        page.get_by_role("button", name="Show").click()
        expect(page).to_have_url(re.compile("t=0"))
        page.locator("#trials").get_by_role("link", name="Next").click()
    expect(page.locator("#trials .ticked")).to_contain_text("trial 0")
    page.locator("input[name=t]").nth(1).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("svg.chart circle")).to_have_count(2)
    looking.keep(f"compare-trials-{'with' if scripts else 'without'}-scripts")
    page.get_by_role("link", name="Choose others").click()
    expect(page.locator("#trials input:checked")).to_have_count(2)
    assert looking.wrong == []


def test_it_ends_soon_after_sigterm(served: Served) -> None:
    served.process.send_signal(signal.SIGTERM)
    served.process.wait(timeout=30)
