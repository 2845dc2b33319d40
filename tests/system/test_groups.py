"""Groups of workers whose processes are killed, stopped and told to end while a checkpoint is on
its way, at each of its transitions.

The state is in S3, behind a proxy that holds single requests: so a kill comes exactly where it is
meant to. One experiment for all: its one trial loses an attempt at each of them.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from regrow.infra.local import s3_server
from regrow.infra.state.places import Places
from regrow.tasks.checkpoint.manifests import blob_key, manifest_key
from regrow.tasks.ports.store import Store
from tests.contract.s3_proxy import Hold, Proxy, Where, proxied
from tests.system import shares
from tests.system.conftest import Desk, await_no_process
from tests.system.grouped import END, alive, event, events, ranks, scores, until, wait, write
from tests.system.test_main_job import check_whole
from tests.system.test_s3 import Cloud, cloud

pytestmark = pytest.mark.usefixtures("shared_prefect")

X, LEASE = 3.0, 8.0


def key(attempt: int, rank: int, step: int) -> str:
    """The blob of a rank's file."""
    done = [(k, 0, shares.added(k, 0, X)) for k in range(1, step + 1)]
    data = shares.content(step, shares.share_of(rank, 2, done)).encode()
    return blob_key(0, attempt, hashlib.sha256(data).hexdigest())


@dataclass
class Scene:
    """An attempt that has committed the checkpoint of the step before `step`, and is about to save
    that of `step`.
    """

    cloud: Cloud
    process: subprocess.Popen[str]
    proxy: Proxy
    store: Store
    attempt: int
    step: int
    holds: list[Hold] = field(default_factory=list)

    def hold_blob(self, rank: int, where: Where = Where.BEFORE) -> None:
        """The part of that rank comes no further than `where`."""
        self.holds.append(self.proxy.hold("PUT", key(self.attempt, rank, self.step), where))

    def hold_manifest(self, where: Where = Where.BEFORE) -> None:
        """The commit comes no further than `where`."""
        self.holds.append(self.proxy.hold("PUT", manifest_key(0, self.attempt, self.step), where))

    def durable(self, rank: int) -> None:
        """Returns once that rank's part is."""
        wait(
            self.process,
            lambda: (
                key(self.attempt, rank, self.step) in self.store.list(f"blobs/0/{self.attempt}/")
            ),
            "a part",
        )


def before(scene: Scene, rank: int) -> None:
    """Snapshots are made, nothing is sent."""
    scene.hold_blob(0)
    scene.hold_blob(1)


def half(scene: Scene, rank: int) -> None:
    """Half of its part is sent, the other's is durable."""
    scene.hold_blob(rank, Where.HALF)


def own(scene: Scene, rank: int) -> None:
    """Its part is durable, nothing of the other's is."""
    scene.hold_blob(1 - rank)


def all_but_the_manifest(scene: Scene, rank: int) -> None:
    """All parts are durable, nothing is committed."""
    scene.hold_manifest()


def unheard(scene: Scene, rank: int) -> None:
    """It is committed, and nobody was told."""
    scene.hold_manifest(Where.AFTER)


def told(scene: Scene, rank: int) -> None:
    """It is committed, and in the log."""


Moment = Callable[[Scene, int], None]
MOMENTS: list[Moment] = [before, half, own, all_but_the_manifest, unheard, told]
DURABLE: dict[Moment, Callable[[int], int]] = {half: lambda rank: 1 - rank, own: lambda rank: rank}
CUTS = [
    (moment, rank, signal.SIGKILL)
    for moment in MOMENTS
    for rank in (0, 1)
    if (moment, rank) != (unheard, 1)
]
STOPPED = (told, 1, signal.SIGSTOP)
BY_DAY = [(half, 0, signal.SIGKILL), (unheard, 0, signal.SIGKILL), STOPPED]
"""Requests that are cut on their way, of rank 0, which commits, and a rank that falls silent."""
CUTS += [STOPPED]


@pytest.fixture
def proxy(s3_server_of_session: s3_server.S3Server) -> Iterator[Proxy]:
    with proxied(s3_server_of_session.port) as between:
        yield between


@pytest.fixture
def sky(
    desk: Desk,
    s3: str,
    s3_server_of_session: s3_server.S3Server,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> Cloud:
    """What is started has its state behind the proxy; the test looks at it past that."""
    place = cloud(desk, s3_server_of_session, s3, monkeypatch)
    place.environment["AWS_ENDPOINT_URL_S3"] = proxy.endpoint
    return place


def lose(scene: Scene, rank: int, how: signal.Signals) -> tuple[dict[str, Any], dict[str, float]]:
    """Does that to a rank; the next attempt's beginning, and how long it took: until nothing of the
    old attempt was left, until the new one's ranks ran in its place, and until it had begun.
    """
    old = ranks(scene.cloud)
    assert old.keys() == {0, 1}
    os.kill(old[rank], how)
    began, took = time.time(), dict[str, float]()
    wait(
        scene.process,
        lambda: not any(map(alive, old.values())),
        "the end of all of the old attempt",
    )
    took["gone"] = time.time() - began

    def successors() -> bool:
        found = ranks(scene.cloud)
        return found.keys() == {0, 1} and not set(found.values()) & set(old.values())

    wait(scene.process, successors, "processes of the next attempt")
    took["successors"] = time.time() - began
    found = event(scene.cloud, scene.process, "cuts", "began", attempt=scene.attempt + 1)
    return found, {**took, "began": found["t"] - began}


# In one process test_crash_equivalence.py loses rank 1 at each transition of a checkpoint, and rank 0 at some: so
# what stands between two requests is left to the night.
@pytest.mark.parametrize(
    "cuts", [BY_DAY, pytest.param(CUTS, marks=pytest.mark.nightly)], ids=["by day", "by night"]
)
def test_a_rank_that_is_lost_at_any_moment_of_a_checkpoint_costs_what_was_not_committed_and_nothing_else(
    sky: Cloud, proxy: Proxy, cuts: list[tuple[Moment, int, signal.Signals]]
) -> None:
    steps = 3 * len(cuts) + 1  # each attempt adds one or two
    file = write(sky, "cuts", points=[{"x": X}], max_steps=steps, lease=LEASE)
    process = sky.start("run", file)
    store = Places.at(sky.environment["REGROW_STATE"]).store("cuts")
    restored = 0
    for attempt, (moment, rank, how) in enumerate(cuts, 1):
        scene = Scene(sky, process, proxy, store, attempt, restored + 2)
        moment(scene, rank)
        until(sky, scene.step)
        event(sky, process, "cuts", "saved", attempt=attempt, step=scene.step - 1)
        for hold in scene.holds:
            wait(process, hold.came.is_set, f"a request of step {scene.step}")
        if moment in DURABLE:
            scene.durable(DURABLE[moment](rank))
        if moment is told:
            event(sky, process, "cuts", "saved", attempt=attempt, step=scene.step)
        found, took = lose(scene, rank, how)
        seconds = ", ".join(f"{name} {t:.1f} s" for name, t in took.items())
        print(f"{how.name} of rank {rank}, {moment.__doc__} {seconds}")
        assert "skipped" not in found, found
        assert found["restored"] == scene.step - (moment is not told), moment
        for hold in scene.holds:  # what was on its way comes, when nobody waits for it any more
            if hold.where is Where.HALF:
                hold.drop()
            else:
                hold.release()
        restored = found["restored"]

    until(sky, restored + 2)
    event(sky, process, "cuts", "saved", attempt=len(cuts) + 1, step=restored + 2)
    process.kill()
    process.communicate()
    assert await_no_process(sky.folder) == []
    until(sky, END)
    sky.run("resume", "cuts")

    view = check_whole(sky, "cuts", 1)
    assert [p["score"] for p in sky.points("cuts")] == scores(X, steps)
    outcomes = [a["outcome"] for a in view["trials"][0]["attempts"]]
    assert outcomes == ["lost"] * (len(cuts) + 1) + ["done"]
    assert view["trials"][0]["attempts"][-1]["from_step"] == restored + 2
    lost = events(sky, "cuts", "ended", outcome="lost")
    assert {e["cause"] for e in lost[:-1]} == {"infrastructure"}
    for (_, rank, _), e in zip(cuts, lost, strict=False):
        assert e["message"].startswith("rank 1") == (rank == 1), e
    kept = {manifest_key(0, e["attempt"], e["step"]) for e in events(sky, "cuts", "saved")}
    assert set(store.list("manifests/")) < kept, "what nobody was told of is gone"
    assert await_no_process(sky.folder) == []
