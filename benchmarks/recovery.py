"""How long until work goes on after a SIGKILL, and how much of it is lost: ours and Ray Tune's, in
the same run.

    python benchmarks/recovery.py --rounds 3 --json recovery.json

Two trials on two slots, 0.2 s a step, a checkpoint at every step. Killed are the worker of a trial,
the node that it runs on (one of two beside the head's), and the driver with its command, after
which it is resumed at once. Both sides write each finished step to a file; *seconds* run from the
kill to the next step of a trial that was hit, *lost* are the steps that it had finished and does
again. The sides take turns, each round with processes and folders of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
SECONDS = 0.2
"""A step."""
WARM_STEPS = 12
"""Steps of each trial before the kill."""
PATIENCE = 180.0
MARK = "REGROW_BENCH"

TRAIN = """
import json, os, time
from pathlib import Path

STEPS = Path({steps!r})


def train(trial):
    def save(folder):
        (folder / "model.json").write_text(json.dumps({{"step": step}}))

    for step in trial.steps():
        time.sleep({seconds})
        trial.report({{"score": float(step)}}, checkpoint=save)
        with STEPS.open("a") as file:
            row = {{"trial": trial.number, "pid": os.getpid(), "step": step, "t": time.time()}}
            file.write(json.dumps(row) + "\\n")
"""
SPEC = {
    "name": "bench",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0, 1]}},
    "search": "random",
    "schedule": "fifo",
    "trials": 2,
    "max_steps": 100_000,
    "concurrency": 2,
    "checkpoint": {"every_steps": 1},
    "retries": {"infrastructure": "unlimited"},
}


class Side:
    """One side at work in a folder of its own: `regrow` or `tune`."""

    def __init__(self, name: str, folder: Path, address: str | None) -> None:
        self.name, self.folder = name, folder
        self.steps = folder / "steps.jsonl"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "home").mkdir(parents=True)
        self._environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            MARK: str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            **({"RAY_ADDRESS": address} if address else {}),
        }
        (folder / "work.py").write_text(TRAIN.format(steps=str(self.steps), seconds=SECONDS))
        (folder / "bench.yaml").write_text(json.dumps(SPEC))

    def start(self, *, again: bool = False) -> None:
        """The command, or the one that goes on after its death."""
        ours = [
            sys.executable,
            "-m",
            "regrow",
            *(["resume", "bench"] if again else ["run", "bench.yaml"]),
        ]
        theirs = [
            sys.executable,
            str(HERE / "recovery_tune.py"),
            str(self.folder),
            str(SECONDS),
            *(["restore"] if again else []),
        ]
        with (self.folder / "said.txt").open("ab") as said:
            self.process = subprocess.Popen(
                ours if self.name == "regrow" else theirs,
                cwd=self.folder,
                env=self._environment,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def done(self) -> list[dict[str, Any]]:
        """Every finished step so far, in the order of time."""
        if not self.steps.exists():
            return []
        return [
            json.loads(line) for line in self.steps.read_text().splitlines() if line.endswith("}")
        ]

    def warm(self, since: float) -> None:
        """Returns once both trials did some steps since then."""
        deadline = time.monotonic() + PATIENCE
        while True:
            recent = [row["trial"] for row in self.done() if row["t"] > since]
            if all(recent.count(trial) >= WARM_STEPS for trial in (0, 1)):
                return
            self._alive(deadline)

    def recovered(self, killed: float, pids: set[int], trials: set[int]) -> tuple[float, int]:
        """Seconds until one of the trials that were hit did a step in another process, and the
        steps that were lost.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            rows = self.done()
            fresh = [
                row
                for row in rows
                if row["pid"] not in pids and row["trial"] in trials and row["t"] > killed
            ]
            if {row["trial"] for row in fresh} >= trials:
                break
            self._alive(deadline)
        lost = 0
        for trial in trials:
            before = max(
                row["step"] for row in rows if row["trial"] == trial and row["pid"] in pids
            )
            lost = max(
                lost, before + 1 - next(row["step"] for row in fresh if row["trial"] == trial)
            )
        return fresh[0]["t"] - killed, lost

    def close(self) -> None:
        """Kills whatever is left of it."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == str(self.folder):
                    process.kill()
        if self.process is not None:
            self.process.wait()

    def _alive(self, deadline: float) -> None:
        if time.monotonic() > deadline or (
            self.process is not None and self.process.poll() is not None
        ):
            raise SystemExit(
                f"{self.name} came to a stop:\n{(self.folder / 'said.txt').read_text()[-4000:]}"
            )
        time.sleep(0.02)


@contextmanager
def working(name: str, address: str | None = None) -> Iterator[Side]:
    """A side that has done some steps."""
    folder = Path(tempfile.mkdtemp(prefix=f"recovery-{name}-"))
    side = Side(name, folder, address)
    try:
        side.start()
        side.warm(0.0)
        yield side
    finally:
        side.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def three_nodes() -> Iterator[str]:
    """A cluster of a head without CPUs and two nodes of two, on loopback and with a token; its
    address.
    """
    # Ray reads the token once a process.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        # its own shutdown waits for nodes that are gone
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()


def kill_worker(side: Side, rounds: int) -> list[tuple[float, int]]:
    """The process of trial 0, several times."""
    found = []
    for _ in range(rounds):
        row = [row for row in side.done() if row["trial"] == 0][-1]
        killed = time.time()
        os.kill(row["pid"], signal.SIGKILL)
        found.append(side.recovered(killed, {row["pid"]}, {0}))
        side.warm(time.time())
    return found


def kill_node(side: Side) -> tuple[float, int]:
    """The raylet of trial 0's node and all that it started."""
    rows = side.done()
    pid = [row for row in rows if row["trial"] == 0][-1]["pid"]
    raylet = psutil.Process(pid).parent()
    assert raylet is not None
    assert raylet.name() == "raylet"
    victims = [raylet, *raylet.children(recursive=True)]
    pids = {process.pid for process in victims}
    killed = time.time()
    for process in victims:
        process.suspend()  # at once, as a machine goes
    for process in victims:
        process.kill()
    hit = {row["trial"] for row in rows if row["pid"] in pids}
    return side.recovered(killed, pids, hit)


def kill_driver(side: Side) -> tuple[float, int]:
    """The command; then it is typed again, to go on."""
    assert side.process is not None
    pids = {row["pid"] for row in side.done()}
    killed = time.time()
    side.process.kill()
    side.process.wait()
    side.start(again=True)
    return side.recovered(killed, pids, {0, 1})


def measure(rounds: int, only: list[str]) -> dict[str, dict[str, list[tuple[float, int]]]]:
    """(seconds, steps lost) of each kill, by what was killed and by side."""
    found: dict[str, dict[str, list[tuple[float, int]]]] = {
        kind: {"regrow": [], "tune": []} for kind in only
    }
    for _ in range(rounds):
        for name in ("regrow", "tune"):
            if "worker" in only:
                with working(name) as side:
                    found["worker"][name] += kill_worker(side, 2)
            if "driver" in only:
                with working(name) as side:
                    found["driver"][name].append(kill_driver(side))
            if "node" in only:
                with three_nodes() as address, working(name, address) as side:
                    found["node"][name].append(kill_node(side))
    return found


def main() -> None:
    """Measures, prints a line each, writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="worker,node,driver")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.rounds, options.only.split(","))
    for kind, sides in found.items():
        ours, theirs = ([s for s, _ in sides[name]] for name in ("regrow", "tune"))
        lost = {name: [n for _, n in sides[name]] for name in sides}
        middle, rival = statistics.median(ours), statistics.median(theirs)
        print(
            f"SIGKILL of the {kind}: {middle:.1f} s ({min(ours):.1f} to {max(ours):.1f}), Ray Tune"
            f" {rival:.1f} s ({min(theirs):.1f} to {max(theirs):.1f}), {rival / middle:.2f} times"
            f" faster; steps lost at most {max(lost['regrow'])}, Ray Tune {max(lost['tune'])}"
        )
    if options.json:
        machine = {
            "python": platform.python_version(),
            "load": Path("/proc/loadavg").read_text().split()[0],
        }
        options.json.write_text(json.dumps({"machine": machine, "kills": found}, indent=1))


if __name__ == "__main__":
    main()
