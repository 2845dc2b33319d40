"""What running an experiment costs beside the training itself: ours and Ray Tune's, on the same
work in the same run.

    python benchmarks/overhead.py --only trials,reports --rounds 3 --json overhead.json

The sides take turns, so that both meet the same load of the machine; printed are medians over the
rounds, their range, and how many times faster or smaller ours is. README.md beside this file says
what each benchmark measures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import overhead_resume as resuming
from benchmarks.overhead_memory import Memory
from benchmarks.overhead_sides import MARK, Sandbox, Work, ours, sandbox, tune

RESULTS = Path(__file__).parent / "results" / "overhead.json"
Measured = dict[str, list[float]]
"""Values of all rounds by "what: who"."""


def trials(rounds: int, quick: bool) -> Measured:
    """1,000 no-op trials of one report on two slots."""
    return _pairs(Work(trials=100 if quick else 1000, reports=1), rounds)


def reports(rounds: int, quick: bool) -> Measured:
    """Two trials of 5,000 reports: reports a second."""
    work = Work(trials=2, reports=500 if quick else 5000)
    seconds = _pairs(work, rounds)
    rates = {
        f"{what.removesuffix(' s')} reports/s: {who}": [
            work.trials * work.reports / s for s in values
        ]
        for (what, who), values in ((key.split(": "), values) for key, values in seconds.items())
        if what in ("process s", "experiment s")
    }
    return seconds | rates


def cold(rounds: int, quick: bool) -> Measured:  # noqa: ARG001  # it is as quick as can be already
    """From the typed command to the first report, with an empty home and again."""
    found: Measured = defaultdict(list)
    work = Work(trials=2, reports=1)
    for _ in range(rounds):
        for who, side in (("ours", ours), ("ray tune", tune)):
            with sandbox() as box:
                for what in ("first start", "second start"):
                    session = side(box, work)
                    found[f"{what}, to first report s: {who}"].append(session.first_report)
                    found[f"{what}, process s: {who}"].append(session.process)
                    found[f"{what}, cpu s: {who}"].append(session.cpu)
    return found


def memory(rounds: int, quick: bool) -> Measured:
    """Peak memory of the command and all that it starts, over a 10 s experiment of two trials."""
    found: Measured = defaultdict(list)
    work = Work(trials=2, reports=20 if quick else 100, seconds=0.1)
    for _ in range(rounds):
        for who, side in (("ours", ours), ("ray tune", tune)):
            with sandbox() as box:
                seen = Memory(f"{MARK}={box.folder}")
                side(box, work, seen.watch)
                found[f"peak MB: {who}"].append(seen.peak)
                for name, megabytes in seen.breakdown.items():
                    found[f"  {name} MB: {who}"].append(megabytes)
    return found


def resume(rounds: int, quick: bool) -> Measured:
    """`regrow resume` of a log of 10,000 trials under ASHA to its first new trial's first
    report.
    """
    found: Measured = defaultdict(list)
    count = 1000 if quick else 10_000
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as folder:
        for search, compact in (("random", True), ("tpe", True), ("random", False)):
            made = resuming.make_state(Path(folder), count, search=search, compact=compact)
            what = f"{search}, log {'compacted' if compact else 'not compacted'}"
            for name, value in resuming.replay_parts(made).items():
                found[f"{what}, {name}: ours"].append(value)
            for up in (False, True) if (search, compact) == ("tpe", True) else (False,):
                with sandbox() as box:
                    ours(box, Work(trials=1, reports=1))  # not a first start
                    for _ in range(rounds):
                        session = resuming.resume(box, made, _services if up else _no_services)
                        case = f"{what}{', Prefect up' if up else ''}"
                        found[f"{case}, to first report s: ours"].append(session.first_report)
                        for name in ("start", "to first trial"):
                            found[f"{case}, of it {name} s: ours"].append(session.parts[name])
                        found[f"{case}, process s: ours"].append(session.process)
    return found


def ask(rounds: int, quick: bool) -> Measured:
    """Latency of a proposal at 100, 1,000 and 10,000 trials, beside plain Optuna."""
    found: Measured = defaultdict(list)
    sizes = ["100", "1000"] if quick else ["100", "1000", "10000"]
    for _ in range(rounds):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            script = str(Path(__file__).with_name("ask.py"))
            command = [sys.executable, script, "--json", file.name, "--sizes", *sizes]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            for row in json.loads(Path(file.name).read_text())["rows"]:
                for who in ("ours", "optuna"):
                    found[f"{row['search']}, {row['trials']} trials ms: {who}"].append(
                        row[f"{who}_ms"]
                    )
                found[f"{row['search']}, {row['trials']} trials, from nothing ms: ours"].append(
                    row["cold_ms"]
                )
    return found


BENCHMARKS: dict[str, Callable[[int, bool], Measured]] = {
    "trials": trials,
    "reports": reports,
    "cold": cold,
    "memory": memory,
    "resume": resume,
    "ask": ask,
}


def _pairs(work: Work, rounds: int) -> Measured:
    """Both sides' seconds: the whole process, and the experiment without imports and services."""
    found: Measured = defaultdict(list)
    sides = (("ours", ours, "experiment"), ("ray tune", tune, "fit"))
    with ExitStack() as stack:
        boxes = {who: stack.enter_context(sandbox()) for who, _, _ in sides}
        for who, side, _ in sides:
            side(boxes[who], Work(trials=1, reports=1))  # a first start is measured by `cold`
        for _ in range(rounds):
            for who, side, inner in sides:
                session = side(boxes[who], work)
                found[f"process s: {who}"].append(session.process)
                found[f"experiment s: {who}"].append(session.parts[inner])
                found[f"cpu s: {who}"].append(session.cpu)
                for name, value in session.parts.items():
                    if name != inner:
                        found[f"  {name} s: {who}"].append(value)
    return found


def _no_services(*_: object) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _services(box: Sandbox, state: Path) -> Iterator[None]:
    """The state's Prefect server is running: somebody has `regrow ui` open."""
    command = [sys.executable, "-m", "regrow", "ui", "--no-browser", "--state", str(state)]
    with subprocess.Popen(
        command,
        cwd=box.folder,
        env=box.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if b"Ctrl-C" in line:
                break
        try:
            yield
        finally:
            process.terminate()


def table(name: str, found: Measured) -> list[str]:
    """Lines of Markdown: medians, with the range of the rounds, and how many times better ours
    is.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for key, measured in found.items():
        what, _, who = key.rpartition(": ")
        values[what]["ours" if who == "ours" else "theirs"] = measured
    theirs = "Optuna" if name == "ask" else "Ray Tune"
    lines = [f"| {name} | ours | {theirs} | times better |", "|---|---:|---:|---:|"]
    for what, sides in values.items():
        ratio = ""
        if len(sides) == 2:
            here, there = statistics.median(sides["ours"]), statistics.median(sides["theirs"])
            ratio = f"{here / there if what.endswith('/s') else there / here:.2f}"
        lines.append(
            f"| {what} | {shown(sides.get('ours'))} | {shown(sides.get('theirs'))} | {ratio} |"
        )
    return lines


def shown(values: list[float] | None) -> str:
    """The median, and the range where there is more than one value."""
    if not values:
        return ""
    middle, low, high = statistics.median(values), min(values), max(values)
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    spread = f" ({low:.{digits}f} to {high:.{digits}f})" if len(values) > 1 else ""
    return f"{middle:.{digits}f}{spread}"


def about() -> dict[str, Any]:
    """When, on what and with which versions it was measured."""
    packages = ("regrow", "prefect", "ray", "mlflow", "optuna", "numpy")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="some of: %(default)s")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the work, to see that everything runs"
    )
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(BENCHMARKS):
        parser.error(f"--only: {', '.join(sorted(unknown))} (there are {', '.join(BENCHMARKS)})")
    results: dict[str, Any] = {}
    for name in chosen:
        load = [os.getloadavg()[0]]
        found = BENCHMARKS[name](options.rounds, options.quick)
        load.append(os.getloadavg()[0])
        results[name] = {"load": load, "rounds": found}
        print(
            f"\n{BENCHMARKS[name].__doc__} (load average {load[0]:.1f} before, {load[1]:.1f}"
            " after)\n"
        )
        print(*table(name, found), sep="\n", flush=True)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"about": about(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
