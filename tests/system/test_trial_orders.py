"""Beside the driver: one is stopped and one dropped by `regrow trial`, Ctrl-C ends `regrow watch`
alone; and one is run again.
"""

from __future__ import annotations

import signal

import pytest

from regrow.infra.state.places import Places
from regrow.infra.state.presence import signs
from tests.system.conftest import Desk

TRAIN = """
import time
from pathlib import Path

def train(trial):
    for step in trial.steps():
        trial.report({"score": trial.config["x"] * step})
        while trial.number == 0 and not Path("FOLDER/on").exists():
            time.sleep(0.02)
"""


@pytest.mark.usefixtures("shared_prefect")
def test_one_is_stopped_and_one_dropped_while_it_runs_and_the_best_is_run_again(desk: Desk) -> None:
    file = desk.write(
        "written",
        train=TRAIN.replace("FOLDER", str(desk.folder)),
        space={"x": {"uniform": [0.1, 1.0]}},
        trials=5,
        max_steps=9,
        concurrency=2,
        checkpoint=None,
    )
    process = desk.start("run", file, "--name", "orders", "--set", "max_steps=4")
    desk.await_events("orders", "ended", 2, process)
    store = Places.at(str(desk.folder / ".regrow")).store("orders")
    assert signs(store), "colleagues of a shared folder do not see this user's locks"
    watching = desk.start("watch", "orders")
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("orders: ")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(timeout=30) == 0
    assert watching.stdout.read().endswith("orders is watched no longer, and continues as it was\n")
    said = desk.run("trial", "orders", "0", "--stop", "--yes").stdout
    assert "trial 0 of orders: stopped" in said
    desk.run("trial", "orders", "1", "--drop", "--yes")
    assert "nothing to do" in desk.run("trial", "orders", "0", "--stop", "--yes").stdout
    (desk.folder / "on").touch()
    told, _ = process.communicate(timeout=200)
    assert process.returncode == 0, told
    assert "the user stopped trial 0" in told
    ends = {e["trial"]: e["outcome"] for e in desk.events("orders") if e["event"] == "ended"}
    assert ends == {0: "stopped", **dict.fromkeys(range(1, 5), "done")}
    assert {p["step"] for p in desk.points("orders")} == {1, 2, 3, 4}
    assert "stopped at step 1: the user stopped it" in desk.look("trial", "orders", 0)
    desk.look("verify", "orders")
    wrong = desk.run("trial", "orders", "2", "--again", "--set", "trails=3", expect=2).stderr
    assert "trails" in wrong
    again = ("trial", "orders", "2", "--again", "--seeds", "2", "--max-steps", "6")
    said = desk.run(*again, "--set", "x=0.5", REGROW_STATE=str(desk.folder / ".regrow")).stdout
    assert "orders-trial2: the configuration of trial 2 of orders, 2 times" in said
    points = desk.points("orders-trial2")
    assert [p["score"] for p in points if p["trial"] == 1] == [0.5 * step for step in range(1, 7)]
    assert {p["trial"] for p in points} == {0, 1}
