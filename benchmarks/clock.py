"""A simulated experiment: a table of learning curves, a tuner that proposes and decides, workers
and a virtual clock.

All tuners, ours and others', run under this one loop. A step takes the seconds that the table says;
a tuner takes none, or as many as its processor time is said to be worth. Starting, pausing and
going on cost nothing. A configuration that is not in the table has the curve of its nearest
neighbour.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import itertools
import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from regrow.infra.state.spec_file import read_spec
from regrow.search.spec import Spec
from regrow.show.exports.recorded import RecordedTable

Config = Mapping[str, Any]
Decision = Literal["continue", "stop", "pause"]
_T = TypeVar("_T")


class Tuner(Protocol):
    """Proposes configurations and decides which trials go on. Its trials are numbered from 0 in the
    order of their start.
    """

    def ask(self) -> Config | int | None:
        """For a free worker: a new trial's configuration, the number of a paused trial that goes
        on, or nothing for now.
        """
        ...

    def report(self, trial: int, step: int, score: float) -> Decision:
        """What becomes of a trial after a step. After the last step, the trial ends whatever the
        answer is.
        """
        ...

    def fail(self, trial: int, step: int) -> None:
        """A trial has raised an error in place of reporting this step."""
        ...


class Task(ABC):
    """An experiment whose every configuration has a known learning curve, of the one metric
    `score`.
    """

    training: float
    """Mean seconds of a trial that is trained to its last step."""
    best: float
    """The cost whose regret is 0, and the one whose regret is 1."""
    middle: float
    workers: int = 4
    trainings: float = 30
    """How long it is searched, in full trainings of worker time."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        if spec.max_steps is None:
            raise ValueError(f"{spec.name} has no max_steps")
        self.max_steps: int = spec.max_steps
        self.mode = spec.objective.mode
        self.space: dict[str, Any] = spec.space.to_json()
        """As written: `{loguniform: [low, high]}`, `{uniform: ...}`, `{int: ...}`, `{logint: ...}`
        or `{choice: [...]}`.
        """

    @abstractmethod
    def at(self, config: Config, step: int) -> tuple[float, float]:
        """The score of a configuration at a step, and the seconds that the step takes. NaN: the
        training fails there.
        """

    def without_noise(self, config: Config, step: int, score: float) -> float:
        """What a reported score is worth, which regret is taken of."""
        return score

    def cost(self, score: float) -> float:
        """Less is better."""
        return score if self.mode == "min" else -score

    def regret(self, score: float) -> float:
        """0 for the best score known, 1 for the median of last scores, which any configuration may
        give, or worse.
        """
        return min((self.cost(score) - self.best) / (self.middle - self.best), 1.0)


class Curves(Task):
    """The experiment `<name>.yaml` and the table `<name>.csv.gz` beside it."""

    def __init__(self, path: Path) -> None:
        super().__init__(read_spec(path))
        file = path.with_suffix(".csv.gz")
        self._table = RecordedTable(file, self.spec)
        with gzip.open(file, "rt", newline="") as lines:
            rows = list(csv.DictReader(lines))
        last = [
            self.cost(float(row["score"])) for row in rows if int(row["step"]) == self.max_steps
        ]
        self.middle = statistics.median(last)
        self.best = self.cost(self._table.best("score", most=self.mode == "max"))
        self.training = sum(float(row["seconds"]) for row in rows) / len(last)

    def at(self, config: Config, step: int) -> tuple[float, float]:
        metrics, seconds = self._table.at(config, step, 0)
        return metrics["score"], seconds


def used(tuner: Tuner) -> float:
    """Seconds of processor time so far, of this thread and of where the tuner runs if that is
    elsewhere.
    """
    elsewhere: Callable[[], float] | None = getattr(tuner, "used", None)
    return time.thread_time() + (elsewhere() if elsewhere else 0.0)


def simulate(
    tuner: Tuner, curves: Task, *, seconds: float, thought: float = 0.0
) -> tuple[list[tuple[float, float]], int, int]:
    """Every (time, score) at which the best score so far improved, up to `seconds`, without noise;
    then the trials begun and the steps taken.

    `thought`: simulated seconds for each second of processor time that the tuner takes, one
    question after the other.
    """
    best: list[tuple[float, float]] = []
    least = math.inf
    """The least cost that was reported."""
    trials: list[Config] = []
    done: list[int] = []
    """Steps by trial."""
    ends: list[tuple[float, int, int, float]] = []
    """When the step under way ends, in which order it was begun, of which trial, its score."""
    order, now, steps, free = itertools.count(), 0.0, 0, 0.0
    """`free`: when the tuner has answered all so far."""

    def begin(trial: int) -> None:
        score, takes = curves.at(trials[trial], done[trial] + 1)
        heapq.heappush(ends, (max(now, free) + takes, next(order), trial, score))

    def asking(question: Callable[[], _T]) -> _T:
        nonlocal free
        began = used(tuner)
        answer = question()
        free = max(now, free) + thought * (used(tuner) - began)
        return answer

    while True:
        while len(ends) < curves.workers and (asked := asking(tuner.ask)) is not None:
            if isinstance(asked, int):
                begin(asked)
            else:
                trials.append(dict(asked))
                done.append(0)
                begin(len(trials) - 1)
        if not ends or ends[0][0] > seconds:
            return best, len(trials), steps
        now, _, trial, score = heapq.heappop(ends)
        done[trial] += 1
        steps += 1
        if math.isnan(score):
            asking(partial(tuner.fail, trial, done[trial]))
            continue
        if curves.cost(score) < least:
            least = curves.cost(score)
            best.append((now, curves.without_noise(trials[trial], done[trial], score)))
        decision = asking(partial(tuner.report, trial, done[trial], score))
        if decision == "continue" and done[trial] < curves.max_steps:
            begin(trial)
