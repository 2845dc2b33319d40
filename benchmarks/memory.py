"""How much memory an experiment takes, and how long what comes after: ours and Ray Tune's, on the
same work in one run.

    python -m benchmarks.memory --only wide   # or many; --quick: a small part of it

*wide*: two trials of 5,000 steps that report 1, 50 and 500 metrics a step. *many*: 10,000 trials of
100 steps of 10 metrics. Counted is the peak of all processes together (PSS), Ray's own apart. Ray
Tune is ended at 12 GB or after ten minutes, and then its row says so. README.md beside this file
has the last results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.overhead_memory import Memory
from benchmarks.overhead_sides import MARK, Sandbox, sandbox
from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places

MOST_MB, MOST_SECONDS = 12_000.0, 600.0
TRAIN = """
def train(trial):
    x = trial.config["x"]
    for _ in trial.steps():
        trial.report({{"score": x, **{{f"m{{n}}": x / (n + 1) for n in range({metrics} - 1)}}}})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """So many trials of so many steps, each with so many metrics, on two slots."""

    trials: int
    steps: int
    metrics: int

    def __str__(self) -> str:
        return f"{self.trials:,} x {self.steps:,} steps x {self.metrics} metrics"

    @property
    def numbers(self) -> int:
        """How many numbers are reported in all."""
        return self.trials * self.steps * self.metrics


@dataclass(slots=True, kw_only=True)
class Measured:
    """MB of our processes (or Ray Tune's) and of Ray's own, seconds, what the largest were; why it
    was ended, if it was.
    """

    own: float
    ray: float
    seconds: float
    largest: dict[str, float]
    ended: str = ""
    after: dict[str, float]
    """Seconds that each command took then."""


def ours(box: Sandbox, work: Work) -> Measured:
    """`regrow run`, and then what a user types next."""
    state = box.folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    (box.folder / "work.py").write_text(TRAIN.format(metrics=work.metrics))
    spec = {
        "name": "bench",
        "trainable": "work.py:train",
        "metric": "score",
        "mode": "max",
        "space": {"x": {"uniform": [0, 1]}},
        "search": "random",
        "trials": work.trials,
        "max_steps": work.steps,
        "concurrency": 2,
    }
    (box.folder / "bench.yaml").write_text(json.dumps(spec))
    seen = Memory(f"{MARK}={box.folder}")
    regrow = [sys.executable, "-m", "regrow"]
    session = box.time([*regrow, "run", "bench.yaml", "--state", str(state)], seen.watch)
    history = replay(Places.at(str(state)).store("bench"))
    assert [trial.step for trial in history.trials] == [work.steps] * work.trials
    after: dict[str, float] = {}
    more = ["--trials", str(work.trials + 1)]
    for what, verb, words in (
        ("show", "show", []),
        ("best", "best", []),
        ("what MLflow had not yet", "resume", []),
        ("resume", "resume", []),
        ("resume with one more trial", "resume", more),
    ):
        command = [*regrow, verb, "bench", *words, "--state", str(state)]
        after[what] = box.time(command).process
    return Measured(
        own=seen.own_peak,
        ray=seen.peak - seen.own_peak,
        seconds=session.process,
        largest=seen.own,
        after=after,
    )


def tune(box: Sandbox, work: Work) -> Measured:
    """Ray Tune's run of the same work, as far as it comes."""
    script = Path(__file__).with_name("overhead_tune.py")
    command = [
        sys.executable,
        str(script),
        str(work.trials),
        str(work.steps),
        "0",
        str(box.folder),
        str(work.metrics),
    ]
    seen = Memory(f"{MARK}={box.folder}")
    began = time.monotonic()
    try:
        box.time(command, partial(seen.watch, most_mb=MOST_MB, seconds=MOST_SECONDS))
    except RuntimeError as error:
        seen.ended = seen.ended or str(error).strip().splitlines()[-1][:100]
    return Measured(
        own=seen.own_peak,
        ray=seen.peak - seen.own_peak,
        seconds=time.monotonic() - began,
        largest=seen.own,
        ended=seen.ended,
        after={},
    )


def wide(quick: bool) -> list[Work]:
    """Two trials, more and more metrics."""
    return [
        Work(trials=2, steps=500 if quick else 5000, metrics=metrics) for metrics in (1, 50, 500)
    ]


def many(quick: bool) -> list[Work]:
    """Many trials."""
    return [Work(trials=300 if quick else 10_000, steps=20 if quick else 100, metrics=10)]


WORKS = {"wide": wide, "many": many}


def rows(work: Work, sides: dict[str, Measured]) -> list[str]:
    """Lines of a table in Markdown."""
    lines = []
    for who, found in sides.items():
        after = ", ".join(f"{what} {seconds:.1f}" for what, seconds in found.after.items())
        lines.append(
            f"| {work} | {who} | {found.own:,.0f} | {found.ray:,.0f} | {found.seconds:,.0f} |"
            f" {after or found.ended or '-'} |"
        )
    if len(sides) == 2:
        here, there = sides["ours"], sides["Ray Tune"]
        lines.append(
            f"| | times smaller | {there.own / here.own:.2f} | | {there.seconds / here.seconds:.2f}"
            " times faster | |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="wide,many", help="some of: %(default)s")
    parser.add_argument("--metrics", type=int, help="of `wide`, only with so many metrics")
    parser.add_argument(
        "--rival", action=argparse.BooleanOptionalAction, default=True, help="Ray Tune, too"
    )
    parser.add_argument("--quick", action="store_true", help="a small part of the work")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        "| work | who | peak MB | and Ray's own | seconds | then, seconds |",
        "|---|---|---:|---:|---:|---|",
    ]
    largest: list[str] = []
    for work in (work for name in options.only.split(",") for work in WORKS[name](options.quick)):
        if options.metrics not in (None, work.metrics):
            continue
        sides: dict[str, Measured] = {}
        for who, side in (("ours", ours), ("Ray Tune", tune)):
            if who == "ours" or options.rival:
                with sandbox() as box:
                    sides[who] = side(box, work)
                print(*rows(work, {who: sides[who]}), sep="\n", flush=True)
                parts = ", ".join(f"{name} {mb:.0f}" for name, mb in sides[who].largest.items())
                largest.append(f"{work}, {who}: {parts}")
        lines += rows(work, sides)
    print(
        f"\n{os.cpu_count()} {platform.machine()} cores, load average {load:.1f} before and"
        f" {os.getloadavg()[0]:.1f} after\n"
    )
    print(*lines, "", *largest, sep="\n")


if __name__ == "__main__":
    main()
