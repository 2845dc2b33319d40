r"""Ten thousand attempts at a time and one coordinator, a million trials and one planner, a
thousand attempts lost at once.

    python benchmarks/scale.py [--only load,planner,losses] [--attempts 10000] [--nodes 300] \
        [--reports 20000] [--seconds 60]

* load: attempts on so many nodes report, together, so many steps a second to a real coordinator (a
  Ray actor) for a while: through one relay a node, and, as before there were any, each by itself
  every 0.25 s, to a log that is written as often as it can be. The relays are the real ones, each
  with its own calls to the coordinator; what is simulated is the training, and that attempts and
  relays are coroutines of a few processes rather than processes of their own. That favours those
  without a relay: the coordinator has a few connections instead of one from each attempt. *Lag*:
  from a report to when it is durable. *Decision*: how long an attempt waits for the answer to an
  urgent message. *Instructions*: how long the driver does.
* planner: so many trials of at most 9 steps under ASHA with random search, without log and Ray:
  seconds of CPU and memory.
* losses: so many running attempts are lost at once, out of 1, 3 and 10 times as many; CPU of the
  coordinator's logic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray

from regrow.flows.coordinator.actor import start_coordinator
from regrow.flows.coordinator.claim import SessionOpening
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.flows.coordinator.relay import WAITING, RayRelay
from regrow.infra.ray.cluster import connect, disconnect
from regrow.infra.stores.local import LocalStore
from regrow.search.events import (
    Began,
    Created,
    Ended,
    Opened,
    Outcome,
    Reported,
    Row,
    Started,
)
from regrow.search.planning.planner import Planner
from regrow.search.spec import Spec
from regrow.tasks.ports.messages import Progress, Reply
from regrow.tasks.trial.reporter import FLUSH_SECONDS, LEASE_SECONDS
from tests.memory_store import MemoryStore

RESULTS = Path(__file__).parent / "results" / "scale.json"
FARMS = 2
"""Processes that hold the simulated attempts and their relays."""
WARM_SECONDS = 20.0
"""Before the measurement: all attempts begin at once, which they hardly do in earnest."""
URGENT_EVERY = 20
"""One message of so many waits for a decision."""
PUT_DOLLARS = 0.005 / 1000
REQUEST_SECONDS = 0.05
"""What a PUT takes."""
SPEC: dict[str, Any] = {
    "name": "scale",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0.0, 1.0]}},
    "search": "random",
}
Say = Callable[[Progress], Awaitable[Reply]]


def _opening(spec: Spec, *, slots: int) -> SessionOpening:
    return SessionOpening(
        created=Created(t=0.0, id=str(uuid4()), spec=spec.to_json()),
        opened=Opened(t=0.0, by="driver", driver="", slots=slots, trials=0),
    )


def _began(trial: int, node: str) -> Began:
    return Began(t=0.0, trial=trial, attempt=1, node=node, node_id=node, task_run=f"run-{trial}")


class Bucket(LocalStore):
    """A folder that behaves like a bucket: a write takes a while, and is better gathered."""

    gather_seconds = 0.5

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (Path(str(self)),)

    def create(self, key: str, data: bytes | Path) -> None:
        """See Store."""
        time.sleep(REQUEST_SECONDS)
        super().create(key, data)


class Eager(Bucket):
    """One that every write goes to at once."""

    gather_seconds = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Eager, (Path(str(self)),)


@dataclass(kw_only=True)
class Heard:
    """What the attempts of a process saw within the measurement: seconds, but for `reports`."""

    reports: int = 0
    lags: list[float] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    fenced: int = 0


class Farm:
    """A process with some nodes' attempts. An async actor."""

    def __init__(
        self, coordinator: Any, nodes: Sequence[tuple[str, Sequence[int]]], *, relayed: bool
    ) -> None:
        self._coordinator, self._nodes, self._relayed = coordinator, nodes, relayed
        self._heard = Heard()

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    async def run(self, rate: float, seconds: float) -> Heard:
        """Lets all of them report `rate` steps a second each; what they saw in the last
        `seconds`.
        """
        self._from = asyncio.get_running_loop().time() + WARM_SECONDS
        lives = []
        for node, trials in self._nodes:
            relay = RayRelay(self._coordinator, f"relay-{node}")
            say: Say = relay.report if self._relayed else self._coordinator.report.remote
            lives += [self._live(trial, node, say, rate, self._from + seconds) for trial in trials]
        await asyncio.gather(*lives)
        return self._heard

    async def _live(self, trial: int, node: str, say: Say, rate: float, until: float) -> None:
        """As `tasks/trial/reporter.py` does it: what has gathered is sent once the last message was
        answered and a pause is over.
        """
        loop, chance = asyncio.get_running_loop(), random.Random(trial)
        began = loop.time() + chance.random()
        await asyncio.sleep(began - loop.time())
        reply = await say(
            Progress(
                trial=trial,
                attempt=1,
                began=_began(trial, node),
            )
        )
        step, said = 0, loop.time()
        while loop.time() < until:
            await asyncio.sleep(max(FLUSH_SECONDS, reply.pace if self._relayed else 0.0))
            now = loop.time()
            steps = range(step + 1, int((now - began) * rate) + 1)
            if not steps and now - said < LEASE_SECONDS:
                continue
            urgent = chance.randrange(URGENT_EVERY) == 0
            rows = tuple(Row(n, now, {"score": n / (n + 10)}) for n in steps)
            reply = await say(Progress(trial=trial, attempt=1, rows=rows, urgent=urgent))
            step, said = step + len(steps), loop.time()
            if self._from <= said < until:
                self._heard.fenced += reply.reason == "fenced"
                self._heard.reports += len(steps)
                self._heard.lags += [said - began - n / rate for n in steps]
                self._heard.decisions += [said - now] if urgent else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run of `load` measured. CPU in cores, by process."""

    reports_a_second: float
    lag: tuple[float, float]
    """Median and 95 % of seconds."""
    decision: tuple[float, float]
    instructions: tuple[float, float]
    fenced: int
    writes_a_second: float
    coordinator_cores: float
    farms_cores: float
    coordinator_mb: tuple[float, float]
    """At the beginning of the measurement, and at its end."""
    farm_mb: float

    @property
    def dollars(self) -> float:
        """An hour, for the requests that write the log."""
        return self.writes_a_second * 3600 * PUT_DOLLARS

    @property
    def bytes_a_report(self) -> float:
        """By which the coordinator grew."""
        return (
            (self.coordinator_mb[1] - self.coordinator_mb[0])
            * 1e6
            / max(1.0, self.reports_a_second * self.seconds)
        )

    seconds: float


def load(attempts: int, nodes: int, reports: float, seconds: float, *, relayed: bool) -> Load:
    """One run, in the cluster that there is."""
    with tempfile.TemporaryDirectory(prefix="regrow-scale-") as folder:
        store = (Bucket if relayed else Eager)(Path(folder))
        spec = Spec.parse(
            {
                **SPEC,
                "schedule": "fifo",
                "trials": attempts,
                "concurrency": attempts,
                "max_steps": 10**6,
            }
        )
        opening = _opening(spec, slots=attempts)
        coordinator, _ = start_coordinator(store, opening, name=f"scale-{uuid4()}")
        submitted = ray.get(coordinator.instructions.remote(60.0)).submit
        assert len(submitted) == attempts
        homes = [(f"node-{n}", [one.trial for one in submitted[n::nodes]]) for n in range(nodes)]
        kind: Any = ray.remote(Farm)
        farms = [
            kind.options(num_cpus=0, max_concurrency=WAITING).remote(
                coordinator, homes[n::FARMS], relayed=relayed
            )
            for n in range(FARMS)
        ]
        pids = ray.get(
            [
                coordinator.__ray_call__.remote(lambda _: os.getpid()),
                *[farm.pid.remote() for farm in farms],
            ]
        )
        running = [farm.run.remote(reports / attempts, seconds) for farm in farms]
        time.sleep(WARM_SECONDS)
        before, writes, began = [usage(pid) for pid in pids], segments(folder), time.monotonic()
        polls = polled(coordinator, began + seconds)
        took = time.monotonic() - began
        after, written = [usage(pid) for pid in pids], segments(folder) - writes
        heard: list[Heard] = ray.get(running)
        for actor in (*farms, coordinator):
            ray.kill(actor)
        cores = [(then[0] - first[0]) / took for first, then in zip(before, after, strict=True)]
        return Load(
            reports_a_second=sum(one.reports for one in heard) / seconds,
            seconds=seconds,
            lag=middle([lag for one in heard for lag in one.lags]),
            decision=middle([wait for one in heard for wait in one.decisions]),
            instructions=middle(polls),
            fenced=sum(one.fenced for one in heard),
            writes_a_second=written / took,
            coordinator_cores=cores[0],
            farms_cores=sum(cores[1:]),
            coordinator_mb=(before[0][1], after[0][1]),
            farm_mb=max(one[1] for one in after[1:]),
        )


def polled(coordinator: Any, until: float) -> list[float]:
    """How long the driver's calls took, one each half a second."""
    found = []
    while time.monotonic() < until:
        asked = time.monotonic()
        ray.get(coordinator.instructions.remote(0.0))
        found.append(time.monotonic() - asked)
        time.sleep(0.5)
    return found


def segments(folder: str) -> int:
    """The number of the log's last segment: requests that wrote it so far."""
    return max(
        int(name.stem.split("-")[-1])
        for name in (Path(folder) / "log").iterdir()
        if name.stem[0].isdigit()
    )


def usage(pid: int) -> tuple[float, float]:
    """Seconds of CPU and MB of memory of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks, int(fields[21]) * os.sysconf(
        "SC_PAGE_SIZE"
    ) / 1e6


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Median and 95 %."""
    if len(values) < 2:
        return math.nan, math.nan
    return statistics.median(values), statistics.quantiles(values, n=20)[-1]


def planner(trials: int, slots: int) -> dict[str, float]:
    """So many trials from the first proposal to the end of the experiment."""
    schedule = {"asha": {"grace_period": 1, "reduction_factor": 3}}
    spec = Spec.parse({**SPEC, "schedule": schedule, "trials": trials, "max_steps": 9})
    heart, clock, events = Planner(), 0.0, 0
    waiting: list[Started] = []

    def tell(event: Any) -> None:
        nonlocal events
        heart.apply(event)
        events += 1
        while (decision := heart.next(clock)) is not None:
            heart.apply(decision)
            events += 1
            if isinstance(decision, Started):
                waiting.append(decision)

    cpu = time.process_time()
    tell(Created(t=0.0, id=str(uuid4()), spec=spec.to_json()))
    tell(Opened(t=0.0, by="driver", driver="d", slots=slots, trials=trials))
    while heart.history.closed is None:
        turn, waiting[:] = list(waiting), []
        for start in turn:
            clock += 0.001
            live(heart, start, clock, tell)
    took = time.process_time() - cpu
    return {
        "trials": trials,
        "slots": slots,
        "events": events,
        "cpu_seconds": took,
        "us_a_trial": took / trials * 1e6,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def live(heart: Planner, start: Started, clock: float, tell: Callable[[Any], None]) -> None:
    """An attempt from its beginning to its end."""
    lease: dict[str, Any] = {"t": clock, "trial": start.trial, "attempt": start.attempt}
    tell(Began(**lease, node="n", node_id="n", task_run="r", restored=0))
    attempt, step, x = (
        heart.history.lease(start.trial, start.attempt),
        0,
        float(heart.history.trials[start.trial].config["x"]),
    )
    while attempt is not None and attempt.stop is None and step < 9:
        step += 1
        tell(Reported(**lease, rows=[Row(step, clock, {"score": x * step})]))
    outcome: Outcome = "stopped" if attempt is not None and attempt.stop is not None else "done"
    tell(Ended(**lease, outcome=outcome, step=step))


def losses(lost: int, running: int) -> dict[str, float]:
    """So many attempts of those running are lost at once: CPU of the coordinator until each has its
    next attempt.
    """
    spec = Spec.parse(
        {**SPEC, "schedule": "fifo", "trials": running, "concurrency": running, "max_steps": 100}
    )
    opening = _opening(spec, slots=running)

    async def scene() -> dict[str, float]:
        coordinator = Coordinator(MemoryStore(), opening, "d")
        await coordinator.instructions(0.0)
        here = [
            Progress(trial=n, attempt=1, began=_began(n, f"n{n % 300}")) for n in range(running)
        ]
        await coordinator.report_all(here, "relay")
        cpu = time.process_time()
        again = await asyncio.gather(
            *(
                coordinator.lost(f"run-{n}", n, 1, "preempted", "the node was lost")
                for n in range(lost)
            )
        )
        next_ones = (await coordinator.instructions(0.0)).submit
        assert all(again)
        assert len(next_ones) == lost
        return {"lost": lost, "running": running, "cpu_seconds": time.process_time() - cpu}

    return asyncio.run(scene())


@contextmanager
def cluster() -> Iterator[None]:
    """One of this machine's own."""
    connect(cpus=2, env={})
    try:
        yield
    finally:
        disconnect()


def apart(work: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """In a process of its own, whose memory is its alone."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def show_loads(given: argparse.Namespace) -> dict[str, Any]:
    """Measures and prints `load`."""
    offered = (
        f"{given.attempts:,} attempts on {given.nodes} nodes offer {given.reports:,.0f} reports a"
        " second"
    )
    print(f"{offered}, load {os.getloadavg()[0]:.1f}", flush=True)
    found: dict[str, Load] = {}
    for name, relayed in (("relays", True), ("each by itself", False)):
        with cluster():
            one = found[name] = load(
                given.attempts, given.nodes, given.reports, given.seconds, relayed=relayed
            )
        print(
            f"{name:15} sustained {one.reports_a_second:8,.0f}/s   lag {one.lag[0]:6.2f} s (95 %:"
            f" {one.lag[1]:6.2f})   decision {one.decision[0]:6.2f} ({one.decision[1]:6.2f})  "
            f" instructions {one.instructions[0]:6.2f} ({one.instructions[1]:6.2f})   fenced"
            f" {one.fenced}\n{'':15} coordinator {one.coordinator_cores:.2f} cores,"
            f" {one.coordinator_mb[0]:,.0f} to {one.coordinator_mb[1]:,.0f} MB"
            f" ({one.bytes_a_report:,.0f} bytes a report)   attempts and relays"
            f" {one.farms_cores:.2f} cores   {one.writes_a_second:.1f} writes a second,"
            f" ${one.dollars:.3f} an hour",
            flush=True,
        )
    ours, alone = found["relays"], found["each by itself"]
    print(
        f"relays / each by itself: sustained {ours.reports_a_second / alone.reports_a_second:.2f},"
        f" lag {ours.lag[0] / alone.lag[0]:.2f}, decision"
        f" {ours.decision[0] / alone.decision[0]:.2f}, instructions"
        f" {ours.instructions[0] / alone.instructions[0]:.2f}, coordinator's CPU"
        f" {ours.coordinator_cores / alone.coordinator_cores:.2f}, dollars"
        f" {ours.dollars / alone.dollars:.2f}"
    )
    return {name: asdict(one) for name, one in found.items()}


def main() -> None:
    """Prints the measurements."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="load,planner,losses")
    options.add_argument("--attempts", type=int, default=10_000)
    options.add_argument("--nodes", type=int, default=300)
    options.add_argument(
        "--reports", type=float, default=20_000.0, help="a second, of all attempts together"
    )
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--trials", default="10000,100000,1000000", help="through the planner")
    options.add_argument("--lost", type=int, default=1_000)
    options.add_argument("--json", type=Path, default=RESULTS, help="write the numbers here")
    given = options.parse_args()
    chosen = given.only.split(",")
    results: dict[str, Any] = {}
    if "load" in chosen:
        results["load"] = show_loads(given)
    if "planner" in chosen:
        results["planner"] = []
        for trials in map(int, given.trials.split(",")):
            results["planner"].append(one := apart(planner, trials, given.attempts))
            print(
                f"planner: {trials:9,} trials, {one['events']:,.0f} events:"
                f" {one['cpu_seconds']:7.1f} s of CPU, {one['us_a_trial']:.0f} us a trial,"
                f" {one['mb']:,.0f} MB",
                flush=True,
            )
    if "losses" in chosen:
        results["losses"] = []
        for times in (1, 3, 10):
            results["losses"].append(one := apart(losses, given.lost, given.lost * times))
            lost = f"{given.lost:,} of {given.lost * times:,} attempts lost at once"
            print(f"{lost}: {one['cpu_seconds']:.2f} s of CPU", flush=True)
    given.json.parent.mkdir(exist_ok=True)
    given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
