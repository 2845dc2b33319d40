"""Money and time: what deadlines cost with spot machines, and whether limits are kept.

    python -m benchmarks.money spot TRACE... [--seeds 10] [--windows 20] [--processes 2]
    python -m benchmarks.money zones TRACE TRACE [--seeds 10] [--windows 20] [--processes 2]
    python -m benchmarks.money value [--seeds 10]
    python -m benchmarks.money forecast [--seeds 10]
    python -m benchmarks.money real [--seeds 2]

`spot` runs whole searches under the simulator, with the planner of real runs, on windows of
recorded traces of spot machines (`availability_*.json` of Wu et al., NSDI 2024), with deadlines of
1.1, 1.5 and 2 times the time that on-demand machines alone would take. Beside ours: on-demand
machines alone, also with steps that take up to 1 % more or less, so that trials report in another
order (early stopping then does other work: how often this alone is late, no choice of machines can
mend); spot machines alone (late where these do not suffice); the static fall-back of
others (on demand after ten minutes without a spot machine, whatever the deadline); and a bound that
knows the future (all spot hours that the window has until the deadline, the rest on demand).

`zones` runs them on spot machines alone, which may be taken from one zone or several, each with its
own trace, by which all its machines come and go; the cheaper zones before the dearer ones, or after
them.

`value` compares the best value at a deadline with plain ASHA that is stopped there: ASHA that
knows the deadline, and with `resource_changing`, which gives freed slots to the leaders (a trial is
as many times as fast as it has slots, which no real training is). `forecast`
tells how often the interval of 80 % held the end, with trials whose durations differ; `real` the
same for searches that are really run, each of some minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import yaml

from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent
from regrow.search.history import History, cost
from regrow.search.planning import forecast as foreseen
from regrow.search.planning.machines import Machine, availability
from regrow.search.planning.simulator import (
    FunctionObjective,
    Objective,
    Simulation,
    simulate,
)
from regrow.search.spec import Spec

WORKERS = 4
LEADING, HOURS = 16, (0.5, 0.75, 1.0, 1.5)
"""`value`: slots of the cluster, deadlines. A whole training takes 81 minutes on one slot."""
SPOT, ON_DEMAND = 1.0, 3.0
"""Prices an hour."""
BOOT, STARTUP, SAVE, RESTORE, IDLE = 120.0, 30.0, 20.0, 30.0, 300.0
FALL_BACK = 600.0
DEADLINES = (1.1, 1.5, 2.0)
DISTURBED = 0.01
"""Part of a step by which it is longer or shorter, at most, where reports come in another order."""
ZONES, CHEAPER = 4, 0.8
"""`zones`: how many there are at most, and the price of each that has the second trace."""
POLICIES = ("on demand", "spot alone", "fall-back", "regrow")


Job: TypeAlias = "tuple[Task, int, Sequence[int], float, int]"
"""Task, number of the window, the window, its gap in seconds, seed."""
Costs: TypeAlias = dict[tuple[str, float], tuple[float, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A search. `step`: seconds of a step."""

    name: str
    trials: int
    steps: int
    step: float
    schedule: Any

    @property
    def parts(self) -> dict[str, Any]:
        return {
            "name": "money",
            "trainable": "train.py:train",
            "metric": "loss",
            "mode": "min",
            "space": {"x": {"uniform": [0, 1]}, "speed": {"uniform": [0.5, 2.0]}},
            "search": "random",
            "schedule": self.schedule,
            "max_steps": self.steps,
        }


TASKS = (
    Task(name="24 trials, fifo", trials=24, steps=10, step=720.0, schedule="fifo"),
    Task(name="60 trials, asha", trials=60, steps=9, step=900.0, schedule="asha"),
    Task(name="8 long trials", trials=8, steps=30, step=900.0, schedule="fifo"),
)


def objective(spec: Spec, step: float, falls: float = 3.0) -> FunctionObjective:
    """Return a curve that falls at a speed of its configuration, to 1/e within `falls` steps."""

    def loss(config: Mapping[str, Any], at: int) -> float:
        return float((config["x"] - 0.3) ** 2 + math.exp(-at * config["speed"] / falls))

    return FunctionObjective(function=loss, spec=spec, seconds=step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """An objective whose steps are longer or shorter by up to DISTURBED. `number`: which way."""

    objective: Objective
    number: int

    def at(
        self, config: Mapping[str, Any], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        """See Objective."""
        metrics, seconds = self.objective.at(config, step, seed)
        chance = random.Random(f"{self.number}/{seed}/{step}")
        return metrics, seconds * (1 + DISTURBED * chance.uniform(-1.0, 1.0))


def fleet(window: Sequence[int], gap: float, policy: str) -> list[Machine]:
    """Return the machines that a policy may use."""
    timing: dict[str, Any] = {"permanent": False, "boot": BOOT, "idle": IDLE}
    on_demand = [Machine(market="on-demand", price=ON_DEMAND, **timing) for _ in range(WORKERS)]
    if policy == "on demand":
        return on_demand
    there = availability(window, gap, WORKERS)
    spot = [Machine(market="spot", price=SPOT, availability=one, **timing) for one in there]
    return spot if policy == "spot alone" else spot + on_demand


def search(
    task: Task,
    machines: Sequence[Machine],
    seed: int,
    *,
    disturbed: int | None = None,
    **keys: Any,
) -> Simulation:
    """Return a whole search. `disturbed`: number of a Disturbed; None: all steps take as long."""
    spec = Spec.parse({**task.parts, "trials": task.trials, "seed": seed, **keys})
    timing: dict[str, Any] = {"startup": STARTUP, "save": SAVE, "restore": RESTORE}
    curves: Objective = objective(spec, task.step)
    if disturbed is not None:
        curves = Disturbed(objective=curves, number=disturbed)
    return simulate(spec, curves, machines=machines, slots=WORKERS, **timing)


def keys(policy: str, deadline: float) -> dict[str, Any]:
    """Return the keys of the specification that make a policy."""
    if policy == "regrow":
        return {"market": "spot", "stop": {"deadline": deadline}}
    if policy == "fall-back":
        return {"market": {"first": "spot", "after": FALL_BACK}}
    if policy == "spot alone":
        return {"market": "spot", "stop": {"deadline": deadline}}
    return {"market": "on-demand"}


def one(what: Job) -> Costs:
    """Return (cost beside on demand, whether late) by policy and deadline, in one window."""
    task, number, window, gap, seed = what
    full = search(task, fleet(window, gap, "on demand"), seed, **keys("on demand", 0.0))
    paid = cost.of(full.history, full.now).total or 0.0
    work = sum(one.slot_seconds(full.now) for t in full.history.trials for one in t.attempts)
    found: Costs = {}
    steady = fleet(window, gap, "on demand")
    other = search(task, steady, seed, disturbed=number, **keys("on demand", 0.0))
    back = search(task, fleet(window, gap, "fall-back"), seed, **keys("fall-back", 0.0))
    for stretch in DEADLINES:
        deadline = stretch * full.now
        found["on demand", stretch] = 1.0, False
        found["another order", stretch] = (
            (cost.of(other.history, other.now).total or 0.0) / paid,
            other.now > deadline,
        )
        found["fall-back", stretch] = (
            (cost.of(back.history, back.now).total or 0.0) / paid,
            back.now > deadline,
        )
        for policy in ("spot alone", "regrow"):
            done = search(task, fleet(window, gap, policy), seed, **keys(policy, deadline))
            late = any(not t.state.final for t in done.history.trials) or done.now > deadline
            late |= len(done.history.trials) < task.trials
            found[policy, stretch] = (cost.of(done.history, done.now).total or 0.0) / paid, late
        there = availability(window, gap, WORKERS)
        ticks = int(deadline // gap)
        spot = sum(gap for machine in there for n in range(ticks) if machine.up(n * gap))
        spot = min(spot, work)
        bound = (spot * SPOT + (work - spot) * ON_DEMAND) / 3600.0
        found["knows the future", stretch] = bound / paid, False
    return found


def windows(files: Sequence[Path], count: int, seed: int) -> Iterator[tuple[list[int], float]]:
    """Yield windows of the traces: each begins somewhere else, and the trace is a circle."""
    traces = [json.loads(file.read_text()) for file in files]
    chance = random.Random(seed)
    for number in range(count):
        trace = traces[number % len(traces)]
        data, gap = trace["data"], float(trace["metadata"]["gap_seconds"])
        start = chance.randrange(len(data))
        yield data[start:] + data[:start], gap


def spot(asked: argparse.Namespace) -> None:
    """Print the table of costs and of searches that were late."""
    order = (
        "on demand",
        "another order",
        "spot alone",
        "fall-back",
        "regrow",
        "knows the future",
    )
    with ProcessPoolExecutor(asked.processes) as pool:
        for task in TASKS:
            jobs = [
                (task, number, window, gap, seed)
                for number, (window, gap) in enumerate(windows(asked.traces, asked.windows, 7))
                for seed in range(number, number + asked.seeds)
            ]
            found = list(pool.map(one, jobs, chunksize=4))
            for stretch in DEADLINES:
                cells = []
                for policy in order:
                    results = [each[policy, stretch] for each in found]
                    late = sum(is_late for _, is_late in results)
                    cells.append(f"{fmean(paid for paid, _ in results):.2f} ({late} late)")
                print(f"| {task.name} | {stretch:g} | {' | '.join(cells)} |", flush=True)
            print(f"{len(jobs)} searches a cell", flush=True)


def zones(asked: argparse.Namespace) -> None:
    """Print cost, hours and evictions by the number of zones and their order."""
    with ProcessPoolExecutor(asked.processes) as pool:
        for task in TASKS:
            chance = random.Random(7)
            jobs = [
                (task, tuple(asked.traces), start, seed)
                for number, start in enumerate(chance.random() for _ in range(asked.windows))
                for seed in range(number, number + asked.seeds)
            ]
            found = list(pool.map(in_zones, jobs, chunksize=4))
            for name in found[0]:
                means = [fmean(each[name][place] for each in found) for place in range(3)]
                told = f"{means[0]:.3f} | {means[1]:.1f} | {means[2]:.1f}"
                print(f"| {task.name} | {name} | {told} |", flush=True)
    print(f"{len(jobs)} searches a line")


def in_zones(
    what: tuple[Task, Sequence[Path], float, int],
) -> dict[str, tuple[float, float, float]]:
    """Return cost beside on demand, hours and evictions of a search by the zones that it may use.
    `what`: task, traces, where the traces begin (0 to 1), seed.
    """
    task, files, start, seed = what
    traces = [json.loads(file.read_text()) for file in files]
    there: list[list[Machine]] = []
    for zone in range(ZONES):
        trace, part = traces[zone % len(traces)], (start + zone / ZONES) % 1.0
        data, first = trace["data"], int(part * len(trace["data"]))
        gap = float(trace["metadata"]["gap_seconds"])
        (up,) = availability(data[first:] + data[:first], gap, 1)
        price = CHEAPER * SPOT if zone % len(traces) else SPOT
        timing: dict[str, Any] = {"permanent": False, "boot": BOOT, "idle": IDLE}
        one = Machine(market="spot", price=price, availability=up, **timing)
        there.append([one] * WORKERS)
    cheap, dear = there[1::2], there[::2]
    full = search(task, fleet([1], 60.0, "on demand"), seed, **keys("on demand", 0.0))
    paid = cost.of(full.history, full.now).total or 0.0
    found = {}
    for name, chosen in (
        ("the dearer one alone", dear[:1]),
        ("the cheaper one alone", cheap[:1]),
        ("two, the dearer first", [dear[0], cheap[0]]),
        ("two, the cheaper first", [cheap[0], dear[0]]),
        ("four, the dearer first", [*dear, *cheap]),
        ("four, the cheaper first", [*cheap, *dear]),
    ):
        done = search(task, list(itertools.chain(*chosen)), seed, market="spot")
        evictions = sum(trial.evictions for trial in done.history.trials)
        spent = cost.of(done.history, done.now).total or 0.0
        found[name] = spent / paid, done.now / 3600.0, float(evictions)
    return found


def value(asked: argparse.Namespace) -> None:
    """Print the best value at a deadline beside that of plain ASHA, stopped there."""
    sharing = {"resource_changing": {"schedule": "asha", "interval": 1}}
    found: dict[tuple[str, float], list[float]] = {}
    for seed, hours in itertools.product(range(asked.seeds), HOURS):
        ends = {}
        for name, schedule, limited in (
            ("stopped", "asha", False),
            ("asha", "asha", True),
            ("resource_changing", sharing, True),
        ):
            task = Task(name="", trials=1, steps=81, step=60.0, schedule=schedule)
            limits = {"stop": {"deadline": hours * 3600}} if limited else {}
            parts = {**task.parts, "seed": seed, "trials": None if limited else 10_000, **limits}
            spec = Spec.parse(parts)
            machine = Machine(slots=LEADING)
            run = Simulation(
                spec=spec, objective=objective(spec, task.step, 20.0), machines=[machine], save=5.0
            )
            run.open().run(most_seconds=hours * 3600)
            leader = run.history.leader
            ends[name] = leader.best[0] if leader and leader.best else math.inf
        for name in ("asha", "resource_changing"):
            found.setdefault((name, hours), []).append(ends[name] - ends["stopped"])
    for (name, hours), differences in sorted(found.items()):
        wins, equal = sum(one < 0 for one in differences), sum(one == 0 for one in differences)
        mean = fmean(differences)
        print(f"| {name} | {hours:g} h | {mean:+.4f} | {wins} | {equal} | {len(differences)} |")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """A curve whose steps take longer in some trials. `spread`: of the logarithm."""

    seed: int
    spread: float

    def at(
        self, config: Mapping[str, Any], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        """See Objective."""
        trial = random.Random(f"{self.seed}/{seed}")
        each = random.Random(f"{self.seed}/{seed}/{step}")
        loss = float((config["x"] - 0.3) ** 2 + math.exp(-step / 5) + 0.02 * each.random())
        slow = math.exp(trial.gauss(0.0, self.spread) + each.gauss(0.0, 0.1))
        return {"loss": loss}, 30.0 * slow


def forecast(asked: argparse.Namespace) -> None:
    """Print how often the end came within the interval, and how often after it."""
    found: dict[tuple[str, float], list[tuple[bool, bool]]] = {}
    for spread, schedule, seed in itertools.product(
        (0.0, 0.3, 0.6), ("fifo", "asha", "median"), range(asked.seeds)
    ):
        task = Task(name="", trials=40, steps=9, step=30.0, schedule=schedule)
        spec = Spec.parse({**task.parts, "trials": 40, "seed": seed})
        run = Simulation(
            spec=spec, objective=Uneven(seed=seed, spread=spread), workers=WORKERS, startup=5.0
        )
        run.open().run()
        for share, held, late in outcomes(run.events, run.now):
            found.setdefault((schedule, share), []).append((held, late))
    for (schedule, share), ends in sorted(found.items()):
        within, after = (fmean(one[place] for one in ends) for place in (0, 1))
        print(f"| {schedule} | {share:.0%} | {len(ends)} | {within:.2f} | {after:.2f} |")


def outcomes(events: Sequence[AnyEvent], end: float) -> Iterator[tuple[float, bool, bool]]:
    """Yield for each forecast: the share of trials that had ended, whether the end came within the
    interval, whether after it.
    """
    history, due = History(), [0.25, 0.5, 0.8]
    for event in events:
        history.apply(event)
        if due and history.total and history.ended >= due[0] * history.total:
            made, share = foreseen.of(history, event.t), due.pop(0)
            if made is not None:
                first, last = made.interval
                yield share, first <= end <= last, end > last


TRAINABLE = """
import time

from benchmarks.money import Uneven


def train(trial):
    curve = Uneven(seed={seed}, spread={spread})
    for step in trial.steps():
        values, seconds = curve.at(trial.config, step, trial.number)
        time.sleep(seconds / 60)
        trial.report(values)
"""


def real(asked: argparse.Namespace) -> None:
    """Print for each forecast of real searches whether the interval held the end."""
    for schedule, seed in itertools.product(("fifo", "asha", "median"), range(asked.seeds)):
        spread = (0.0, 0.3, 0.6)[seed % 3]
        task = Task(name="", trials=40, steps=9, step=0.5, schedule=schedule)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "train.py").write_text(TRAINABLE.format(seed=seed, spread=spread))
            spec = {**task.parts, "trials": 40, "seed": seed, "state": str(folder / "state")}
            (folder / "money.yaml").write_text(yaml.safe_dump(spec))
            command = [str(Path(sys.executable).parent / "regrow"), "run", "money.yaml"]
            path = {"PYTHONPATH": str(Path(__file__).parents[1])}
            subprocess.run(
                command, cwd=folder, env=os.environ | path, check=True, stdout=subprocess.DEVNULL
            )
            events = read_events(Places(root=str(folder / "state")).store("money"))
        load = os.getloadavg()[0]
        for share, within, after in outcomes(events, events[-1].t):
            outcome = "within" if within else "after it" if after else "before it"
            print(f"| {schedule} | {spread} | {share:.0%} | {outcome} | {load:.0f} |", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "spot": spot,
    "zones": zones,
    "value": value,
    "forecast": forecast,
    "real": real,
}


def main() -> None:
    """Run the part that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    PARTS[asked.part](asked)


if __name__ == "__main__":
    main()
