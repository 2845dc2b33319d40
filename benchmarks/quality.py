r"""How good the search is: regret over simulated time, ours beside Optuna's, Ray Tune's, Syne
Tune's and SMAC's, in the same run.

    python benchmarks/quality.py zoo               # families to tune on: results/zoo.{md,json}
    python benchmarks/quality.py zoo --describe    # what their curves are like; searches nothing
    python benchmarks/quality.py zoo --held-out    # a variant of each, once all choices are made
    python benchmarks/quality.py tables            # five tables of recorded curves
    YAHPO=FOLDER python benchmarks/quality.py yahpo [--held-out]  # surrogates, see yahpo.py
    python benchmarks/quality.py zoo --only late crossing --methods auto gp --seeds 5 --out /tmp/zoo

The zoo is in `zoo/`: each of its families says how many workers search it and for how long. The
other tasks have four workers and the time of 30 full trainings. After Ctrl-C it reports what it has
of the seeds that are complete; `--known results/zoo.json` makes the rest.

Syne Tune and SMAC need environments of their own. Where there is none, its rows are left out and a
line says so.

    python -m venv /tmp/syne && /tmp/syne/bin/pip install syne-tune==0.16.0
    python -m venv /tmp/smac && /tmp/smac/bin/pip install smac==2.4.0 scikit-learn==1.7.2
    SYNE_PYTHON=/tmp/syne/bin/python SMAC_PYTHON=/tmp/smac/bin/python \
        python benchmarks/quality.py zoo

Each method searches each task once a seed under one virtual clock (`clock.py`). A training takes a
minute, and a second that a tuner computes is one during which it answers nobody. Regret is 0 at the
best of 2,000 random configurations (in `tables` the table's best) and 1 at their median, so it may
get below 0; a search is lost if it ends above 0.6. Where scores are noisy, a tuner is judged by
what its best score is worth without noise. Every task, method and seed has chance of its own.

Interquartile means over tasks and seeds, with 95 % intervals by a stratified bootstrap that
resamples the seeds of each task (Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", NeurIPS 2021, sections 4.1 and 4.3), and of each difference to `auto`; and
plain means at the end, as an interquartile one leaves out the tasks on which a method fails. One
method is there twice ("again"): how far two rows differ by chance. A method wins or loses only
where the whole interval lies on one side of 0.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

# before NumPy and Ray are loaded
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", RAY_AIR_NEW_OUTPUT="0")

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr, trim_mean

from benchmarks import yahpo
from benchmarks.clock import Curves, Task, simulate
from benchmarks.methods import AGAIN, ELSEWHERE, FIRST, METHODS
from benchmarks.surrogate import Continuum, Quadratic
from benchmarks.yahpo import Yahpo
from benchmarks.zoo.families import ZOO
from regrow.search import samplers

Floats = npt.NDArray[np.float64]
HERE = Path(__file__).parent
TABLES = ("digits", "linear", "wine", "cancer", "diabetes")
RESAMPLES = 2000
MINUTE = 60.0
"""What a training takes, when a tuner's own seconds are counted."""
POINTS = 20
"""Points of time at which regret is kept, evenly over the budget."""
LOST = 0.6
"""A search that ends with more regret is lost."""
DESCRIBED = 400
"""Random configurations by which the curves of a task are described."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A search to be made. `trainings`, `workers`: None for the task's own."""

    method: str
    task: str
    seed: int
    trainings: float | None
    workers: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One search: the regret at the end, its mean over the budget, and at points of time; trials
    begun, steps taken.
    """

    method: str
    task: str
    seed: int
    final: float
    mean: float
    regret: list[float]
    trials: int
    steps: int


def tasks_of(group: str, *, held_out: bool) -> list[str]:
    """The names of tasks, those to tune on or those held out."""
    if group == "zoo":
        return [family.name for family in ZOO.values() if family.held_out == held_out]
    if group == "yahpo":
        found = yahpo.tasks(reporting=held_out)
        return found if held_out else [*TABLES, "quadratic", *found]
    return [f"table:{name}" for name in TABLES]


@cache
def task_named(name: str) -> Task:
    """A task, made once a process."""
    if name in ZOO:
        return ZOO[name].task()
    if name == "quadratic":
        return Quadratic()
    kind, _, rest = name.partition(":")
    if kind == "table":
        return Curves(HERE / "curves" / f"{rest}.yaml")
    return Yahpo(kind, rest) if rest else Continuum(HERE / "curves" / f"{name}.yaml")


def tried(job: Job) -> Run | tuple[str, str]:
    """`run`, or the method's name and what it raised."""
    try:
        return run(job)
    except Exception as error:  # noqa: BLE001  # a method that breaks must not take the others with it
        return job.method, f"it broke on {job.task}, seed {job.seed}: {error!r}"


def run(job: Job) -> Run:
    """One method on one task with one seed."""
    method = METHODS[job.method]
    if method.who in ELSEWHERE:
        ELSEWHERE[method.who].find()
    task = task_named(job.task)
    task.workers = job.workers or task.workers
    task.trainings = job.trainings or task.trainings
    budget = task.trainings * task.training / task.workers
    written = f"{job.task}:{job.method}:{job.seed}"
    own = int.from_bytes(hashlib.sha256(written.encode()).digest()[:4], "big")
    best, trials, steps = simulate(
        method.make(task, own), task, seconds=budget, thought=task.training / MINUTE
    )
    at = np.array([0.0, *(when for when, _ in best), budget])
    regrets = np.array([1.0, *(task.regret(score) for _, score in best)])
    places = np.searchsorted(at[1:-1], np.linspace(0, budget, POINTS + 1)[1:], side="right")
    return Run(
        method=job.method,
        task=job.task,
        seed=job.seed,
        final=float(regrets[-1]),
        mean=float((np.diff(at) * regrets).sum() / budget),
        regret=[round(float(regret), 4) for regret in regrets[places]],
        trials=trials,
        steps=steps,
    )


# ---- statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An interquartile mean, or a difference of two, and those of resamples."""

    value: float
    resamples: Floats

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(value=self.value - other.value, resamples=self.resamples - other.resamples)

    @property
    def low(self) -> float:
        return float(np.quantile(self.resamples, 0.025))

    @property
    def high(self) -> float:
        return float(np.quantile(self.resamples, 0.975))

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


class Results:
    """Runs of the same seeds of every method on every task."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.methods = list(dict.fromkeys(run.method for run in runs))
        self.tasks = list(dict.fromkeys(run.task for run in runs))
        self._seeds = sorted({run.seed for run in runs})
        self._runs = {(run.method, run.task, run.seed): run for run in runs}

    def values(self, method: str, what: str, tasks: Sequence[str] | None = None) -> Floats:
        """A number of each run of a method, by task and seed."""
        return np.array(
            [
                [getattr(self._runs[method, task, seed], what) for seed in self._seeds]
                for task in tasks or self.tasks
            ]
        )

    def middle(
        self, method: str, what: str, tasks: Sequence[str] | None = None, trimmed: float = 0.25
    ) -> Estimate:
        """The interquartile mean; with nothing trimmed the mean, in which lost searches count."""
        values = self.values(method, what, tasks)
        count, seeds = values.shape
        picks = np.random.default_rng(0).integers(0, seeds, size=(RESAMPLES, count, seeds))
        resampled = np.take_along_axis(values[None], picks, axis=2).reshape(RESAMPLES, -1)
        return Estimate(
            value=float(trim_mean(values.ravel(), trimmed)),
            resamples=np.asarray(trim_mean(resampled, trimmed, axis=1)),
        )

    def lost(self, method: str, tasks: Sequence[str] | None = None) -> float:
        """The share of searches that are lost."""
        return float((self.values(method, "final", tasks) > LOST).mean())


# ---- what is written


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(head), "|---" + "|---:" * (len(head) - 1) + "|", *map(_row, rows)]


def report(results: Results, about: str) -> str:
    """The tables, in Markdown: all tasks together, then each of them."""
    first = FIRST.name if FIRST.name in results.methods else results.methods[0]
    others = [name for name in results.methods if name not in (first, AGAIN.name)]
    lines = ["# Regret over simulated time", "", about, "", "## All tasks", ""]
    head = (
        *("method", "trials", "lost", "at the end", "less", "over time", "less"),
        *("mean at the end", "less", "ends before it"),
    )
    rows = []
    for name in sorted(results.methods, key=lambda name: results.middle(name, "final").value):
        cells = [
            name,
            f"{results.values(name, 'trials').mean():.0f}",
            f"{results.lost(name):.1%}",
        ]
        for what, trimmed in (("final", 0.25), ("mean", 0.25), ("final", 0.0)):
            middle = results.middle(name, what, trimmed=trimmed)
            less = middle - results.middle(first, what, trimmed=trimmed)
            cells += [str(middle), str(less) if name != first else ""]
        won = {
            task: results.middle(name, "final", [task]) - results.middle(first, "final", [task])
            for task in results.tasks
        }
        ahead = {task: -d.value for task, d in won.items() if d.high < 0 and name != first}
        named = sorted(ahead.items(), key=lambda one: -one[1])
        rows.append([*cells, ", ".join(f"{task} by {by:.2f}" for task, by in named)])
    lines += _table(head, rows)
    lines += [
        "",
        (
            f"`less`: the difference to {first}, below 0 where the method is better. `ends before"
            f" it`: the tasks on which the method is better than {first} with the whole interval."
        ),
        "",
        "## Each task",
        "",
        (
            f"{first} beside the best of the others, which is chosen by the same runs and so a"
            " little lucky; differences below 0 are in favour of the first."
        ),
        "",
    ]
    columns = (
        *("task", "first: at the end", "lost", "best other", "its", "difference", ""),
        *("over time", "best other", "its", "difference", ""),
    )
    rows = []
    for task in results.tasks:
        cells = [task]
        for what in ("final", "mean"):
            own = results.middle(first, what, [task])
            cells += [str(own), *([f"{results.lost(first, [task]):.0%}"] * (what == "final"))]
            if others:
                best = min(others, key=lambda name: results.middle(name, what, [task]).value)
                theirs = results.middle(best, what, [task])
                less = own - theirs
                verdict = "wins" if less.high < 0 else "loses" if less.low > 0 else ""
                cells += [best, f"{theirs.value:.3f}", str(less), verdict]
            else:
                cells += [""] * 4
        rows.append(cells)
    lines += _table(columns, rows)
    lines += ["", "## Medians at the end", ""]
    medians = [
        [
            task,
            *(
                f"{np.median(results.values(name, 'final', [task])):.3f}"
                for name in results.methods
            ),
        ]
        for task in results.tasks
    ]
    lines += _table(("task", *results.methods), medians)
    return "\n".join(lines) + "\n"


def describe(name: str) -> str:
    """A line on the curves of random configurations: rank correlations of the first, an early and
    the middle step with the last, and of the first with each curve's best; the share that fail,
    and of those whose best step is not among the last tenth.
    """
    task = task_named(name)
    sampler = samplers.make("random", task.spec.setting)
    drawn = [sampler.ask(number, number) for number in range(DESCRIBED)]
    costs = np.array(
        [
            [task.cost(task.at(one.config, step)[0]) for step in range(1, task.max_steps + 1)]
            for one in drawn
            if one is not None
        ]
    )
    whole = costs[~np.isnan(costs).any(axis=1)]
    early, middle = max(task.max_steps // 9, 1), task.max_steps // 2
    ranks = [spearmanr(whole[:, step], whole[:, -1]).statistic for step in (0, early, middle)]
    ranks.append(spearmanr(whole[:, 0], whole.min(axis=1)).statistic)
    before = (whole.argmin(axis=1) < 0.9 * task.max_steps - 1).mean()
    return _row(
        [
            name,
            str(len(task.spec.space.flat)),
            str(task.max_steps),
            str(task.workers),
            f"{task.trainings:g}",
            *(f"{rank:.2f}" for rank in ranks),
            f"{1 - len(whole) / len(costs):.0%}",
            f"{before:.0%}",
        ]
    )


DESCRIPTION = (
    *("task", "parameters", "steps", "workers", "trainings", "first", "early", "middle"),
    *("first, best", "fail", "best before the end"),
)


# ---- the command


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", choices=("zoo", "yahpo", "tables"), help="which tasks")
    parser.add_argument("--held-out", action="store_true", help="those that nothing was tuned on")
    parser.add_argument("--only", nargs="+", help="tasks whose name contains one of these")
    parser.add_argument("--methods", nargs="+", help="methods of these names, or that contain them")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trainings", type=float, help="the budget, in place of each task's own")
    parser.add_argument("--workers", type=int, help="in place of each task's own")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--describe", action="store_true", help="the curves; nothing is searched")
    parser.add_argument("--known", type=Path, help="results whose runs need not be made again")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    options.names = [
        name
        for name in tasks_of(options.tasks, held_out=options.held_out)
        if not options.only or any(word in name for word in options.only)
    ]
    if not options.names:
        parser.error("there is no such task; YAHPO's need YAHPO=FOLDER (see benchmarks/yahpo.py)")
    return options


def chosen(words: Sequence[str] | None) -> list[str]:
    """The methods that the words name: each its own method, or all whose name contains it."""
    if words is None:
        return [name for name, method in METHODS.items() if method.usual]
    return [
        name
        for name in METHODS
        if any(word == name or (word not in METHODS and word in name) for word in words)
    ]


@contextmanager
def mapper(processes: int) -> Iterator[Callable[..., Iterable[Run | tuple[str, str]]]]:
    """Several processes, or none but this."""
    if processes == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(
        processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        yield pool.imap


def main() -> None:
    options = arguments()
    if options.describe:
        print("\n".join(_table(DESCRIPTION, [])))
        for name in options.names:
            print(describe(name), flush=True)
        return
    start = time.perf_counter()
    methods, absent = chosen(options.methods), []
    for who, tuner in ELSEWHERE.items():
        if any(METHODS[name].who == who for name in methods) and tuner.find() is None:
            methods = [name for name in methods if METHODS[name].who != who]
            absent.append(f"{who} is left out: {tuner.variable} names no Python that has it.")
    known = (
        json.loads(options.known.read_text()) if options.known else {**_axes(options), "runs": []}
    )
    if any(known[name] != value for name, value in _axes(options).items()):
        sys.exit(f"{options.known} has other workers or another budget")
    runs = [
        Run(**one)
        for one in known["runs"]
        if one["method"] in methods and one["task"] in options.names and one["seed"] < options.seeds
    ]
    there = {(one.method, one.task, one.seed) for one in runs}
    jobs = [
        Job(method=method, task=task, seed=seed, **_axes(options))
        for seed in range(options.seeds)
        for method in methods
        for task in options.names
        if (method, task, seed) not in there
    ]
    broken: dict[str, str] = {}
    try:
        with mapper(options.processes) as mapped:
            for place, (job, done) in enumerate(zip(jobs, mapped(tried, jobs), strict=True), 1):
                if isinstance(done, Run):
                    runs.append(done)
                else:
                    broken.setdefault(*done)
                if place == len(jobs) or job.seed < jobs[place].seed:
                    took = f"{time.perf_counter() - start:.0f} s"
                    print(f"seed {job.seed + 1} of {options.seeds}, {took}", file=sys.stderr)
                    write(options, "", runs)
    except KeyboardInterrupt:
        write(options, "", runs)
        there = {(one.method, one.task, one.seed) for one in runs}
        complete = (
            {(m, task, seed) for m in methods if m not in broken for task in options.names} <= there
            for seed in range(options.seeds)
        )
        options.seeds = sum(takewhile(bool, complete))
        runs = [each for each in runs if each.seed < options.seeds]
        if options.seeds < 2:
            raise
    runs = [each for each in runs if each.method not in broken]
    absent += [f"{name} is left out: {why}" for name, why in broken.items()]
    about = (
        f"{options.tasks}{', held out' if options.held_out else ''}: {len(options.names)} tasks,"
        f" {options.seeds} seeds each. Interquartile means with 95 % intervals."
        f" Python {platform.python_version()}, {', '.join(_versions())}."
    )
    text = report(Results(runs), "\n\n".join([about, *absent]))
    write(options, text, runs)
    print(text)
    print(f"{len(runs)} searches in {time.perf_counter() - start:.0f} s")


def _axes(options: argparse.Namespace) -> dict[str, Any]:
    return {"trainings": options.trainings, "workers": options.workers}


def write(options: argparse.Namespace, text: str, runs: Sequence[Run]) -> None:
    """The tables, and every run, which `--known` reads."""
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"{options.tasks}{'-held-out' if options.held_out else ''}"
    found = {**_axes(options), "runs": [asdict(run) for run in runs]}
    (options.out / f"{name}.json").write_text(json.dumps(found))
    (options.out / f"{name}.md").write_text(text)


def _versions() -> list[str]:
    from importlib.metadata import version

    found = [f"{name} {version(name)}" for name in ("optuna", "ray")]
    return found + [f"{who} {tuner.version}" for who, tuner in ELSEWHERE.items() if tuner.version]


if __name__ == "__main__":
    main()
