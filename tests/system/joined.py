"""Agents on hosts of their own (`hosts.py`), as a test or a benchmark starts, loses and counts
them. The state is a folder that all hosts see; each has a home of its own. No test lives here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from regrow.infra.state.agents import Agents, Term
from tests.system.conftest import Desk
from tests.system.hosts import Host, await_, network

T = TypeVar("T")
TRAIN = """
import random, time


def train(trial):
    total = float((trial.restored / "total").read_text()) if trial.restored else 0.0
    for step in trial.steps():
        time.sleep(SECONDS)
        total = 0.9 * total + trial.config["x"] * random.Random(trial.number * 1000 + step).random()
        trial.report({"score": total}, checkpoint=lambda folder: (folder / "total").write_text(repr(total)))
"""
SPEC: dict[str, Any] = {
    "train": TRAIN,
    "space": {"x": {"uniform": [0.1, 1.0]}},
    "concurrency": None,
    "resources": {"cpu": 1},
    "checkpoint": {"every_steps": 1, "keep_last": 2},
    "retries": {"preempted": "unlimited", "infrastructure": "unlimited", "error": 0},
}
"""What is summed up step by step is of a trial's own making: a step that is left out, or done
twice, changes all that follow.
"""

PATIENCE = 300.0
"""Seconds for anything that is waited for, on a busy machine."""
_NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh")
"""Runs a command, after the host's name, where the machine has that name."""


@dataclass(kw_only=True)
class Agent:
    """One agent, as its user started it on a host."""

    host: Host
    process: subprocess.Popen[bytes]
    said: Path

    def leave(self) -> None:
        """It is told to leave."""
        self.process.send_signal(signal.SIGTERM)

    def leave_with_all(self) -> None:
        """SIGUSR1 for all that runs on its host, as Slurm's `srun` passes it on."""
        for pid in self.host.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)

    def kill(self) -> None:
        """SIGKILL for the agent's own process."""
        self.process.kill()
        self.process.wait()

    def lose(self) -> None:
        """SIGKILL for all that runs on its host, again until nothing does."""
        while left := self.host.processes():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)

    @property
    def runs(self) -> bool:
        """Whether its process does."""
        return self.process.poll() is None

    def ended(self) -> str:
        """What it said, once it has ended and nothing of it is left on its host."""
        await_(lambda: not self.runs, f"its end; it said:\n{self.said.read_text()}", PATIENCE)
        await_(lambda: not self.host.processes(), "the end of its processes")
        return self.said.read_text()


@dataclass(kw_only=True)
class Fleet:
    """Hosts and the agents that were started on them."""

    desk: Desk
    hosts: list[Host]
    agents: list[Agent] = field(default_factory=list)

    def join(self, host: int, *words: object, **environment: str) -> Agent:
        """Starts `regrow join ...` on a host."""
        on = self.hosts[host]
        home = self.desk.folder / on.name
        home.mkdir(exist_ok=True)
        said = home / f"said-{len(self.agents)}"
        own = {"HOME": str(home), "REGROW_STATE": str(self.desk.folder / ".regrow")}
        with said.open("wb") as file:
            process = subprocess.Popen(
                on.command(
                    *_NAMED, on.name, sys.executable, "-m", "regrow", "join", *map(str, words)
                ),
                cwd=self.desk.folder,
                env={**self.desk.environment, **own, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        agent = Agent(host=on, process=process, said=said)
        self.agents.append(agent)
        return agent

    def leader(self, name: str, after: int = 0) -> tuple[int, Agent] | None:
        """The newest term's number, if it is later than `after`, and its leader, if that runs."""
        seen = Agents(self.desk.places.store(name))
        seen.refresh()
        if seen.term <= after or not isinstance(claim := seen.claim, Term):
            return None
        member = seen.member(claim.agent)
        for agent in self.agents:
            if member is not None and agent.runs and agent.process.pid == member.process:
                return seen.term, agent
        return None

    def await_leader(self, name: str, after: int = 0) -> tuple[int, Agent]:
        """The leader of a later term than `after`, once it is there."""
        return self.wait(lambda: self.leader(name, after), f"a leader after term {after}")

    def events(self, name: str, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Those of a kind that are in the log by now, with these values; none while it is being
        written.
        """
        with suppress(OSError, json.JSONDecodeError):
            return [
                e
                for e in self.desk.events(name)
                if e["event"] == kind and fields.items() <= e.items()
            ]
        return []

    def wait(self, what: Callable[[], T | None], name: str, seconds: float = PATIENCE) -> T:
        """What the condition gives, once it is true."""
        try:
            return await_(what, name, seconds)
        except AssertionError as error:
            said = [f"{a.host.name}: {a.said.read_text()}" for a in self.agents]
            raise AssertionError("\n".join([str(error), *said])) from None


@contextmanager
def fleet(desk: Desk, count: int) -> Iterator[Fleet]:
    """Hosts without an agent yet; all that runs on them is killed at the end of the block."""
    agents: list[Agent] = []
    try:
        with network(count) as hosts:
            yield Fleet(desk=desk, hosts=hosts, agents=agents)
    finally:
        for agent in agents:
            agent.process.wait()


def scores(number: int, x: float, steps: int) -> list[float]:
    """Those of a trial that did all its steps itself."""
    import random

    total, found = 0.0, []
    for step in range(1, steps + 1):
        total = 0.9 * total + x * random.Random(number * 1000 + step).random()
        found.append(total)
    return found


def allow(host: Host, first: int, last: int) -> None:
    """A firewall on a host: of what others begin, these TCP ports alone come in."""
    _rules(host, f"tcp dport {first}-{last} accept")


def behind_nat(host: Host) -> None:
    """The host reaches the others, and nothing that they begin comes in, as behind NAT."""
    _rules(host, "")


def _rules(host: Host, accepted: str) -> None:
    table = f"""
    table inet guard {{
        chain input {{
            type filter hook input priority 0; policy drop;
            iif lo accept
            ct state established,related accept
            {accepted}
            counter drop
        }}
    }}
    """
    subprocess.run(host.command("nft", "-f", "-"), input=table, text=True, check=True, timeout=30)


def dropped(host: Host) -> int:
    """The packets that its firewall has dropped."""
    said = subprocess.run(
        host.command("nft", "-j", "list", "table", "inet", "guard"),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    counts = [
        part["counter"]["packets"]
        for entry in json.loads(said.stdout)["nftables"]
        for part in entry.get("rule", {}).get("expr", ())
        if "counter" in part
    ]
    return int(sum(counts))


def listened(host: Host) -> list[int]:
    """The TCP ports at which something listens for other hosts."""
    said = subprocess.run(
        host.command("ss", "-Htln"), capture_output=True, text=True, check=True, timeout=30
    )
    places = [line.split()[3].rpartition(":") for line in said.stdout.splitlines()]
    return [int(port) for address, _, port in places if not address.startswith("127.")]
