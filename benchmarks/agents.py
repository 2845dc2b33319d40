"""What an experiment without a fixed head costs: agents on hosts that are killed, cut off, leave
and come again, beside Ray Tune and Optuna.

    python -m benchmarks.agents chaos --agents 6 --trials 90 --leader-kills 10 --cut 60
    python -m benchmarks.agents head       # Ray Tune: the head's host is lost
    python -m benchmarks.agents optuna     # Optuna: workers on one storage are killed
    python -m benchmarks.agents arrive     # from `regrow join` to the first step, and leaving
    python -m benchmarks.agents many --agents 50

Hosts are network namespaces (`tests/system/hosts.py`), so it needs root; it runs from the
repository's folder. What is done to whom is drawn from `--seed`; when it happens follows the
experiment's progress. `chaos` fails unless each value is that of a run that nobody disturbed, each
(trial, step) is there once, and `regrow verify` recomputes all decisions.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.system.conftest import Desk, desk_in
from tests.system.hosts import Host, RayCluster, await_, network, ray_cluster
from tests.system.joined import SPEC, Agent, Fleet, fleet
from tests.system.test_main_job import check_whole

HERE = Path(__file__).parent
NAME = "chaos"
TICK = 0.2
AT_ONCE = 6
"""Agents of `many` that are on their way at a time."""
RESERVE = 3e9
"""Bytes of memory that `many` leaves to others: no further agent joins then."""
BACK_SECONDS = (2.0, 15.0)
"""Seconds until an agent that was killed or has left is started again."""
PAUSE_SECONDS = 20.0
"""Mean seconds between two things that are done to agents that do not lead."""
SOON = 0.25
"""Share of the new leaders that are killed before they run the experiment."""


@dataclass
class Gap:
    """Seconds without a leader, from what was done to the leader."""

    what: str
    at: float
    opened: float | None = None
    """Until the next session began; None: another leader was hit before."""
    stepped: float | None = None
    """Until its first step."""


@dataclass
class Chaos:
    """What is done to the agents of one experiment."""

    site: Fleet
    draw: random.Random
    total: int
    """Steps of the experiment."""
    kills: int
    """Times that the leader is killed."""
    cut: float
    """Seconds for which half of the network is cut; 0: not at all."""
    gaps: list[Gap] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    back: dict[int, float] = field(default_factory=dict)
    """When an agent is started again on a host."""
    cut_at: float | None = None
    mended: bool = False

    def run(self) -> None:
        """Do it until the experiment has ended."""
        file = self.site.desk.folder / f"{NAME}.yaml"
        self.back = dict.fromkeys(range(len(self.site.hosts)), 0.0)
        pause = time.monotonic() + PAUSE_SECONDS
        hits, term, soon = 0, 0, False
        while not self._finished():
            time.sleep(TICK)
            now = time.monotonic()
            for host in [host for host, at in self.back.items() if at < now]:
                del self.back[host]
                self.site.join(host, file, "--cpus", 1)
                self._count("joined")
            self._cut()
            if self.site.leader(NAME) is None:
                continue
            newest, leader = self.site.leader(NAME) or (0, None)
            if leader is None:
                continue
            if newest != term:
                term, soon = newest, self.draw.random() < SOON
            leads = soon or self._opened() > (self.gaps[-1].at if self.gaps else 0.0)
            if hits < self.kills and leads and self._progress() > (hits + 1) / (self.kills + 2):
                self._hit(leader, "leader")
                hits += 1
                pause = now + self.draw.expovariate(1 / PAUSE_SECONDS)
            elif now > pause:
                self._disturb(leader)
                pause = now + self.draw.expovariate(1 / PAUSE_SECONDS)

    def _hit(self, agent: Agent, whom: str) -> None:
        """Kill an agent: its process, or all of its host."""
        how = self.draw.choice(["process", "host"])
        self._count(f"{whom} killed ({how})")
        if whom == "leader":
            self.gaps.append(Gap(how, time.time()))
        agent.kill() if how == "process" else agent.lose()
        self.killed.add(agent.host.name)
        self._again(agent)

    def _disturb(self, leader: Agent) -> None:
        """Do something to one of the others, or tell the leader to leave."""
        others = [one for one in self._there() if one is not leader]
        fresh = [one for one in others if one.host.name not in self.killed]
        what = self.draw.choice(["kill", "kill", "leave", "hand over"])
        if not others:
            return
        if what == "hand over":
            self._count("leader told to leave")
            self.gaps.append(Gap("told to leave", time.time()))
            leader.leave()
            self._again(leader)
        elif what == "leave":
            one = self.draw.choice(others)
            self._count("told to leave")
            one.leave()
            self._again(one)
        else:
            self._hit(self.draw.choice(fresh or others), "agent")

    def _again(self, agent: Agent) -> None:
        self.back[self.site.hosts.index(agent.host)] = time.monotonic() + self.draw.uniform(
            *BACK_SECONDS
        )

    def _cut(self) -> None:
        if not self.cut or self.mended:
            return
        half = self.site.hosts[: len(self.site.hosts) // 2]
        if self.cut_at is None and self._progress() > 0.45:
            for host in half:
                host.move()
            self.cut_at = time.monotonic()
            self._count("network cut")
        elif self.cut_at is not None and time.monotonic() > self.cut_at + self.cut:
            for host in half:
                host.mend()
            self.mended = True

    def _there(self) -> list[Agent]:
        """Return the agents that run and were not told to leave."""
        away = {self.site.hosts[host].name for host in self.back}
        return [one for one in self.site.agents if one.runs and one.host.name not in away]

    def _finished(self) -> bool:
        return bool(self.site.events(NAME, "closed", status="finished"))

    def _opened(self) -> float:
        return max((e["t"] for e in self.site.events(NAME, "opened", by="driver")), default=0.0)

    def _progress(self) -> float:
        saved = {(e["trial"], e["step"]) for e in self.site.events(NAME, "saved")}
        return len(saved) / self.total

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1
        print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)

    def measure(self) -> None:
        """Fill in the gaps from the log's times; all processes have one clock."""
        opened = sorted(e["t"] for e in self.site.events(NAME, "opened", by="driver"))
        stepped = sorted(e["t"] for e in self.site.events(NAME, "saved"))
        ends = [gap.at for gap in self.gaps[1:]] + [float("inf")]
        for gap, end in zip(self.gaps, ends, strict=True):
            began = next((t for t in opened if t > gap.at + 0.5), None)
            if gap.what == "told to leave":  # its own trials save until it has left
                began = next((t for t in opened if t > gap.at), None)
            if began is not None and began < end:
                gap.opened = began - gap.at
                step = next((t for t in stepped if began < t < end), None)
                gap.stepped = None if step is None else step - gap.at


def chaos(asked: argparse.Namespace) -> dict[str, Any]:
    """Return what happened, and how long it took."""
    steps = asked.steps
    with _desk() as desk, _desk() as whole:
        changes = {**SPEC, "trials": asked.trials, "max_steps": steps}
        whole.write(NAME, seconds=0, **{**changes, "concurrency": 2})
        whole.run("run", f"{NAME}.yaml")
        wanted = _values(whole)
        desk.write(NAME, seconds=asked.seconds, **changes)
        with fleet(desk, asked.agents) as site:
            made = Chaos(
                site=site,
                draw=random.Random(asked.seed),
                total=asked.trials * steps,
                kills=asked.leader_kills,
                cut=asked.cut,
            )
            began = time.time()
            made.run()
            finished = time.time()
            for agent in site.agents:
                agent.ended()
            made.measure()
        view = check_whole(desk, NAME, asked.trials)
        values = _values(desk)
        differ = [key for key in wanted | values if wanted.get(key) != values.get(key)]
        assert not differ, f"{len(differ)} values differ from an undisturbed run: {differ[:5]}"
        return {
            "agents": asked.agents,
            "trials": asked.trials,
            "values equal": len(values),
            "seconds": finished - began,
            "done": made.done,
            "hosts killed": len(made.killed),
            "wasted steps": view["wasted_steps"],
            "sessions": len(site.events(NAME, "opened", by="driver")),
            "until the next session": _spread([g.opened for g in made.gaps if _killed(g)]),
            "until its first step": _spread([g.stepped for g in made.gaps if _killed(g)]),
            "told to leave, next session": _spread([g.opened for g in made.gaps if not _killed(g)]),
            "told to leave, first step": _spread([g.stepped for g in made.gaps if not _killed(g)]),
            "gaps": [vars(gap) for gap in made.gaps],
        }


def _killed(gap: Gap) -> bool:
    return gap.what != "told to leave"


def _values(desk: Desk) -> dict[tuple[int, int], float]:
    return {(p["trial"], p["step"]): p["score"] for p in desk.points(NAME)}


def _spread(values: list[float | None]) -> dict[str, float | int]:
    found = sorted(value for value in values if value is not None)
    if not found:
        return {"of": 0}
    return {"of": len(found), "median": statistics.median(found), "worst": found[-1]}


@contextmanager
def _desk() -> Iterator[Desk]:
    with (
        tempfile.TemporaryDirectory(prefix="rg", ignore_cleanup_errors=True) as folder,
        desk_in(Path(folder)) as desk,
    ):
        yield desk


def arrive(asked: argparse.Namespace) -> dict[str, Any]:
    """Return how long an agent takes to its first step, and to leave."""
    first: list[float | None] = []
    more: list[float | None] = []
    left: list[float | None] = []
    with _desk() as desk, fleet(desk, 2) as site:
        file = desk.write(NAME, seconds=0.2, **{**SPEC, "trials": 1000, "max_steps": 1000})
        began = time.time()
        leader = site.join(0, file, "--cpus", 1)
        first.append(site.wait(partial(_first_step, site, began), "a first step") - began)
        for _ in range(asked.rounds):
            began = time.time()
            agent = site.join(1, file, "--cpus", 1)
            more.append(site.wait(partial(_first_step, site, began), "a first step") - began)
            began = time.time()
            agent.leave()
            agent.ended()
            left.append(time.time() - began)
        began = time.time()
        leader.leave()
        leader.ended()
        return {
            "the first agent, to its first step": _spread(first),
            "one more agent, to its first step": _spread(more),
            "told to leave, to its end": _spread(left),
            "the leader told to leave, to its end": time.time() - began,
        }


def _first_step(site: Fleet, after: float) -> float | None:
    """Return when the first attempt that began after a time had saved its first step."""
    for began in site.events(NAME, "began"):
        if began["t"] > after:
            attempt = {key: began[key] for key in ("trial", "attempt")}
            return next((e["t"] for e in site.events(NAME, "saved", **attempt)), None)
    return None


def many(asked: argparse.Namespace) -> dict[str, Any]:
    """Return how many small agents join one leader, and what it takes."""
    with _desk() as desk, fleet(desk, asked.agents) as site:
        changes = {**SPEC, "trials": asked.agents, "max_steps": 100_000}
        file = desk.write(NAME, seconds=asked.seconds, **changes)
        free, began = _available(), time.time()
        least = free
        site.join(0, file, "--cpus", 1)
        site.await_leader(NAME)
        joined = 0
        while joined < asked.agents and time.time() - began < asked.patience:
            before, seen = joined, len({e["agent"] for e in site.events(NAME, "joined")})
            joined = max(before, seen)  # none are seen while the log is being written
            if joined != before:
                print(f"{time.time() - began:6.0f} s: {joined} joined", file=sys.stderr, flush=True)
            least = min(least, _available())
            if least < RESERVE:
                break
            if len(site.agents) < min(asked.agents, joined + AT_ONCE):
                site.join(len(site.agents), file, "--cpus", 1)
            else:
                time.sleep(0.5)
        took = time.time() - began
        while _nodes(site) < joined and time.time() - began < asked.patience:
            least = min(least, _available())
            time.sleep(1.0)
        working, ran = time.time() - began, _nodes(site)
        desk.run("stop", NAME, "--wait", 200)
        for agent in site.agents:
            agent.ended()
        return {
            "agents": len(site.agents),
            "joined": joined,
            "all joined, s": took,
            "ran trials": ran,
            "all ran trials, s": working,
            "stopped, s": time.time() - began - working,
            "memory, MB": (free - least) / 1e6,
            "exit codes": sorted({agent.process.returncode for agent in site.agents}),
            "wasted steps": desk.show(NAME)["wasted_steps"],
        }


def _nodes(site: Fleet) -> int:
    """Return on how many nodes attempts have begun."""
    return len({e["node_id"] for e in site.events(NAME, "began")})


def _available() -> float:
    """Return the bytes of memory that are available."""
    return float(psutil.virtual_memory().available)


def head(asked: argparse.Namespace) -> dict[str, Any]:
    """Return what becomes of an experiment of Ray Tune's whose head's host is lost."""
    script, steps = str(HERE / "recovery_tune.py"), asked.rounds * 4
    with tempfile.TemporaryDirectory(prefix="rg", ignore_cleanup_errors=True) as folder:
        place, found = Path(folder), dict[str, Any]()
        words = [sys.executable, script, folder, "0.5"]
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "TUNE_DISABLE_DATED_SUBDIR": "1"}

        def done() -> list[dict[str, Any]]:
            lines = (place / "steps.jsonl").read_text().splitlines()
            return [json.loads(line) for line in lines]

        with network(3) as hosts:
            with ray_cluster(environment) as first:
                _start(first, hosts)
                driver = subprocess.Popen(
                    hosts[0].command(*words), env=first.environment, stdin=subprocess.DEVNULL
                )
                await_(
                    lambda: (place / "steps.jsonl").exists() and len(done()) >= 2 * steps, "steps"
                )
                lost = time.time()
                while left := hosts[0].processes():
                    for pid in left:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                driver.wait()
                await_(lambda: not any(map(_trains, hosts[1:])), "the trials' end", 300.0)
                found["trials end, s"] = time.time() - lost
                await_(lambda: not any(map(_raylets, hosts[1:])), "the nodes' end", 300.0)
                found["nodes end, s"] = time.time() - lost
                found["steps of nobody after it"] = sum(row["t"] > lost + 0.5 for row in done())
            before = {trial: _last(done(), trial) for trial in (0, 1)}
            count = len(done())
            typed = time.time()
            with ray_cluster(environment) as second:
                _start(second, hosts)
                driver = subprocess.Popen(
                    hosts[0].command(*words, "restore"),
                    env=second.environment,
                    stdin=subprocess.DEVNULL,
                )
                await_(lambda: {row["trial"] for row in done()[count:]} == {0, 1}, "new steps")
                again = done()[count:]
                found["restored by hand, new step, s"] = again[0]["t"] - typed
                found["steps done again"] = sum(
                    max(0, before[row["trial"]] + 1 - row["step"])
                    for row in {row["trial"]: row for row in reversed(again)}.values()
                )
        return found


def _start(cluster: RayCluster, hosts: list[Host]) -> None:
    for name, host, cpus in zip("abc", hosts, (0, 1, 1), strict=True):
        cluster.start(name, address=host.address, cpus=cpus, on=host)


def _last(rows: list[dict[str, Any]], trial: int) -> int:
    return max(int(row["step"]) for row in rows if row["trial"] == trial)


def _trains(host: Host) -> bool:
    return host.find("ray::ImplicitFunc") is not None


def _raylets(host: Host) -> bool:
    return any("raylet" in _command(pid) for pid in host.processes())


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    return ""


OPTUNA = """
import sys, time
from pathlib import Path
import optuna

kind, folder, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
if kind == "journal":
    file = optuna.storages.journal.JournalFileBackend(folder + "/journal.log")
    storage = optuna.storages.JournalStorage(file)
else:
    retry = optuna.storages.RetryFailedTrialCallback(max_retry=3)
    beat = {"heartbeat_interval": 1, "grace_period": 3, "failed_trial_callback": retry}
    storage = optuna.storages.RDBStorage("sqlite:///" + folder + "/study.db", **beat)
study = optuna.create_study(study_name="s", storage=storage, load_if_exists=True)


def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range(1, 21):
        time.sleep(seconds)
        with open(folder + "/steps", "a") as rows:
            rows.write(f"{trial.number} {step}\\n")
        trial.report(x * step, step)
    return x


study.optimize(objective, callbacks=[optuna.study.MaxTrialsCallback(TRIALS, states=None)])
"""


def optuna(asked: argparse.Namespace) -> dict[str, Any]:
    """Return what becomes of the trials of Optuna's workers that are killed."""
    return {kind: _optuna(kind, asked) for kind in ("rdb with a heartbeat", "journal")}


def _optuna(kind: str, asked: argparse.Namespace) -> dict[str, Any]:
    trials = 4 * asked.rounds
    with tempfile.TemporaryDirectory(prefix="rg") as folder:
        place = Path(folder)
        (place / "work.py").write_text(OPTUNA.replace("TRIALS", str(trials)))
        words = [sys.executable, "work.py", kind, folder, "0.2"]

        def steps() -> list[list[int]]:
            return [
                [int(word) for word in line.split()]
                for line in (place / "steps").read_text().splitlines()
            ]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL)

        workers = [start()]
        await_((place / "steps").exists, "a first step")
        workers += [start(), start()]
        killed = 0
        for n in range(3):
            enough = len(steps()) + 30
            await_(partial(_more_than, steps, enough), "steps")
            workers[n].kill()
            workers[n].wait()
            killed += 1
            workers.append(start())
        for worker in workers[3:]:
            worker.wait()
        reader = (
            "import optuna, sys, collections;"
            "kind, folder = sys.argv[1:];"
            "s = optuna.storages;"
            "storage = s.JournalStorage(s.journal.JournalFileBackend(folder + '/journal.log'))"
            " if kind == 'journal' else s.RDBStorage('sqlite:///' + folder + '/study.db');"
            "study = optuna.load_study(study_name='s', storage=storage);"
            "print(dict(collections.Counter(t.state.name for t in study.trials)))"
        )
        said = subprocess.run(
            [sys.executable, "-c", reader, kind, folder],
            capture_output=True,
            text=True,
            check=True,
        )
        done = steps()
        ended = {number for number, step in done if step == 20}
        return {
            "workers killed": killed,
            "states": said.stdout.strip(),
            "steps of trials that never ended": sum(number not in ended for number, _ in done),
            "steps in all": len(done),
        }


def _more_than(rows: Callable[[], list[Any]], count: int) -> bool:
    return len(rows()) > count


PARTS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "chaos": chaos,
    "head": head,
    "optuna": optuna,
    "arrive": arrive,
    "many": many,
}


def main() -> None:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--trials", type=int, default=90)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a step")
    parser.add_argument("--leader-kills", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds, of `many`")
    parser.add_argument("--cut", type=float, default=60.0, help="seconds; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    before = os.getloadavg()[0]
    found = PARTS[asked.part](asked)
    load = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(json.dumps({"part": asked.part, **found, "load": load}, indent=1))


if __name__ == "__main__":
    main()
