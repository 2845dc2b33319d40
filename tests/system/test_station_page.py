"""What people click in Prefect's page while a station is up: Retry, Cancel, Suspend, Resume. A custom
run, and what our page shows, is in test_station.py.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from regrow.apps.station.auto_restart import SILENT
from regrow.infra.state.passwords import USER
from tests.system.browser import SCREENSHOTS
from tests.system.conftest import TRAIN, Desk
from tests.system.test_station import (
    await_end,
    await_saved,
    browser_page,
    desk,
    driver_of,
    flow_run,
    look,
    the_station,
    wait_for,
)

__all__ = ["browser_page", "desk"]

SLOW: dict[str, Any] = {
    "train": TRAIN.replace("SECONDS", "0.5 if trial.attempt == 1 else 0.01"),
    "max_steps": 120,
    "trials": 2,
}
"""An experiment that nobody sees the end of who does not stop it, and which then soon has its
end.
"""
BROKEN = "def train(trial):\n    raise ValueError('not yet')\n"
HEALS = "regrow: a run whose driver was lost goes on"


def ask(desk: Desk, method: str, path: str, **body: Any) -> Any:
    """Asks Prefect's API, which says 503 while its sqlite file is busy: clients ask again."""
    url = f"{the_station(desk).prefect_api}/{path}"

    def answered() -> httpx.Response | None:
        answer = httpx.request(
            method, url, json=body or None, auth=(USER, desk.passwords.prefect), timeout=30
        )
        return answer if answer.status_code != 503 else None

    answer = wait_for(answered, f"{url} is busy")
    answer.raise_for_status()
    return answer.json() if answer.content else None


def open_run(page: Page, desk: Desk, name: str) -> dict[str, Any]:
    """Opens the page of a flow run, which Prefect's page then has as it is now."""
    run = flow_run(desk, name)
    page.goto(f"{the_station(desk).prefect_url}/runs/flow-run/{run['id']}")
    expect(page.get_by_text(name).first).to_be_visible()
    return run


def click(page: Page, button: str, confirm: str) -> None:
    """Presses a button of a flow run's page, and what its window asks for."""
    page.get_by_role("button", name=button, exact=True).first.click()
    window = page.locator(".p-modal")
    expect(window).to_be_visible()
    page.screenshot(path=SCREENSHOTS / f"station-asks-{button.lower()}.png")
    window.get_by_role("button", name=confirm, exact=True).last.click()
    expect(window).to_be_hidden()


def await_state(desk: Desk, name: str, state: str) -> dict[str, Any]:
    def reached() -> dict[str, Any] | None:
        run = flow_run(desk, name)
        return run if run["state"]["name"] == state else None

    return wait_for(reached, f"the flow run of {name} does not become {state}")


def gone_on(desk: Desk, name: str, before: dict[str, Any], *, runs: int = 2) -> None:
    """Checks that the same flow run continued from the log, and that nothing was done twice."""
    after = await_state(desk, name, "Completed")
    assert (after["id"], after["run_count"]) == (before["id"], runs)
    points = [(point["trial"], point["step"]) for point in desk.points(name)]
    assert len(points) == len(set(points)) == SLOW["trials"] * SLOW["max_steps"]
    assert {point["attempt"] for point in desk.points(name)} == {1, 2}, (
        "it continued from its checkpoints"
    )
    desk.look("verify", name)


def deployment(desk: Desk, name: str) -> dict[str, Any]:
    return dict(ask(desk, "GET", f"deployments/name/regrow/{name}"))


def scheduled(desk: Desk, name: str) -> str:
    """Starts a run of a schedule as a trigger does; the name of its experiment."""
    known = desk.folder / ".regrow"
    before = {one.name for one in known.glob(f"{name}-20*")}
    ask(desk, "POST", f"deployments/{deployment(desk, name)['id']}/create_flow_run", parameters={})
    return wait_for(
        lambda: next(
            (one.name for one in known.glob(f"{name}-20*") if one.name not in before), None
        ),
        "no run",
    )


@pytest.mark.nightly  # test_station.py loses drivers, and Retry is pressed below
def test_retry_of_a_terminals_run_whose_driver_was_killed(desk: Desk, browser_page: Page) -> None:
    (heals,) = ask(desk, "POST", "automations/filter", automations={"name": {"any_": [HEALS]}})
    ask(desk, "PATCH", f"automations/{heals['id']}", enabled=False)
    running = desk.start("run", desk.write("killed", **SLOW))
    desk.await_events("killed", "saved", 2, running)
    before = flow_run(desk, "killed")
    running.kill()  # its terminal would have it continue by itself
    running.communicate()
    os.kill(driver_of(desk, "killed"), signal.SIGKILL)
    ask(
        desk,
        "POST",
        f"flow_runs/{before['id']}/set_state",
        state={"type": "CRASHED", "message": SILENT},
        force=True,
    )
    open_run(browser_page, desk, "killed")
    look(browser_page, "crashed")
    click(browser_page, "Retry", "Retry")
    await_end(desk, "killed")
    gone_on(desk, "killed", before)
    ask(desk, "PATCH", f"automations/{heals['id']}", enabled=True)
    open_run(browser_page, desk, "killed")
    look(browser_page, "retried")
    browser_page.get_by_text("Task Runs", exact=True).first.click()
    look(browser_page, "retried-task-runs")


@pytest.mark.nightly  # test_station.py mends one, and Retry is pressed after Cancel below
def test_retry_of_a_scheduled_run_whose_trainable_was_mended(
    desk: Desk, browser_page: Page
) -> None:
    desk.run(
        "schedule",
        desk.write("nightly", train=BROKEN, trials=1, max_steps=2),
        "--cron",
        "0 2 * * *",
    )
    name = scheduled(desk, "nightly")
    before = await_state(desk, name, "Failed")
    desk.write("other", trials=1)  # work.py as it is to be
    open_run(browser_page, desk, name)
    look(browser_page, "failed")
    click(browser_page, "Retry", "Retry")
    after = await_state(desk, name, "Completed")
    assert (after["id"], after["run_count"]) == (before["id"], 2)
    assert desk.show(name)["counts"]["done"] == 1


@pytest.mark.nightly
def test_cancel_ends_a_run_with_a_checkpoint_and_retry_goes_on(
    desk: Desk, browser_page: Page
) -> None:
    running = desk.start("run", desk.write("cancelled", **SLOW))
    desk.await_events("cancelled", "saved", 2, running)
    before = open_run(browser_page, desk, "cancelled")
    click(browser_page, "Cancel", "Confirm")
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 3, said
    await_state(desk, "cancelled", "Stopped")
    open_run(browser_page, desk, "cancelled")
    look(browser_page, "cancelled")
    click(browser_page, "Retry", "Retry")
    await_end(desk, "cancelled")
    gone_on(desk, "cancelled", before)


@pytest.mark.nightly  # the same orders as Cancel and Retry
def test_suspend_ends_a_scheduled_run_with_a_checkpoint_and_resume_goes_on(
    desk: Desk, browser_page: Page
) -> None:
    desk.run("schedule", desk.write("paused", **SLOW), "--cron", "0 2 * * *")
    name = scheduled(desk, "paused")
    await_saved(desk, name)
    before = open_run(browser_page, desk, name)
    click(browser_page, "Suspend", "Submit")
    await_end(desk, name, "interrupted")
    await_state(desk, name, "Suspended")
    open_run(browser_page, desk, name)
    look(browser_page, "suspended")
    click(browser_page, "Resume", "Submit")
    await_end(desk, name)
    gone_on(desk, name, before, runs=1)  # Prefect does not count what was resumed
