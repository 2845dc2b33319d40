"""An experiment on a real Slurm that takes its nodes away: what is done again, how long it waits.

    python -m benchmarks.slurm

A login node and two nodes of four CPUs, as hosts (`tests/lab/hosts.py`), so it needs root, Debian's
packages slurmctld, slurmd, slurm-client and munge, and the repository's folder. One job array of
eight agents with a time limit of three minutes, two of which they work, is preempted twice by
jobs of a higher partition, each of which takes a whole node; one node is set down, one element is
cancelled. Nothing is typed meanwhile. It fails unless each value is that of a run that nobody
disturbed, each (trial, step) is there once, and `regrow verify` recomputes all decisions.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path

from tests.lab import batch, hosts
from tests.system.hosts import await_
from tests.system.test_slurm import ROOT, Field

AGENTS, CPUS, MINUTES = 8, 4, 3
WAIT_SECONDS = 0.5
"""Seconds of a step."""
TICK = 0.5


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rs", dir="/tmp") as place:
        lab = hosts.Hosts(Path(place), visible=[ROOT])
        try:
            with batch.slurm(lab, cpus=CPUS) as slurm:
                _disturbed(Field(slurm, Path(place)), given.trials, given.steps)
        finally:
            lab.stop()


def _disturbed(field: Field, trials: int, steps: int) -> None:
    slurm = field.slurm
    field.write(
        "sweep",
        wait=WAIT_SECONDS,
        trials=trials,
        steps=steps,
        agents=AGENTS,
        cpus=1,
        time=MINUTES * 60,
        memory="1700MB",
    )
    began = time.monotonic()
    run, said = field.start("sweep")
    total = trials * steps
    field.await_steps("sweep", 1, "first step")
    first = time.monotonic() - began
    done: list[str] = []

    def at(share: float, what: str) -> None:
        await_(
            lambda: run.poll() is not None or field.steps("sweep") >= share * total,
            f"{share:.0%} of the steps",
            seconds=1200,
        )
        done.append(f"{what}, at {field.steps('sweep')} of {total} steps")
        print(f"{time.monotonic() - began:4.0f} s  {done[-1]}", flush=True)

    take = ("sbatch", "-p", "high", "--exclusive", "--mem=9000", "--wrap", "sleep 10")
    node = field.leaders_node("sweep")
    at(0.1, f"a higher job takes {node}, where the leader is")
    slurm.run(*take, "-w", node)
    at(0.35, "one element is cancelled")
    job = next(name.partition("_")[0] for name in slurm.jobs() if "_" in name)
    slurm.run("scancel", f"{job}_5")
    at(0.5, "a higher job takes node1")
    slurm.run(*take, "-w", "node1")
    at(0.7, "node2 is set down")
    slurm.run("scontrol", "update", "nodename=node2", "state=down", "reason=benchmark")
    code = run.wait(1800)
    took = time.monotonic() - began
    assert code == 0, said.read_text()
    field.check_whole("sweep", trials, steps)
    _table(field, job, took=took, first=first, steps=total)


def _table(field: Field, job: str, *, took: float, first: float, steps: int) -> None:
    shown = json.loads(field.here("show", "sweep", "--json"))
    told = [field.slurm.run("scontrol", "show", "job", f"{job}_{n + 1}") for n in range(AGENTS)]
    restarts = [int(n) for text in told for n in re.findall(r"Restarts=(\d+)", text)]
    attempts = [attempt for trial in shown["trials"] for attempt in trial["attempts"]]
    rows = {
        "starts of the eight elements": AGENTS + sum(restarts),
        "agents that led, one after the other": sum(agent["led"] > 0 for agent in shown["agents"]),
        "attempts that had to leave, or were lost": sum(
            attempt["outcome"] != "done" for attempt in attempts
        ),
        "steps": steps,
        "steps done again": shown["wasted_steps"],
        "seconds from the command to the first step": f"{first:.0f}",
        "seconds in all": f"{took:.0f}",
        "commands typed meanwhile": 0,
    }
    print("\n| | |\n|---|---:|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
