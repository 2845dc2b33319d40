"""How good the search is on tasks that it never saw: regret on a continuum, where what is learnt of
a configuration pays.

    YAHPO=FOLDER python benchmarks/heldout.py   # the twelve tasks to report: results/heldout.md
    YAHPO=FOLDER python benchmarks/heldout.py --tasks tuning  # the others, to choose constants on
    python benchmarks/heldout.py --only tpe random --seeds 5 --out /tmp/heldout
    python benchmarks/heldout.py --seeds 30 --known benchmarks/results/runs.json  # a part is there

After Ctrl-C it writes what it has of the seeds that are complete.

`quality.py` compares the same methods on tables of 300 configurations, where a search that has
found the best one's neighbourhood finds nothing better there. Here every configuration has a curve
of its own: YAHPO's surrogates (`yahpo.py`), and to tune on also five tasks that interpolate those
tables and a quadratic function of six numbers whose first step is half noise (`surrogate.py`).

Four workers under the virtual clock of `clock.py`, for as long as 30 configurations take to be
trained to their last step; rungs at 1, 3 and 9 of 27 steps. A training takes a minute, and a second
that a tuner computes is one during which it answers nobody. Regret is 0 at the best of 2,000 random
configurations and 1 at their median, so it may get below 0. Every task, method and seed has chance
of its own. Interquartile means over tasks and seeds, with 95 % intervals by a bootstrap that
resamples the seeds of each task (Agarwal et al., NeurIPS 2021), and of each method's difference to
the first. One method is there twice ("again"): how far two rows differ by chance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

# before NumPy and Ray are loaded
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", RAY_AIR_NEW_OUTPUT="0")

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from benchmarks import yahpo
from benchmarks.clock import Task, simulate
from benchmarks.ours import Regrow
from benchmarks.quality import HERE, TASKS, optuna, ours, syne, tune
from benchmarks.rivals import WORKERS, SyneTune
from benchmarks.surrogate import Continuum, Quadratic
from benchmarks.yahpo import Yahpo
from regrow.search.events import Known
from regrow.search.planning.learning import learnt_from

Floats = npt.NDArray[np.float64]
RESAMPLES = 2000
PLAIN: Any = {"tpe": {"like_optuna": True}}
MINUTE = 60.0
"""What a training takes, when a tuner's own seconds are counted."""
LEARNT = 5
"""Experiments on tasks to tune on, of the same parameters, that one with `learn_from` begins
with.
"""
SEARCH: Any = {"mobster": {"by_step": True}}
UNGUARDED: Any = {"async_hyperband": {"eager": 24}}
SCHEDULE: Any = {"async_hyperband": {"eager": 24, "guard": True}}
FIRST = replace(ours("mobster", SEARCH, SCHEDULE), how="auto")
"""What the others are compared with: what `search: auto` chooses here, a Gaussian process and
asynchronous Hyperband.
"""

METHODS = {
    method.name: method
    for method in (
        FIRST,
        replace(
            FIRST, how="auto, learn_from", make=lambda task, seed: learning(task, seed, SEARCH)
        ),
        replace(FIRST, how="tpe, learn_from", make=lambda task, seed: learning(task, seed, "tpe")),
        replace(FIRST, how="auto, again"),
        replace(ours("mobster", "mobster", UNGUARDED), how="auto without guard"),
        replace(ours("mobster", SEARCH, UNGUARDED), how="auto without guard, by_step"),
        ours("mobster", "mobster", "hyperband"),
        ours("mobster", "mobster", "fifo"),
        ours("random", "random", "fifo"),
        ours("random", "random", "asha"),
        ours("random", "random", "async_hyperband"),
        ours("TPE", "tpe", "fifo"),
        ours("TPE", "tpe", "asha"),
        ours("TPE", "tpe", "async_hyperband"),
        replace(ours("TPE", PLAIN, "asha"), how="tpe like_optuna, asha"),
        ours("BOHB", "bohb", "hyperband"),
        optuna("TPE", "tpe", "none"),
        optuna("TPE", "tpe", "halving"),
        optuna("TPE", "tpe", "hyperband"),
        optuna("GP", "gp", "none"),
        tune("ASHA", "random", "asha"),
        tune("TPE", "optuna", "asha"),
        syne("ASHA", "asha"),
        syne("BOHB", "bohb"),
        syne("CQR", "cqr"),
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
def learnt(scenario: str) -> list[Known]:
    """What is kept of experiments on other data sets of a scenario, each of 30 trainings by the
    first method.
    """
    found: list[Known] = []
    for place, name in enumerate(
        [name for name in yahpo.tasks(reporting=False) if name.startswith(scenario)][:LEARNT]
    ):
        task = task_named(name)
        tuner = Regrow(task, place, SEARCH, SCHEDULE, WORKERS)
        simulate(tuner, task, workers=WORKERS, seconds=30 * task.training / WORKERS)
        found += learnt_from(tuner.history, tuner.history.spec, task.spec.name, "learn_from")
    return found


def learning(task: Task, seed: int, search: Any) -> Regrow:
    """A search that begins with what others have found."""
    scenario = task.spec.name.rpartition("-")[0]
    return Regrow(task, seed, search, SCHEDULE, WORKERS, learnt=learnt(scenario))


@cache
def task_named(name: str) -> Task:
    """A task, made once a process."""
    if name == "quadratic":
        return Quadratic()
    scenario, _, dataset = name.partition(":")
    return Yahpo(scenario, dataset) if dataset else Continuum(HERE / "curves" / f"{name}.yaml")


def run(job: tuple[str, str, int, float]) -> Run:
    """One method on one task with one seed, for the time of so many trainings."""
    method, name, seed, trainings = job
    if METHODS[method].who == "Syne Tune":
        SyneTune.find()
    task = task_named(name)
    budget = trainings * task.training / WORKERS
    own = int.from_bytes(hashlib.sha256(f"{name}:{method}:{seed}".encode()).digest()[:4], "big")
    tuner = METHODS[method].make(task, own)
    best, trials, steps = simulate(
        tuner, task, workers=WORKERS, seconds=budget, thought=task.training / MINUTE
    )
    at = np.array([0.0, *(when for when, _ in best), budget])
    regrets = np.array([1.0, *(task.regret(score) for _, score in best)])
    mean = float((np.diff(at) * regrets).sum() / budget)
    return Run(
        method=method,
        task=name,
        seed=seed,
        final=float(regrets[-1]),
        mean=mean,
        trials=trials,
        steps=steps,
    )


def grid(runs: Sequence[Run], method: str, what: str) -> Floats:
    """A number of each run of a method, by task and seed."""
    tasks, seeds = list(dict.fromkeys(run.task for run in runs)), sorted({run.seed for run in runs})
    found = {(run.task, run.seed): getattr(run, what) for run in runs if run.method == method}
    return np.array([[found[task, seed] for seed in seeds] for task in tasks])


def middles(values: Floats) -> tuple[float, Floats]:
    """The interquartile mean of values by task and seed, and those of resamples."""
    tasks, seeds = values.shape
    picks = np.random.default_rng(0).integers(0, seeds, size=(RESAMPLES, tasks, seeds))
    resampled = np.take_along_axis(values[None], picks, axis=2).reshape(RESAMPLES, -1)
    return float(trim_mean(values.ravel(), 0.25)), np.asarray(trim_mean(resampled, 0.25, axis=1))


def interval(resampled: Floats) -> str:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return f"({low:.3f} to {high:.3f})"


def report(runs: Sequence[Run], about: str) -> str:
    """The table, in Markdown, the least regret first."""
    methods, tasks = (
        list(dict.fromkeys(run.method for run in runs)),
        list(dict.fromkeys(run.task for run in runs)),
    )
    found = {
        (method, what): middles(grid(runs, method, what))
        for method in methods
        for what in ("final", "mean")
    }
    methods.sort(key=lambda method: found[method, "final"][0])
    short = [task.replace("rbv2_", "") for task in tasks]
    head = [
        "method",
        "trials",
        "regret at the end",
        "beside the first",
        "over time",
        "beside the first",
        *short,
    ]
    lines = ["# Regret on tasks never seen", "", about, "", "| " + " | ".join(head) + " |"]
    lines.append("|---" + "|---:" * (len(head) - 1) + "|")
    for method in methods:
        cells = [method, f"{grid(runs, method, 'trials').mean():.0f}"]
        for what in ("final", "mean"):
            middle, resampled = found[method, what]
            cells.append(f"{middle:.3f} {interval(resampled)}")
            if FIRST.name in methods and method != FIRST.name:
                own, others = found[FIRST.name, what]
                cells.append(f"{middle - own:+.3f} {interval(resampled - others)}")
            else:
                cells.append("")
        by_task = np.median(grid(runs, method, "final"), axis=1)
        lines.append("| " + " | ".join([*cells, *(f"{value:.3f}" for value in by_task)]) + " |")
    return "\n".join(lines) + "\n"


def write(folder: Path, runs: Sequence[Run]) -> None:
    """What `--known` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.json").write_text(json.dumps([asdict(run) for run in runs]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--trainings",
        type=float,
        default=30,
        help="the budget of worker time, in mean full trainings",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--known", type=Path, help="runs of the same budget that need not be made again"
    )
    parser.add_argument("--only", nargs="+", help="methods whose name contains one of these")
    parser.add_argument(
        "--tasks", choices=("reporting", "tuning"), default="reporting", help="which tasks"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    start = time.perf_counter()
    methods = [m for m in METHODS if not options.only or any(word in m for word in options.only)]
    if SyneTune.find() is None:
        print("without Syne Tune: SYNE_PYTHON names no Python that has it", file=sys.stderr)
        methods = [m for m in methods if METHODS[m].who != "Syne Tune"]
    tasks = (
        yahpo.tasks(reporting=True)
        if options.tasks == "reporting"
        else [*TASKS, "quadratic", *yahpo.tasks(reporting=False)]
    )
    if not tasks:
        parser.error(
            "the tasks to report need YAHPO's surrogates: YAHPO=FOLDER (see benchmarks/yahpo.py)"
        )
    known = (
        []
        if options.known is None
        else [Run(**one) for one in json.loads(options.known.read_text())]
    )
    runs = [
        one
        for one in known
        if one.method in methods and one.task in tasks and one.seed < options.seeds
    ]
    there = {(one.method, one.task, one.seed) for one in runs}
    jobs = [
        (method, task, seed, options.trainings)
        for seed in range(options.seeds)
        for method in methods
        for task in tasks
        if (method, task, seed) not in there
    ]
    made = 0
    try:
        with multiprocessing.get_context("spawn").Pool(
            options.jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)
        ) as pool:
            for done in pool.imap(run, jobs, chunksize=2):
                runs.append(done)
                made += 1
                if made % (len(methods) * len(tasks)) == 0:
                    print(
                        f"seed {done.seed + 1} of {options.seeds},"
                        f" {time.perf_counter() - start:.0f} s",
                        file=sys.stderr,
                    )
                    write(options.out, runs)
    except KeyboardInterrupt:
        there = {(one.method, one.task, one.seed) for one in runs}
        whole = (
            {(method, task, seed) for method in methods for task in tasks} <= there
            for seed in range(options.seeds)
        )
        options.seeds = sum(takewhile(bool, whole))
        runs = [each for each in runs if each.seed < options.seeds]
        if options.seeds < 2:
            raise
    about = (
        f"{len(tasks)} tasks, {options.seeds} seeds each, {WORKERS} workers, {options.trainings:g}"
        f" full trainings of worker time. Python {platform.python_version()}. Interquartile means"
        " with 95 % intervals; in the last columns medians by task, at the end."
    )
    text = report(runs, about)
    write(options.out, runs)
    (options.out / "heldout.md").write_text(text)
    print(text)
    print(f"{len(runs)} searches in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
