"""How soon an experiment begins and ends for whoever types it: with a station, without one, beside
Optuna and Ray Tune.

    python benchmarks/station.py --runs 5

The work trains nothing: 4 trials of 2 reports on two slots. The sides take turns, in an order that
is reversed each time, each in a sandbox with a home of its own; a first run of each is not counted.
*First report*: from the typed command to the first report of the user's function. *Prompt*: from
the end of the last trial's function to the prompt. Optuna runs the same function in its own
process, one trial after the other, in memory: nothing of it is recorded, and nothing survives. With
a station the prompt comes when the log is closed, and MLflow and Prefect are told after that, which
is awaited between the runs.

How long `regrow up` takes until a driver waits, and what the station has of memory then, is told as
well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.overhead import about, shown
from benchmarks.overhead_sides import Sandbox, Session, Work, ours, sandbox, tune, write_spec
from regrow.infra.state import station_record as record
from regrow.infra.state.driver_lock import await_final_reports
from regrow.infra.state.places import Places

RESULTS = Path(__file__).parent / "results" / "station.json"
WORK = Work(trials=4, reports=2)
STATION, ALONE, OPTUNA, TUNE = "station", "without", "Optuna", "Ray Tune"
READY_SECONDS = 120.0
OPTUNA_SIDE = """
import sys
import time
from pathlib import Path

import optuna

FOLDER, FIRST = Path(sys.argv[1]), Path(sys.argv[1]) / "first-report"


def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range({reports}):
        trial.report(x, step)
        if not FIRST.exists():
            FIRST.write_text(str(time.time()))
    (FOLDER / "last-report").write_text(str(time.time()))
    return x


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
study.optimize(objective, n_trials={trials})
print(study.best_value)
"""


def optuna(box: Sandbox) -> Session:
    """The same function in a process of Optuna's."""
    (box.folder / "optuna_side.py").write_text(
        OPTUNA_SIDE.format(reports=WORK.reports, trials=WORK.trials)
    )
    return box.time([sys.executable, "optuna_side.py", str(box.folder)])


class Station:
    """A sandbox with a station, to which runs are handed over."""

    def __init__(self, box: Sandbox) -> None:
        self.box, self.places, self._count = box, Places.at(str(box.folder / "state")), 0
        began = time.monotonic()
        self._regrow("up")
        self.start_seconds = time.monotonic() - began
        self.await_driver()
        parts = json.loads(self._regrow("status", "--json"))["parts"]
        self.memory = sum(part["memory"] for part in parts)

    def run(self, _: Sandbox) -> Session:
        """A run when a driver waits, checked once everybody was told of it."""
        self.await_driver()
        self._count += 1
        name = f"bench{self._count}"
        spec = write_spec(self.box.folder, WORK)
        (self.box.folder / "bench.yaml").write_text(json.dumps({**spec, "name": name}))
        command = [
            sys.executable,
            "-m",
            "regrow",
            "run",
            "bench.yaml",
            "--quiet",
            "--state",
            self.places.root,
        ]
        session = self.box.time(command)
        assert await_final_reports(self.places, name, lambda: True)
        return session

    def await_driver(self) -> None:
        """Returns when a driver waits and the machine has nothing else of the station's to do."""
        deadline = time.monotonic() + READY_SECONDS
        while not any(record.drivers(record.folder_of(self.places), idle=True)):
            assert time.monotonic() < deadline, "no driver came"
            time.sleep(0.1)
        time.sleep(5.0)  # its workers load what they take

    def end(self) -> None:
        """Ends the station."""
        self._regrow("down")

    def _regrow(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "regrow", *arguments, "--state", self.places.root]
        done = subprocess.run(
            command,
            env=self.box.environment,
            cwd=self.box.folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        return done.stdout


def measure(
    sides: dict[str, tuple[Sandbox, Callable[[Sandbox], Session]]], runs: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds by side and name."""
    for box, run in sides.values():
        run(box)
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in sides}
    for number in range(runs):
        for name in reversed(sides) if number % 2 else sides:
            box, run = sides[name]
            session = run(box)
            times = {
                "first report": session.first_report,
                "prompt": session.last_report,
                "whole": session.process,
            }
            for what, value in times.items():
                found[name][what].append(value)
            print(
                f"run {number + 1}, {name}:"
                f" {', '.join(f'{what} {s:.2f} s' for what, s in times.items())}",
                flush=True,
            )
    return found


def table(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Lines of Markdown: medians with their range, and how much of the other sides' the station's
    are.
    """
    others = [name for name in found if name != STATION]
    heads = [*found, *(f"station / {name}" for name in others)]
    lines = [f"| seconds | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for what, ours_ in found[STATION].items():
        ratios = [
            f"{statistics.median(a / b for a, b in zip(ours_, found[name][what], strict=True)):.2f}"
            for name in others
        ]
        lines.append(
            f"| {' | '.join([what, *(shown(found[name][what]) for name in found), *ratios])} |"
        )
    return lines


def main() -> None:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--runs", type=int, default=5)
    runs = arguments.parse_args().runs
    with ExitStack() as stack:
        boxes = [stack.enter_context(sandbox()) for _ in range(4)]
        station = Station(boxes[0])
        print(
            f"regrow up: {station.start_seconds:.1f} s until everything was ready,"
            f" {station.memory / 1e6:,.0f} MB",
            flush=True,
        )
        try:
            found = measure(
                {
                    STATION: (boxes[0], station.run),
                    ALONE: (boxes[1], lambda box: ours(box, WORK)),
                    OPTUNA: (boxes[2], optuna),
                    TUNE: (boxes[3], lambda box: tune(box, WORK)),
                },
                runs,
            )
        finally:
            station.end()
    print("\n".join(table(found)))
    RESULTS.parent.mkdir(exist_ok=True)
    told = {
        "about": about(),
        "start": station.start_seconds,
        "memory": station.memory,
        "runs": found,
    }
    RESULTS.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
