"""Kills everything, again and again, for as long as asked, and then counts: `make soak`.

    python -m tests.faults.soak --minutes 10 --seed 1

One experiment with its state in a real S3 server runs on a Ray cluster of a head and three nodes.
In seeded order are hit: a trial's worker (SIGKILL, SIGTERM), a node (SIGKILL of all its processes;
drained with notice; frozen for longer than the lease and thawed, as a partition that heals), the
coordinator, the recorder, the driver, the Prefect server, the S3 server, and the whole cluster. The
experiment is resumed whenever its driver is gone. At the end nothing may be missing, doubled or
repeated, `regrow verify` passes, and MLflow and Prefect say what the log says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psutil

from regrow.infra.local import s3_server
from regrow.search.history import History, waste
from tests.faults.soak_check import check

NAME = "soak"
MARK = "REGROW_SOAK"
LEASE = 8
STEPS = 15
PATIENCE = 240.0
"""Seconds without a single step of any trial after which the soak has failed."""

TRAIN = """
import json, os, time
from pathlib import Path

STEPS = Path({steps!r})


def train(trial):
    total = 0.0
    if trial.restored:
        total = json.loads((trial.restored / "model.json").read_text())["total"]

    def save(folder):
        (folder / "model.json").write_text(json.dumps({{"total": total}}))
        (folder / "weights.bin").write_bytes(os.urandom(20_000))

    for step in trial.steps():
        time.sleep(0.15)
        total += trial.config["x"]
        trial.report({{"score": total}}, checkpoint=save)
        line = {{"trial": trial.number, "attempt": trial.attempt, "pid": os.getpid(), "step": step, "t": time.time()}}
        with STEPS.open("a") as file:
            file.write(json.dumps(line) + "\\n")
"""


class Soak:
    """The experiment, what it stands on, and what was done to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.steps = folder / "steps.jsonl"
        self.kills: list[tuple[str, float]] = []
        self.recovered: dict[str, list[float]] = defaultdict(list)
        self.driver: subprocess.Popen[bytes] | None = None
        self.total = 30
        self._folders = 0
        self.s3, _ = s3_server.start(folder / "s3")
        self.port = _free_port()
        (folder / "home").mkdir()
        self.work = folder / "work"
        self.work.mkdir()
        os.environ |= {MARK: str(folder), "RAY_USAGE_STATS_ENABLED": "0", **self.s3.environment()}
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "RAY_ADDRESS": f"127.0.0.1:{self.port}",
        }
        self.state = f"s3://{self.s3.bucket}/soak"
        (self.work / "work.py").write_text(TRAIN.format(steps=str(self.steps)))
        spec = {
            "name": NAME,
            "trainable": "work.py:train",
            "metric": "score",
            "mode": "max",
            "space": {"x": {"uniform": [0.1, 1]}},
            "search": "random",
            "schedule": {"asha": {"grace_period": 5, "reduction_factor": 3}},
            "trials": self.total,
            "max_steps": STEPS,
            "concurrency": 3,
            "lease": LEASE,
            "state": self.state,
            "retries": {"infrastructure": "unlimited"},
        }
        (self.work / "soak.yaml").write_text(json.dumps(spec))

    # ---- what it stands on

    def start_cluster(self) -> None:
        """A head without CPUs and three nodes of one."""
        self._ray(
            "start",
            "--head",
            self._own_folder(),
            f"--port={self.port}",
            "--num-cpus=0",
            "--node-ip-address=127.0.0.1",
            "--include-dashboard=false",
        )
        for _ in range(3):
            self.start_node()

    def start_node(self) -> None:
        """One more node of one CPU."""
        self._ray("start", self._own_folder(), f"--address=127.0.0.1:{self.port}", "--num-cpus=1")

    def _own_folder(self) -> str:
        """As each machine has: two nodes that share one lay the shipped code anew under each
        other's feet.
        """
        self._folders += 1
        return f"--temp-dir={self.folder / f'n{self._folders}'}"

    def _ray(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("ray")), *arguments, "--disable-usage-stats"]
        if arguments[0] != "start":
            command.pop()
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")

    def start_driver(self) -> None:
        """`regrow run`, or `regrow resume` with the total so far."""
        first = self.driver is None
        arguments = (
            ["run", "soak.yaml"]
            if first
            else ["resume", NAME, "--state", self.state, "--trials", str(self.total)]
        )
        with (self.folder / "said.txt").open("ab") as said:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "regrow", *arguments],
                cwd=self.work,
                env=self.environment,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def tend(self) -> None:
        """Raises the total when the experiment is through, and continues when its driver has ended
        otherwise.
        """
        assert self.driver is not None
        code = self.driver.poll()
        if code is None:
            return
        if code == 0:
            self.total += 20
        self.start_driver()

    # ---- looking

    def rows(self) -> list[dict[str, Any]]:
        """Every finished step, in the order of time."""
        if not self.steps.exists():
            return []
        return [
            json.loads(line) for line in self.steps.read_text().splitlines() if line.endswith("}")
        ]

    def processes(self, title: str) -> list[psutil.Process]:
        """Ours whose command line begins so, or contains it where it begins with a space."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                fits = title in f" {line}" if title.startswith(" ") else line.startswith(title)
                if fits and process.environ().get(MARK) == str(self.folder):
                    found.append(process)
        return found

    def nodes(self) -> list[list[psutil.Process]]:
        """The processes of each node but the head: its raylet and what that started."""
        raylets = [p for p in self.processes(" ") if p.name() == "raylet"]
        workers = [r for r in raylets if "--head" not in r.cmdline()]
        found = []
        for raylet in workers:
            with suppress(psutil.Error):
                found.append([raylet, *raylet.children(recursive=True)])
        return found

    def worker(self) -> psutil.Process | None:
        """The process of some trial that did a step lately."""
        recent = [row["pid"] for row in self.rows() if row["t"] > time.time() - 2]
        for pid in self.random.sample(sorted(set(recent)), len(set(recent))):
            with suppress(psutil.Error):
                return psutil.Process(pid)
        return None

    # ---- what is done to it

    def hit(self, kind: str) -> bool:
        """Does one of KINDS; False if there was nothing to hit."""
        try:
            done: bool | None = KINDS[kind](self)
        except psutil.NoSuchProcess:
            return False
        return done is not False

    def kill_worker(self) -> bool:
        return _signal([p] if (p := self.worker()) else [], signal.SIGKILL)

    def term_worker(self) -> bool:
        return _signal([p] if (p := self.worker()) else [], signal.SIGTERM)

    def kill_node(self) -> bool:
        nodes = self.nodes()
        if not nodes or not _signal(self.random.choice(nodes), signal.SIGKILL):
            return False
        self.start_node()
        return True

    def drain_node(self) -> bool:
        worker = self.worker()
        raylet = worker.parent() if worker else None
        if raylet is None or raylet.name() != "raylet":
            return False
        node_id = next(
            a.partition("=")[2]
            for a in raylet.cmdline()
            if a.startswith(("--node_id=", "--node-id="))
        )
        self._ray(
            "drain-node",
            f"--address=127.0.0.1:{self.port}",
            f"--node-id={node_id}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=spot",
            "--deadline-remaining-seconds=20",
        )
        self.start_node()
        return True

    def freeze_node(self) -> bool:
        nodes = self.nodes()
        if not nodes:
            return False
        node = self.random.choice(nodes)
        _signal(node, signal.SIGSTOP)
        threading.Timer(LEASE + 5.0, lambda: _signal(node, signal.SIGCONT)).start()
        return True

    def kill_coordinator(self) -> bool:
        return _signal(self.processes("ray::WaitingCoordinator"), signal.SIGKILL)

    def kill_recorder(self) -> bool:
        return _signal(self.processes("ray::Recorder"), signal.SIGKILL)

    def kill_driver(self) -> bool:
        assert self.driver is not None
        if self.driver.poll() is not None:
            return False
        self.driver.kill()
        self.driver.wait()
        self.start_driver()
        return True

    def kill_prefect(self) -> bool:
        return _signal(self.processes(" regrow.infra.prefect.process"), signal.SIGKILL)

    def kill_storage(self) -> bool:
        _signal([psutil.Process(self.s3.pid)], signal.SIGKILL)
        time.sleep(1.0)
        self.s3, _ = s3_server.start(self.folder / "s3", port=self.s3.port)
        return True

    def kill_cluster(self) -> bool:
        ray_processes = [p for p in self.processes(" ") if _is_ray(p)]
        _signal(ray_processes, signal.SIGKILL)
        time.sleep(1.0)
        self.start_cluster()
        return True

    # ---- the run

    def run(self, seconds: float) -> None:
        """Hits one thing after the other for so long, then lets the experiment end."""
        self.start_cluster()
        self.start_driver()
        self.await_step(time.time())
        end, order = time.time() + seconds, list[str]()
        while time.time() < end:
            self.tend()
            order = order or self.random.sample(
                list(WEIGHTS), counts=list(WEIGHTS.values()), k=sum(WEIGHTS.values())
            )
            kind, at = order.pop(), time.time()
            if not self.hit(kind):
                continue
            self.kills.append((kind, at))
            print(f"{at - end + seconds:6.0f} s  {kind}", flush=True)
            if self.random.random() < 0.75:  # else the next one hits while this one hurts
                self.recovered[kind].append(self.await_step(at) - at)
            time.sleep(self.random.uniform(0.3, 3.0))
        while self.driver is None or self.driver.poll() != 0:
            if self.driver is None or self.driver.poll() is not None:
                self.start_driver()
            self.await_step(time.time(), or_end=True)

    def await_step(self, since: float, *, or_end: bool = False) -> float:
        """When the first step after `since` was done, by a process that was not hit at that
        time.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            # one may have been on its way
            after = [row["t"] for row in self.rows() if row["t"] > since + 0.2]
            if after:
                return float(min(after))
            if or_end and self.driver is not None and self.driver.poll() is not None:
                return time.time()
            self.tend()
            time.sleep(0.05)
        raise SystemExit(
            f"no step for {PATIENCE:.0f} s\n{(self.folder / 'said.txt').read_text()[-6000:]}"
        )

    def check(self) -> tuple[History, list[str]]:
        """The experiment as it stands at the end, and what is wrong with it."""
        os.environ |= self.s3.environment()
        return check(NAME, self.state, self.environment, trials=self.total, done=self.rows())

    def close(self) -> None:
        """Nothing of it is left."""
        while found := [p for p in self.processes(" ") if p.pid != os.getpid()]:
            _signal(found, signal.SIGKILL)
            psutil.wait_procs(found, timeout=5)
        s3_server.stop(self.folder / "s3", at_once=True)


KINDS: dict[str, Callable[[Soak], bool]] = {
    "worker killed": Soak.kill_worker,
    "worker told to end": Soak.term_worker,
    "node killed": Soak.kill_node,
    "node drained": Soak.drain_node,
    "node frozen and thawed": Soak.freeze_node,
    "coordinator killed": Soak.kill_coordinator,
    "recorder killed": Soak.kill_recorder,
    "driver killed": Soak.kill_driver,
    "Prefect server killed": Soak.kill_prefect,
    "S3 server killed": Soak.kill_storage,
    "cluster killed": Soak.kill_cluster,
}
WEIGHTS = {
    "worker killed": 6,
    "worker told to end": 4,
    "node killed": 2,
    "node drained": 2,
    "node frozen and thawed": 1,
    "coordinator killed": 2,
    "recorder killed": 2,
    "driver killed": 2,
    "Prefect server killed": 1,
    "S3 server killed": 1,
    "cluster killed": 1,
}


def main() -> int:
    """Runs, prints what was killed, what it cost, and what is wrong; exit code 1 if anything is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True)
            )
        )
        soak = Soak(folder, options.seed)
        stack.callback(soak.close)
        soak.run(options.minutes * 60)
        history, wrong = soak.check()
    counts = Counter(kind for kind, _ in soak.kills)
    print(
        f"\n{len(soak.kills)} hits on {len(history.trials)} trials in {options.minutes:g} minutes, seed {options.seed}"
    )
    for kind, count in counts.most_common():
        times = soak.recovered[kind]
        seconds = (
            f"next step after {statistics.median(times):.1f} s, at most {max(times):.1f}"
            if times
            else ""
        )
        print(f"  {count:3} x {kind:24} {seconds}")
    for kind, lost in waste.of_all(history).items():
        print(
            f"  lost to {kind}: {lost.attempts} attempts, {lost.steps} steps done again, {lost.seconds:.0f} slot-seconds"
        )
    done = sum(t.step for t in history.trials)
    print(
        f"  {history.lost_steps} steps done again for {done} that count; {history.sessions} sessions"
    )
    for line in wrong[:20]:
        print(f"WRONG: {line}")
    print(
        "nothing missing, nothing doubled, nothing repeated; verify passes"
        if not wrong
        else f"{len(wrong)} things are wrong"
    )
    return 1 if wrong else 0


def _signal(processes: list[psutil.Process], number: signal.Signals) -> bool:
    sent = False
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
            sent = True
    return sent


def _is_ray(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        line = " ".join(process.cmdline())
        return (
            process.name() in ("raylet", "gcs_server")
            or line.startswith("ray::")
            or "/ray/" in line
        )
    return False


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
