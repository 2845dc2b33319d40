"""A run whose attempts speak through a relay: it comes when there are many, and goes without
loss.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.system.conftest import Desk
from tests.system.test_losses import kill
from tests.system.test_main_job import check_whole

pytestmark = pytest.mark.usefixtures("shared_prefect")

SLOW = """
import time
from pathlib import Path


def train(trial):
    for step in trial.steps():
        if not (Path(__file__).parent / "hurry").exists():
            time.sleep(0.2)
        trial.report({"score": step})
"""
FEW = """
from pathlib import Path

from regrow.flows.coordinator import callers
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.testing import Scheduler

callers.MANY = callers.MANY_OF_A_NODE = 1  # this module is loaded where the coordinator is, before it begins
report_all = Coordinator.report_all


async def noted(self, news, relay, lines=()):
    if news:
        with (Path(__file__).parent / "relayed").open("a") as file:
            file.write(f"{len(news)}\\n")
    return await report_all(self, news, relay, lines)


Coordinator.report_all = noted


class Straight(Scheduler):
    def first(self, trial, after):
        return None

    def decide(self, trial, values):
        raise AssertionError

    def tell(self, trial, values, verdict):
        pass
"""


def relayed(folder: Path) -> int:
    """Messages that came through a relay."""
    file = folder / "relayed"
    return sum(map(int, file.read_text().split())) if file.exists() else 0


def test_attempts_speak_through_a_relay_and_for_themselves_when_it_is_gone(desk: Desk) -> None:
    (desk.folder / "own_schedule.py").write_text(FEW)
    file = desk.write(
        "relayed", train=SLOW, trials=2, max_steps=300, schedule="own_schedule:Straight"
    )
    process = desk.start("run", file)
    while relayed(desk.folder) < 4:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    kill(desk.folder, "ray::RayRelay")
    desk.await_events("relayed", "reported", len(desk.events("relayed")) + 10, process)
    (desk.folder / "hurry").touch()
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    view = check_whole(desk, "relayed", 2)
    assert [len(trial["attempts"]) for trial in view["trials"]] == [1, 1], "nobody was lost with it"
