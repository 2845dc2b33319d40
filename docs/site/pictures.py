"""The pictures of the site: MLflow's page and the report of a real experiment. `make pictures`.

Runs examples/digits.yaml in a folder, kills one of its workers on the way, and takes pictures of
what `regrow ui` and `regrow report` show, with Chromium. Addresses in the pictures are those of the
folder: `make pictures ARGS="--folder /home/me"`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
REGROW = [sys.executable, "-m", "regrow"]
KILLED_AFTER = 12
"""Trials that have ended before a worker is killed."""


def run(folder: Path) -> None:
    """Runs the experiment; a worker of it is killed once, so that there is a loss to see."""
    for name in ("digits.py", "digits.yaml"):
        shutil.copy(ROOT / "examples" / name, folder)
    mark = f"REGROW_PICTURES={folder}"
    process = subprocess.Popen(
        [*REGROW, "run", "digits.yaml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "REGROW_PICTURES": str(folder)},
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="")  # noqa: T201 - it takes a minute or two
        if line.startswith(f"[{KILLED_AFTER}/"):
            os.kill(worker(mark), signal.SIGKILL)
    if process.wait() != 0:
        sys.exit("the experiment failed")


def worker(mark: str) -> int:
    """The process number of one of the experiment's workers, which bear the names of their
    trials.
    """
    while True:
        for entry in Path("/proc").iterdir():
            try:
                trains = entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(
                    b"ray::trial-"
                )
                if trains and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    return int(entry.name)
            except OSError:
                continue
        time.sleep(0.05)


def of_mlflow(browser: Any, folder: Path) -> None:
    """The page that `regrow ui digits` opens."""
    ui = subprocess.Popen(
        [*REGROW, "ui", "digits", "--no-browser"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert ui.stdout is not None
        said = iter(ui.stdout.readline, "")
        address = next(m[1] for line in said if (m := re.match(r"MLflow: +(\S+)", line)))
        trials_page(browser, address)
    finally:
        ui.send_signal(signal.SIGINT)
        ui.wait()


def trials_page(browser: Any, address: str) -> None:
    """MLflow's page at this address, when it has drawn everything."""
    page = browser.new_page(viewport={"width": 1440, "height": 860})
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector("text=trial-00")
    # Its assistant's panel, which MLflow opens by itself, has nothing to do with the experiment.
    page.wait_for_selector("text=Ask questions about your")
    page.locator(
        "xpath=//*[text()[.='MLflow Assistant']]/ancestor::*[.//button][1]//button"
    ).last.click()
    page.wait_for_selector("text=Ask questions about your", state="hidden")
    page.wait_for_selector(".js-plotly-plot .main-svg")
    # its charts take their places one by one, and nothing says when the last one has
    page.wait_for_timeout(3000)
    page.screenshot(path=IMAGES / "mlflow.png")
    page.close()


def of_report(browser: Any, folder: Path) -> None:
    """The head of the report with its first figures."""
    file = folder / "digits.html"
    subprocess.run([*REGROW, "report", "digits"], cwd=folder, check=True)
    page = browser.new_page(viewport={"width": 1280, "height": 1440}, color_scheme="light")
    page.goto(file.as_uri())
    page.wait_for_selector("svg.main-svg, canvas")
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / "report.png")
    page.close()


def main() -> None:
    """Takes all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where to run; an experiment that is there already is taken",
    )
    given: Path | None = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as empty, sync_playwright() as playwright:
        folder = (given or Path(empty)).resolve()
        if not (folder / ".regrow" / "digits").is_dir():
            run(folder)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        of_mlflow(browser, folder)
        of_report(browser, folder)
        browser.close()


if __name__ == "__main__":
    main()
