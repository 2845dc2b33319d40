"""Chromium for the tests that look at pages; a machine that has none skips them, and says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Kept for people: what the pages looked like in this run."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that is installed, headless."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium or Chrome is installed")
    with sync_playwright() as playwright:
        # Without the sandbox, which root may not have.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def empty_page(*, height: int) -> Iterator[Page]:
    """A page that is 1500 pixels wide; what is awaited on it is awaited for a minute."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1500, "height": height})
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield page
