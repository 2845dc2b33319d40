"""How good the search is on tasks that it never saw: regret on a continuum, where what is learnt of a configuration pays.

    python benchmarks/heldout.py                       # 20 seeds, half an hour; writes benchmarks/results/heldout.md
    python benchmarks/heldout.py --only tpe random --seeds 5 --out /tmp/heldout

After Ctrl-C it writes what it has of the seeds that are complete.

`quality.py` compares the same methods on tables of 300 configurations, where a search that has found the best one's neighbourhood
finds nothing better there. Here (`surrogate.py`) every configuration has a curve of its own: five tasks that interpolate those
tables, and a quadratic function of six numbers whose first step is half noise.

Four workers under the virtual clock of `clock.py`, for as long as 30 configurations take to be trained to their last step; rungs
at 1, 3 and 9 of 27 steps. Regret is 0 at the best of 2,000 random configurations and 1 at their median, so it may get below 0.
Every task and method has seeds of its own. Medians over tasks and seeds, with a 95 % interval by a bootstrap that resamples the
seeds of each task. One method is there twice ("again"): how far two rows differ by chance.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", RAY_AIR_NEW_OUTPUT="0")  # before NumPy and Ray are loaded

import numpy as np
import numpy.typing as npt

from benchmarks.clock import Task, simulate
from benchmarks.quality import HERE, TASKS, optuna, ours, tune
from benchmarks.rivals import WORKERS
from benchmarks.surrogate import Continuum, Quadratic

Floats = npt.NDArray[np.float64]
RESAMPLES = 2000
PLAIN: Any = {"tpe": {"like_optuna": True}}

METHODS = {
    method.name: method
    for method in (
        ours("random", "random", "fifo"),
        replace(ours("random", "random", "fifo"), how="random, fifo, again"),
        ours("random", "random", "asha"),
        ours("random", "random", "async_hyperband"),
        ours("TPE", "tpe", "fifo"),
        ours("TPE", "tpe", "median"),
        ours("TPE", "tpe", "asha"),
        ours("TPE", "tpe", "hyperband"),
        ours("TPE", "tpe", "async_hyperband"),
        *(replace(ours("TPE", PLAIN, schedule), how=f"tpe like_optuna, {schedule}") for schedule in ("asha", "async_hyperband")),
        ours("BOHB", "bohb", "hyperband"),
        ours("BOHB", "bohb", "asha"),
        ours("GP", "gp", "fifo"),
        optuna("TPE", "tpe", "none"),
        optuna("TPE", "tpe", "halving"),
        optuna("TPE", "tpe", "hyperband"),
        tune("TPE", "optuna", "asha"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One search: the regret at the end and its mean over the budget, trials begun, steps taken."""

    method: str
    task: str
    seed: int
    final: float
    mean: float
    trials: int
    steps: int


@cache
def task_named(name: str) -> Task:
    """A task, made once a process."""
    return Quadratic() if name == "quadratic" else Continuum(HERE / "curves" / f"{name}.yaml")


def run(job: tuple[str, str, int, float]) -> Run:
    """One method on one task with one seed, for the time of so many trainings."""
    method, name, seed, trainings = job
    task = task_named(name)
    budget = trainings * task.training / WORKERS
    own = int.from_bytes(hashlib.sha256(f"{name}:{method}:{seed}".encode()).digest()[:4], "big")
    best, trials, steps = simulate(METHODS[method].make(task, own), task, workers=WORKERS, seconds=budget)
    at = np.array([0.0, *(when for when, _ in best), budget])
    regrets = np.array([1.0, *(task.regret(score) for _, score in best)])
    mean = float((np.diff(at) * regrets).sum() / budget)
    return Run(method=method, task=name, seed=seed, final=float(regrets[-1]), mean=mean, trials=trials, steps=steps)


def grid(runs: Sequence[Run], method: str, what: str) -> Floats:
    """A number of each run of a method, by task and seed."""
    tasks, seeds = list(dict.fromkeys(run.task for run in runs)), sorted({run.seed for run in runs})
    found = {(run.task, run.seed): getattr(run, what) for run in runs if run.method == method}
    return np.array([[found[task, seed] for seed in seeds] for task in tasks])


def middle(values: Floats) -> str:
    """The median with its interval."""
    tasks, seeds = values.shape
    picks = np.random.default_rng(0).integers(0, seeds, size=(RESAMPLES, tasks, seeds))
    medians = np.median(np.take_along_axis(values[None], picks, axis=2).reshape(RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return f"{np.median(values):.3f} ({low:.3f} to {high:.3f})"


def report(runs: Sequence[Run], about: str) -> str:
    """The table, in Markdown, the least regret first."""
    methods, tasks = list(dict.fromkeys(run.method for run in runs)), list(dict.fromkeys(run.task for run in runs))
    methods.sort(key=lambda method: float(np.median(grid(runs, method, "final"))))
    head = ["method", "trials", "steps", "regret at the end", "over time", *tasks]
    lines = ["# Regret on tasks never seen", "", about, "", "| " + " | ".join(head) + " |"]
    lines.append("|---" + "|---:" * (len(head) - 1) + "|")
    for method in methods:
        final = grid(runs, method, "final")
        counts = [f"{grid(runs, method, what).mean():.0f}" for what in ("trials", "steps")]
        cells = [method, *counts, middle(final), middle(grid(runs, method, "mean"))]
        lines.append("| " + " | ".join([*cells, *(f"{value:.3f}" for value in np.median(final, axis=1))]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trainings", type=float, default=30, help="the budget of worker time, in mean full trainings")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", nargs="+", help="methods whose name contains one of these")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    start = time.perf_counter()
    methods = [m for m in METHODS if not options.only or any(word in m for word in options.only)]
    tasks = [*TASKS, "quadratic"]
    jobs = [(method, task, seed, options.trainings) for seed in range(options.seeds) for method in methods for task in tasks]
    runs: list[Run] = []
    try:
        with multiprocessing.get_context("spawn").Pool(options.jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            for done in pool.imap(run, jobs, chunksize=2):
                runs.append(done)
                if len(runs) % (len(methods) * len(tasks)) == 0:
                    print(f"seed {done.seed + 1} of {options.seeds}, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    except KeyboardInterrupt:
        options.seeds = len(runs) // (len(methods) * len(tasks))
        runs = [each for each in runs if each.seed < options.seeds]
        if options.seeds < 2:
            raise
    about = (
        f"{len(tasks)} tasks, {options.seeds} seeds each, {WORKERS} workers, {options.trainings:g} full trainings of worker "
        f"time. Python {platform.python_version()}. Medians with 95 % intervals; in the last columns by task, at the end."
    )
    text = report(runs, about)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "heldout.md").write_text(text)
    print(text)
    print(f"{len(runs)} searches in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
