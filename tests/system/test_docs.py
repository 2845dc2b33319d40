"""The documentation: every command of every page is typed as a reader would, the site builds, its
pages ask no network.
"""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.browser import chromium
from tests.system.reader import ROOT, Page, Reader, pages

SERVERS = "docs/how-to/servers.md"
FOLLOWED = sorted(
    (page for page in pages() if page.has_commands),
    key=lambda page: SERVERS in (page.name, page.after),
)
"""With the servers last: what that page starts runs to the end, and would take its share of the
machine from the others.
"""


class Readers:
    """One reader a folder; pages that continue from another one are followed in its folder, after
    it.
    """

    def __init__(self, root: Path, prefect: dict[str, str]) -> None:
        self._root = root
        self._prefect = prefect
        self._readers: dict[str, Reader] = {}
        self._pages = {page.name: page for page in pages()}
        self.followed: set[str] = set()

    def follow(self, page: Page) -> None:
        """Follows it, and before it what it continues from, once."""
        if page.name in self.followed:
            return
        if page.after is not None:
            self.follow(self._pages[page.after])
            reader = self._readers[page.after]
        else:
            folder = self._root / page.name.replace("/", "-")
            folder.mkdir()
            reader = Reader.at(folder)
        self._readers[page.name] = reader
        self.followed.add(page.name)
        own = reader.environment
        if page.name not in AT_NIGHT:
            reader.environment = {**own, **self._prefect}
        reader.follow(page)
        reader.environment = own

    def leave(self) -> None:
        """Ends what is left of all of them."""
        for reader in self._readers.values():
            reader.leave()


@pytest.fixture(scope="module")
def readers(
    tmp_path_factory: pytest.TempPathFactory, prefect_of_session: dict[str, str]
) -> Iterator[Readers]:
    found = Readers(tmp_path_factory.mktemp("docs"), prefect_of_session)
    yield found
    found.leave()


AT_NIGHT = {
    f"docs/how-to/{name}.md"
    for name in (
        "agents",
        "automations",
        "coming-from-optuna",
        "coming-from-ray-tune",
        "coming-from-wandb",
        "estimate",
        "export",
        "failing-trial",
        "frameworks",
        "housekeeping",
        "mlflow",
        "money-and-time",
        "nested-tasks",
        "one-trial",
        "pbt",
        "processes",
        "s3",
        "schedules",
        "scripts",
        "serve",
        "serve-station",
        "servers",
        "several-metrics",
        "station",
        "stop-early",
        "task-runner",
        "warm-start",
        "watch",
    )
}
"""Pages of whose commands another file of this folder has more (test_mlflow_run.py and so on), or
those of tests/unit that look at what they print (test_estimate_command.py, test_limits.py,
test_budget.py, test_several_metrics.py); and two that continue from such a page. By day
tests/unit/test_docs_pages.py reads the commands, options, scripts and specifications of all pages.
"""


def cases() -> list[Any]:
    """The pages as pytest's parameters."""
    return [
        pytest.param(
            page, id=page.name, marks=[pytest.mark.nightly] if page.name in AT_NIGHT else []
        )
        for page in FOLLOWED
    ]


@pytest.mark.timeout(900)  # a page is several experiments, and may bring those before it
@pytest.mark.parametrize("page", cases())
def test_every_command_of_the_page_does_what_it_says(page: Page, readers: Readers) -> None:
    readers.follow(page)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_the_site_builds_and_holds_every_page(site: Path) -> None:
    expected = {
        page.path.relative_to(ROOT / "docs").with_suffix(".html")
        for page in pages()
        if page.path.name != "README.md"
    }
    assert {p for p in expected if not (site / p).is_file()} == set()
    assert not [p for p in site.rglob("*.html") if "<!-- test:" in p.read_text()]


def test_its_pages_ask_nobody_but_the_site_and_the_console_is_quiet(site: Path) -> None:
    handler = functools.partial(Quiet, directory=str(site))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        chromium() as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}/"
        asked: list[str] = []
        said: list[str] = []
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on(
            "console",
            lambda message: said.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: said.append(str(error)))
        for name in (
            "index.html",
            "tutorial.html",
            "architecture.html",
            "reference/specification.html",
        ):
            page.goto(base + name, wait_until="networkidle")
            broken = "[...document.images].filter(i => i.complete && !i.naturalWidth && i.offsetParent).map(i => i.src)"
            assert page.evaluate(broken) == []
            wide = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{name} scrolls sideways"
        server.shutdown()
    assert [url for url in asked if not url.startswith((base, "data:"))] == []
    assert said == []


def test_its_search_finds_a_page_from_the_disk(site: Path) -> None:
    with chromium() as browser:
        page = browser.new_context(offline=True).new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").click()
        page.keyboard.type("preempted spot machines")
        found = page.locator(".md-search-result__link", has_text="Spot")
        found.first.click(timeout=30_000)
        page.wait_for_url("**/how-to/spot.html*")
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass
