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
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.system.conftest import Desk, desk_in
from tests.system.joined import SPEC, Agent, Fleet, fleet
from tests.system.test_main_job import check_whole

NAME = "chaos"
TICK = 0.2
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
        self.back = {host: 0.0 for host in range(len(self.site.hosts))}
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


PARTS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"chaos": chaos}


def main() -> None:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--trials", type=int, default=90)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a step")
    parser.add_argument("--leader-kills", type=int, default=10)
    parser.add_argument("--cut", type=float, default=60.0, help="seconds; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    before = os.getloadavg()[0]
    found = PARTS[asked.part](asked)
    load = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(json.dumps({"part": asked.part, **found, "load": load}, indent=1))


if __name__ == "__main__":
    main()
