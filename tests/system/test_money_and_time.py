"""Limits of money and time on a cluster whose spot nodes come and go, and whose driver is killed:
they are kept, everything is saved before, and more money continues it.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.log.reading import replay
from regrow.tasks.checkpoint.saving import restore_one
from tests.system.conftest import Desk
from tests.system.hosts import RayCluster, await_, ray_cluster

CAP, DEADLINE, FURTHER, LEASE = 0.05, 90.0, 60.0, 5.0
PRICES = {"head": 0.6, "on-demand": 1.8, "spot": 1.2}
"""An hour. All four nodes together use the cap up in 37 s."""
ADDRESS = "127.0.0.1"
SEED = 11


def start(cluster: RayCluster, name: str) -> None:
    """Starts a node of the market with which its name begins."""
    market = name.rpartition("-")[0] or name
    kind = "spot" if market == "spot" else "on-demand"
    labels = f"--labels=ray.io/market-type={kind},regrow.io/price={PRICES[market]}"
    cpus = 0 if market == "head" else 1
    cluster.start(name, address=ADDRESS, cpus=cpus, options=lambda _: [labels])


@contextmanager
def coming_and_going(cluster: RayCluster) -> Iterator[None]:
    """Within the block, one of two spot nodes after the other is killed, and another one comes
    after some seconds; by a trace that depends on a seed alone.
    """
    over, chance, there = threading.Event(), random.Random(SEED), ["spot-0", "spot-1"]
    for name in there:
        start(cluster, name)

    def change() -> None:
        for number in range(2, 100):
            if over.wait(chance.uniform(7.0, 14.0)):
                return
            cluster.lose(there.pop(chance.randrange(2)))
            if over.wait(chance.uniform(1.0, 4.0)):
                return
            there.append(f"spot-{number}")
            start(cluster, there[-1])

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def cluster(desk: Desk) -> Iterator[RayCluster]:
    """A head without slots, an on-demand node, and two spot nodes that come and go; where the desk's
    experiments run.
    """
    with ray_cluster(desk.environment) as found:
        start(found, "head")
        start(found, "on-demand-0")
        desk.environment |= found.environment
        with coming_and_going(found):
            yield found


def await_used(
    desk: Desk, name: str, limit: str, percent: int, process: subprocess.Popen[str]
) -> None:
    """Returns once so much of a limit is used, or the process has ended."""

    def passed() -> bool:
        history = replay(desk.places.store(name))
        used = [one.percent for one in history.milestones if one.limit == limit]
        return process.poll() is not None or max(used, default=0) >= percent

    await_(passed, f"{percent} % of {limit}", 180.0)


def created(desk: Desk, name: str) -> float:
    found: float = next(e["t"] for e in desk.events(name) if e["event"] == "created")
    return found


def write(desk: Desk, name: str, stop: dict[str, Any]) -> Path:
    """An experiment without an end but `stop`, whose trials take as long as a spot node lives."""
    return desk.write(
        name, seconds=0.3, trials=None, concurrency=None, max_steps=40, lease=LEASE, stop=stop
    )


def kill(driver: subprocess.Popen[str]) -> None:
    """SIGKILL."""
    assert driver.poll() is None
    driver.kill()
    driver.wait()


def check_paused(desk: Desk, name: str) -> dict[str, Any]:
    """A limit has ended it; everything recomputes, and what was done is saved and
    can be restored.
    """
    assert "decisions recomputed, all as recorded" in desk.look("verify", name)
    view = desk.show(name)
    assert view["status"] == "finished"
    (closing,) = [e for e in desk.events(name) if e["event"] == "closing"][-1:]
    assert closing["limit"]
    store = desk.places.store(name)
    for trial in replay(store).trials:
        if trial.checkpoints:
            folder = desk.folder / f"restored-{closing['t']}-{trial.number}"
            restore_one(store, trial.checkpoints[max(trial.checkpoints)].manifest, folder)
            assert any(folder.iterdir())
        if trial.state.value == "paused":
            assert trial.step == max(trial.checkpoints, default=0), trial
    return view


def check_money(view: dict[str, Any], cap: float, *, at_least: float = CAP / 2) -> None:
    """It has cost no more than the cap, but for a lease of the cluster; head and idle nodes
    counted.
    """
    spent = view["cost"] + view["cost_outside_attempts"]
    assert view["limits"]["spent"] == pytest.approx(spent, abs=1e-5)
    assert view["cost_outside_attempts"] > 0
    assert at_least < spent <= cap + LEASE * (sum(PRICES.values()) + PRICES["spot"]) / 3600
    print(f"spent {spent:.4f} of {cap}")


def check_in_time(desk: Desk, name: str, end: float) -> None:
    """All trials had ended before the deadline, and the report was there."""
    closed = max(e["t"] for e in desk.events(name) if e["event"] == "closed")
    (report,) = (desk.folder / ".regrow" / ".services").rglob("report.html")
    print(f"closed {end - closed:.1f} s, report {end - report.stat().st_mtime:.1f} s before")
    assert closed < end
    assert report.stat().st_mtime < end


# By day the how-to page ends and raises both on one machine (test_docs.py), and tests/faults cuts limits
# at each kind of transition.
@pytest.mark.nightly
def test_money_and_a_deadline_are_kept_where_nodes_and_the_driver_are_killed(
    desk: Desk, cluster: RayCluster
) -> None:
    driver = desk.start("run", write(desk, "kept", {"dollars": CAP, "deadline": DEADLINE}))
    await_used(desk, "kept", "stop.dollars", 50, driver)
    desk.await_events("kept", "saved", 1, driver)
    kill(driver)
    desk.run("resume", "kept")
    view = check_paused(desk, "kept")
    check_money(view, CAP)
    assert any(trial["steps"] for trial in view["trials"])
    left = {trial["number"]: trial["steps"] for trial in view["trials"]}

    end = datetime.fromtimestamp(time.time() + FURTHER, UTC)
    desk.run("resume", "kept", "--dollars", 1, "--deadline", end.isoformat())
    view = check_paused(desk, "kept")
    check_in_time(desk, "kept", end.timestamp())
    check_money(view, 1.0, at_least=CAP / 2)
    assert all(trial["steps"] >= left.get(trial["number"], 0) for trial in view["trials"])


@pytest.mark.nightly  # the test above has the resumption, and kills the driver near the cap
def test_a_deadline_is_kept_where_the_driver_is_killed_shortly_before(
    desk: Desk, cluster: RayCluster
) -> None:
    # a start takes up to a minute at a load of 15 on two cores
    driver = desk.start("run", write(desk, "late", {"deadline": 2 * DEADLINE}))
    await_used(desk, "late", "stop.deadline", 50, driver)
    kill(driver)
    desk.run("resume", "late")
    check_paused(desk, "late")
    check_in_time(desk, "late", created(desk, "late") + 2 * DEADLINE)


@pytest.mark.nightly  # the kill is in tests/faults
@pytest.mark.usefixtures("shared_prefect")
def test_a_step_that_is_longer_than_what_is_left_is_killed_at_the_limit(desk: Desk) -> None:
    train = """
import time


def train(trial):
    done = len((trial.restored / "done").read_text()) if trial.restored else 0
    for step in trial.steps():
        time.sleep(1.0 if step < 4 else 1000.0)
        done += 1
        trial.report({"score": done}, checkpoint=lambda folder: (folder / "done").write_text(done * "x"))
"""
    file = desk.write("long", train=train, trials=1, max_steps=6, stop={"deadline": 25})
    desk.run("run", file)
    assert time.time() < created(desk, "long") + 60  # nobody has waited for the step
    (ended,) = [e for e in desk.events("long") if e["event"] == "ended"]
    assert (ended["outcome"], ended["step"]) == ("lost", 3)
    assert check_paused(desk, "long")["wasted_steps"] == 0
