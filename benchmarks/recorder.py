"""What recording in MLflow costs, and how far behind it is: `python benchmarks/recorder.py [--runs
3]`.

An experiment of 200 trials of 100 steps with 5 metrics each, through the command line, with the
recorder and without it (an actor in its place that does nothing). The trials compute all the time,
in as many slots as there are CPUs, so that whatever the recorder takes, they lack. Prints how long
after the last trial MLflow has everything (want: 30 s), and the ratio of the median times of the
trials (want: 1.05).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from regrow.flows.recording.catch_up import is_recorded
from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.events import Began, Ended

TRAIN = """
import time


def train(trial):
    for step in trial.steps():
        until = time.process_time() + {seconds}
        while time.process_time() < until:
            pass
        trial.report({{name: trial.config["x"] / step for name in ("score", "a", "b", "c", "d")}})
"""
SPEC = """
name: bench
trainable: work.py:train
metric: score
mode: max
space: {{x: {{uniform: [0, 1]}}}}
search: random
trials: {trials}
max_steps: {steps}
"""
WITHOUT = """
import sys

import ray

from regrow.flows import conduct


class Nobody:
    def drained(self, number, timeout):
        return None

    def remarks(self):
        return []

    def pictures(self, names):
        return {}

    def run_of(self, trial, attempt):
        return None, "nothing is recorded"


def start(coordinator, places, name):
    # Threads, as the recorder has them.
    return ray.remote(Nobody).options(num_cpus=0, max_concurrency=32).remote()


conduct.start_recorder = start
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Seconds from the first trial's beginning to the last one's end, and from there to MLflow's
    last write (None: without).
    """

    training: float
    behind: float | None


def measured(trials: int, steps: int, seconds: float, *, recorder: bool) -> Run:
    """One run of the experiment."""
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as scratch:
        folder = Path(scratch)
        (folder / "work.py").write_text(TRAIN.format(seconds=seconds))
        (folder / "bench.yaml").write_text(SPEC.format(trials=trials, steps=steps))
        prelude = "" if recorder else WITHOUT
        command = (
            "import runpy, sys; sys.argv = ['regrow', 'run', 'bench.yaml'];"
            " runpy.run_module('regrow', run_name='__main__')"
        )
        program = f"{prelude}\n{command}\n"
        (folder / "program.py").write_text(program)
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("MLFLOW_", "PREFECT_", "REGROW_"))
        }
        done = subprocess.run(
            [sys.executable, "-P", "program.py"],
            cwd=folder,
            env=inherited,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        places = Places.at(str(folder / ".regrow"))
        if done.returncode:
            sys.exit(f"the experiment failed:\n{done.stdout}\n{done.stderr}")
        events = read_events(places.known("bench"))
        began = min(event.t for event in events if isinstance(event, Began))
        ended = max(event.t for event in events if isinstance(event, Ended))
        behind = None
        if recorder:
            if not is_recorded(places, "bench"):
                sys.exit(f"MLflow does not have everything:\n{done.stdout}")
            # its last write is the cursor
            behind = Path(places.mlflow_uri.removeprefix("sqlite:///")).stat().st_mtime - ended
        shutil.rmtree(folder / ".regrow", ignore_errors=True)
        return Run(training=ended - began, behind=behind)


def main() -> None:
    """Prints the measurements."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--runs", type=int, default=3, help="of each kind, one after the other in turn"
    )
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--seconds", type=float, default=0.004, help="of CPU that a step takes")
    given = options.parse_args()
    runs: dict[bool, list[Run]] = {True: [], False: []}
    for number in range(given.runs):
        for recorder in (True, False) if number % 2 else (False, True):
            found = measured(given.trials, given.steps, given.seconds, recorder=recorder)
            runs[recorder].append(found)
            behind = (
                ""
                if found.behind is None
                else f", MLflow has everything {found.behind:.1f} s later"
            )
            load = f"load {os.getloadavg()[0]:.1f}"
            print(
                f"{'with' if recorder else 'without'} the recorder: {found.training:.1f} s{behind}"
                f" ({load})",
                flush=True,
            )
    median = {
        kind: statistics.median(run.training for run in found) for kind, found in runs.items()
    }
    latest = max(run.behind for run in runs[True] if run.behind is not None)
    points = given.trials * given.steps * 5
    print(
        f"{points:,} points: MLflow has everything {latest:.1f} s after the last trial at most"
        " (want 30)"
    )
    print(
        f"trials with the recorder take {median[True] / median[False]:.3f} of their time without it"
        " (want 1.05)"
    )


if __name__ == "__main__":
    main()
