"""How good the search is: regret over simulated time, ours beside Optuna's, Ray Tune's and Syne
Tune's, in the same run.

    python benchmarks/quality.py   # 30 seeds, ten minutes; writes results/quality.{md,png}
    python benchmarks/quality.py --seeds 5 --out /tmp/quality

After Ctrl-C it writes what it has of the seeds that are complete.

Left out: what regrow has no counterpart of; population-based training, for a table cannot say what
a model does that goes on in another way; NSGA-II and Syne Tune's TPE, which are random search
within this budget: the first generation of Optuna's has 50 trials, and the first model of Syne
Tune's takes 47 results where there are six parameters.

Syne Tune needs an environment of its own. Where there is none, its rows are left out and a line
says so.

    python -m venv /tmp/syne && /tmp/syne/bin/pip install syne-tune==0.16.0
    SYNE_PYTHON=/tmp/syne/bin/python python benchmarks/quality.py

Each method searches each table of learning curves (`curves.py`) once a seed, on four workers under
one virtual clock (`clock.py`), for as long as `--trainings` configurations take to be trained to
their last step. Regret is the gap between the best score so far and the table's best, over the gap
between the table's median last score and its best; at most 1, and 1 before the first score. `final`
is the regret at the end, `over time` its mean over the budget.

Over all tasks and seeds these are aggregated as their interquartile mean, with a 95 % interval by a
stratified bootstrap that resamples the seeds of each task (Agarwal et al., "Deep Reinforcement
Learning at the Edge of the Statistical Precipice", NeurIPS 2021, sections 4.1 and 4.3). A
difference is ours less theirs, so below 0 is in our favour: `better` and `worse` are said only
where the whole interval lies on one side of 0. `not worse` says no more than that a difference was
not found; how large one may still be is what the interval says.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# before NumPy and Ray are loaded
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", RAY_AIR_NEW_OUTPUT="0")

import matplotlib as mpl
import numpy as np
import numpy.typing as npt

from benchmarks.clock import Curves, Task, Tuner, simulate
from benchmarks.ours import Regrow
from benchmarks.rivals import WORKERS, Optuna, RayTune, SyneTune
from regrow.search.errors import SpecError

mpl.use("Agg")
from matplotlib import pyplot as plt

Floats = npt.NDArray[np.float64]
HERE = Path(__file__).parent
TASKS = ("digits", "linear", "wine", "cancer", "diabetes")
GRID = 200
"""Points of time at which regret is taken, evenly over the budget."""
RESAMPLES = 2000
BAND = 300
"""Resamples for a band in the figure, at each of a quarter of the points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """`who` does `algorithm`; `how` is its own name there."""

    algorithm: str
    who: str
    how: str
    make: Callable[[Task, int], Tuner]

    @property
    def name(self) -> str:
        return f"{self.who}: {self.how}"


def ours(algorithm: str, search: Any, schedule: Any) -> Method:
    name, options = (schedule, {}) if isinstance(schedule, str) else next(iter(schedule.items()))
    how = f"{search}, {name}" + "".join(f" ({value})" for value in options.values())
    return Method(
        algorithm=algorithm,
        who="regrow",
        how=how,
        make=lambda c, seed: Regrow(c, seed, search, schedule, WORKERS),
    )


def optuna(algorithm: str, sampler: str, pruner: str) -> Method:
    return Method(
        algorithm=algorithm,
        who="Optuna",
        how=f"{sampler}, {pruner}",
        make=lambda c, seed: Optuna(c, seed, sampler, pruner),
    )


def tune(algorithm: str, searcher: str, scheduler: str) -> Method:
    return Method(
        algorithm=algorithm,
        who="Ray Tune",
        how=f"{searcher}, {scheduler}",
        make=lambda c, seed: RayTune(c, seed, searcher, scheduler),
    )


def syne(algorithm: str, scheduler: str) -> Method:
    return Method(
        algorithm=algorithm,
        who="Syne Tune",
        how=scheduler,
        make=lambda c, seed: SyneTune(c, seed, scheduler),
    )


METHODS = {
    method.name: method
    for method in (
        ours("random", "random", "fifo"),
        optuna("random", "random", "none"),
        tune("random", "random", "fifo"),
        syne("random", "random"),
        ours("TPE", "tpe", "fifo"),
        optuna("TPE", "tpe", "none"),
        tune("TPE", "optuna", "fifo"),
        ours("CMA-ES", "cmaes", "fifo"),
        optuna("CMA-ES", "cmaes", "none"),
        ours("ASHA", "random", "asha"),
        ours("ASHA", "random", {"asha": {"type": "promotion"}}),
        optuna("ASHA", "random", "halving"),
        tune("ASHA", "random", "asha"),
        syne("ASHA", "asha"),
        ours("ASHA with TPE", "tpe", "asha"),
        ours("ASHA with TPE", "tpe", {"asha": {"type": "promotion"}}),
        optuna("ASHA with TPE", "tpe", "halving"),
        tune("ASHA with TPE", "optuna", "asha"),
        ours("Hyperband", "random", "hyperband"),
        tune("Hyperband", "random", "hyperband"),
        ours("asynchronous Hyperband", "random", "async_hyperband"),
        optuna("asynchronous Hyperband", "random", "hyperband"),
        tune("asynchronous Hyperband", "random", "asha-brackets"),
        syne("asynchronous Hyperband", "asha-brackets"),
        ours("BOHB", "bohb", "hyperband"),
        ours("BOHB", "bohb", "asha"),
        ours("BOHB", "tpe", "async_hyperband"),
        optuna("BOHB", "tpe", "hyperband"),
        syne("BOHB", "bohb"),
        ours("median stopping", "random", "median"),
        optuna("median stopping", "random", "median"),
        tune("median stopping", "random", "median"),
        syne("median stopping", "median"),
        ours("median stopping with TPE", "tpe", "median"),
        optuna("median stopping with TPE", "tpe", "median"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One search: regret at each point of the grid, trials begun, steps taken."""

    method: str
    task: str
    seed: int
    regret: list[float]
    trials: int
    steps: int


@cache
def curves(task: str) -> Curves:
    """A task's table, read once a process."""
    return Curves(HERE / "curves" / f"{task}.yaml")


def tried(job: tuple[str, str, int, float]) -> Run | tuple[str, str]:
    """`run`, or the method's name and what it raised."""
    try:
        return run(job)
    except Exception as error:  # noqa: BLE001  # a method that breaks must not take the others with it
        return job[0], f"it broke on {job[1]}, seed {job[2]}: {type(error).__name__}: {error}"


def run(job: tuple[str, str, int, float]) -> Run:
    """One method on one task with one seed, for the time of so many trainings."""
    method, task, seed, trainings = job
    if METHODS[method].who == "Syne Tune":
        SyneTune.find()
    table = curves(task)
    budget = trainings * table.training / WORKERS
    best, trials, steps = simulate(
        METHODS[method].make(table, seed), table, workers=WORKERS, seconds=budget
    )
    at = np.searchsorted(
        [when for when, _ in best], np.linspace(0, budget, GRID + 1)[1:], side="right"
    )
    regrets = [1.0, *(table.regret(score) for _, score in best)]
    return Run(
        method=method,
        task=task,
        seed=seed,
        regret=[regrets[i] for i in at],
        trials=trials,
        steps=steps,
    )


def available() -> tuple[list[Method], list[str]]:
    """The methods that can be run here, and a line on each that cannot."""
    methods, absent = [], []
    for method in METHODS.values():
        why = None
        if method.who == "regrow":
            try:
                method.make(curves(TASKS[0]), 0)
            except SpecError as error:
                why = str(error)
        elif method.who == "Syne Tune" and SyneTune.find() is None:
            why = "SYNE_PYTHON names no Python that has it"
        if why is None:
            methods.append(method)
        else:
            absent.append(f"{method.name} is left out: {why}")
    return methods, absent


# ---- statistics


def iqm(values: Floats) -> Floats:
    """The mean of the middle half over the last axis."""
    ordered = np.sort(values, axis=-1)
    cut = values.shape[-1] // 4
    middle: Floats = ordered[..., cut : values.shape[-1] - cut].mean(axis=-1)
    return middle


def resampled(values: Floats, rng: np.random.Generator, count: int = RESAMPLES) -> Floats:
    """Interquartile means of `count` resamples; `values` by task and seed, resampled within each
    task.
    """
    tasks, seeds = values.shape
    picks = rng.integers(0, seeds, size=(count, tasks, seeds))
    return iqm(np.take_along_axis(values[None], picks, axis=2).reshape(count, -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An interquartile mean, or a difference of two, and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def verdict(self) -> str:
        return "better" if self.high < 0 else "worse" if self.low > 0 else "not worse"


def estimate(values: Floats, other: Floats | None = None) -> Estimate:
    """Of `values` by task and seed, or of these less those of another."""
    rng = np.random.default_rng(0)
    value, samples = float(iqm(values.reshape(-1))), resampled(values, rng)
    if other is not None:
        value, samples = value - float(iqm(other.reshape(-1))), samples - resampled(other, rng)
    low, high = np.quantile(samples, [0.025, 0.975])
    return Estimate(value=value, low=float(low), high=float(high))


def by_task(runs: Sequence[Run]) -> Floats:
    """Regret by task, seed and point of time."""
    seeds = sorted({run.seed for run in runs})
    found = {(run.task, run.seed): run.regret for run in runs}
    return np.array([[found[task, seed] for seed in seeds] for task in TASKS])


# ---- what is written


def report(methods: Sequence[Method], runs: Sequence[Run], about: str) -> str:
    """The tables, in Markdown."""
    regret = {
        method.name: by_task([run for run in runs if run.method == method.name])
        for method in methods
    }
    final = {name: values[:, :, -1] for name, values in regret.items()}
    mean = {name: values.mean(axis=2) for name, values in regret.items()}
    lines = [
        "# Regret over simulated time",
        "",
        about,
        "",
        "## Each method",
        "",
        "| algorithm | method | trials | steps | final regret | regret over time |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for method in methods:
        mine = [run for run in runs if run.method == method.name]
        trials, steps = (
            np.mean([getattr(run, what) for run in mine]) for what in ("trials", "steps")
        )
        lines.append(
            f"| {method.algorithm} | {method.name} | {trials:.0f} | {steps:.0f} "
            f"| {estimate(final[method.name])} | {estimate(mean[method.name])} |"
        )
    lines += [
        "",
        "## Ours beside theirs",
        "",
        "Differences of the interquartile means: ours less theirs, below 0 is in our favour.",
        "",
        (
            "| algorithm | ours | theirs | final: ours | theirs | difference | | over time: ours |"
            " theirs | difference | |"
        ),
        "|---|---|---|---:|---:|---:|---|---:|---:|---:|---|",
    ]
    for one in methods:
        for other in methods:
            if one.who == "regrow" and other.who != "regrow" and one.algorithm == other.algorithm:
                cells = [one.algorithm, one.how, other.name]
                for values in (final, mean):
                    difference = estimate(values[one.name], values[other.name])
                    cells += [
                        f"{iqm(values[who].reshape(-1)):.3f}" for who in (one.name, other.name)
                    ] + [str(difference), difference.verdict]
                lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "## By task",
        "",
        "Interquartile mean of the regret over time.",
        "",
        "| method | " + " | ".join(TASKS) + " |",
    ]
    lines.append("|---|" + "---:|" * len(TASKS))
    for method in methods:
        lines.append(
            f"| {method.name} | " + " | ".join(f"{v:.3f}" for v in iqm(mean[method.name])) + " |"
        )
    return "\n".join(lines) + "\n"


def figure(methods: Sequence[Method], runs: Sequence[Run], trainings: float, path: Path) -> None:
    """One panel for each algorithm that ours and another have: regret over time with its
    interval.
    """
    algorithms = [
        name
        for name in dict.fromkeys(method.algorithm for method in methods)
        if len({method.who == "regrow" for method in methods if method.algorithm == name}) > 1
    ] or list(dict.fromkeys(method.algorithm for method in methods))
    columns = 3
    rows = -(-len(algorithms) // columns)
    fig, axes = plt.subplots(
        rows, columns, figsize=(4.6 * columns, 3.3 * rows), sharex=True, sharey=True, squeeze=False
    )
    rivals = {"Optuna": ["#2166ac"], "Ray Tune": ["#b2182b"], "Syne Tune": ["#e08214"]}
    colours = {"regrow": ["#00441b", "#41ab5d", "#a1d99b"], **rivals}
    times = np.linspace(0, trainings, GRID + 1)[1:]
    for axis, algorithm in zip(axes.flat, algorithms, strict=False):
        used: dict[str, int] = {}
        for method in (m for m in methods if m.algorithm == algorithm):
            values = by_task([run for run in runs if run.method == method.name])
            every = slice(3, None, 4)
            middle = iqm(np.moveaxis(values.reshape(-1, GRID), 0, -1))
            samples = np.array(
                [
                    resampled(values[:, :, t], np.random.default_rng(0), BAND)
                    for t in range(GRID)[every]
                ]
            )
            low, high = np.quantile(samples, [0.025, 0.975], axis=1)
            shades = colours[method.who]
            colour = shades[min(used.get(method.who, 0), len(shades) - 1)]
            used[method.who] = used.get(method.who, 0) + 1
            axis.plot(
                times,
                middle,
                color=colour,
                label=method.name,
                lw=1.6,
                zorder=3 if method.who == "regrow" else 2,
            )
            axis.fill_between(times[every], low, high, color=colour, alpha=0.15, lw=0)
        axis.set_title(algorithm, fontsize=10)
        axis.set_yscale("log")
        axis.grid(alpha=0.25, which="both")
        axis.legend(fontsize=7, loc="upper right")
    for axis in axes.flat[len(algorithms) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("regret (IQM, 95 %)")
    for axis in axes[-1]:
        axis.set_xlabel("worker time, in full trainings")
    fig.tight_layout()
    fig.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument(
        "--trainings",
        type=float,
        default=30,
        help="the budget of worker time, in mean full trainings",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--only", nargs="+", help="methods whose name or algorithm contains one of these"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--raw", type=Path, help="write every run here too (gzip JSON)")
    options = parser.parse_args()
    start = time.perf_counter()
    methods, absent = available()
    if options.only:
        methods = [
            m for m in methods if any(word in f"{m.name} {m.algorithm}" for word in options.only)
        ]
    jobs = [
        (m.name, task, seed, options.trainings)
        for seed in range(options.seeds)
        for m in methods
        for task in TASKS
    ]
    runs: list[Run] = []
    broken: dict[str, str] = {}
    count, each = 0, len(methods) * len(TASKS)
    try:
        with multiprocessing.get_context("spawn").Pool(
            options.jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)
        ) as pool:
            for done in pool.imap(tried, jobs, chunksize=2):
                count += 1
                if isinstance(done, Run):
                    runs.append(done)
                else:
                    broken.setdefault(*done)
                if count % each == 0:
                    print(
                        f"seed {count // each} of {options.seeds},"
                        f" {time.perf_counter() - start:.0f} s",
                        file=sys.stderr,
                    )
    except KeyboardInterrupt:
        options.seeds = count // each
        runs = [run for run in runs if run.seed < options.seeds]
        if options.seeds < 2:
            raise
    methods = [method for method in methods if method.name not in broken]
    absent += [f"{name} is left out: {why}" for name, why in broken.items()]
    about = (
        f"{len(TASKS)} tasks, {options.seeds} seeds, {WORKERS} workers, {options.trainings:g} full"
        f" trainings of worker time. Python {platform.python_version()}, {', '.join(_versions())}."
        " Interquartile means with 95 % intervals."
    )
    text = report(methods, runs, "\n".join([about, *(f"\n{line}." for line in absent)]))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "quality.md").write_text(text)
    figure(methods, runs, options.trainings, options.out / "quality.png")
    if options.raw:
        raw = [
            {"method": r.method, "task": r.task, "seed": r.seed, "regret": r.regret} for r in runs
        ]
        options.raw.write_bytes(gzip.compress(json.dumps(raw).encode()))
    print(text)
    print(f"{len(runs)} searches in {time.perf_counter() - start:.0f} s")


def _versions() -> list[str]:
    from importlib.metadata import version

    found = [f"{name} {version(name)}" for name in ("optuna", "ray")]
    return [*found, f"syne-tune {SyneTune.version}"] if SyneTune.version else found


if __name__ == "__main__":
    main()
