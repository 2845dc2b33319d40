"""What `quality.py` compares: searches of ours and others', each with a name under which it can be
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from benchmarks import yahpo
from benchmarks.clock import Task, Tuner, simulate
from benchmarks.ours import Limit, Regrow
from benchmarks.rivals import Elsewhere, Optuna, RayTune, Smac, SyneTune
from regrow.search.measured import Known
from regrow.search.planning.learning import learnt_from

LEARNT = 5
"""Experiments on tasks to tune on, of the same parameters, that one with `learn_from` begins
with.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """`who` searches; `how` is its own name there. `usual`: it is compared unless methods are
    named.
    """

    who: str
    how: str
    make: Callable[[Task, int], Tuner]
    usual: bool

    @property
    def name(self) -> str:
        return f"{self.who}: {self.how}"


def ours(
    search: Any, schedule: Any, how: str = "", *, usual: bool = False, limit: Limit = "time"
) -> Method:
    made = partial(Regrow, search=search, schedule=schedule, limit=limit)
    return Method(who="regrow", how=how or f"{search}, {schedule}", make=made, usual=usual)


def learning(search: str) -> Method:
    """A search that begins with what others have found on tasks like this one; YAHPO's alone."""

    def make(task: Task, seed: int) -> Regrow:
        known = learnt(task.spec.name.rpartition("-")[0])
        return Regrow(task, seed, search, SCHEDULES[search], learnt=known)

    return Method(who="regrow", how=f"{search}, learn_from", make=make, usual=False)


def optuna(sampler: str, pruner: str, *, usual: bool = False) -> Method:
    made = partial(Optuna, sampler=sampler, pruner=pruner)
    return Method(who="Optuna", how=f"{sampler}, {pruner}", make=made, usual=usual)


def tune(searcher: str, scheduler: str, *, usual: bool = False) -> Method:
    made = partial(RayTune, searcher=searcher, scheduler=scheduler)
    return Method(who="Ray Tune", how=f"{searcher}, {scheduler}", make=made, usual=usual)


def elsewhere(who: str, kind: str, *, usual: bool = False) -> Method:
    """One that runs in an environment of its own."""
    made = partial(ELSEWHERE[who], kind=kind)
    return Method(who=who, how=kind, make=made, usual=usual)


@cache
def learnt(scenario: str) -> list[Known]:
    """What is kept of experiments on other data sets of a scenario, each of 30 trainings by
    `auto`.
    """
    found: list[Known] = []
    for place, name in enumerate(
        [name for name in yahpo.tasks(reporting=False) if name.startswith(scenario)][:LEARNT]
    ):
        task = yahpo.Yahpo(*name.split(":"))
        tuner = Regrow(task, place, "auto", "auto")
        simulate(tuner, task, seconds=30 * task.training / task.workers)
        found += learnt_from(tuner.history, tuner.history.spec, task.spec.name, "learn_from")
    return found


ELSEWHERE: dict[str, type[Elsewhere]] = {"Syne Tune": SyneTune, "SMAC": Smac}
SCHEDULES: dict[str, Any] = {"auto": "auto", "tpe": {"async_hyperband": {"eager": 24}}}
MODEL = {"mobster": {"by_step": True, "augmented": True}}
"""The sampler of `auto`."""
PROMOTION = {"asha": {"type": "promotion"}}
FIRST = ours("auto", "auto", "auto", usual=True)
"""What the others are compared with."""
AGAIN = ours("auto", "auto", "auto, again", usual=True)
"""The same: how far two rows differ by chance."""
METHODS = {
    method.name: method
    for method in (
        FIRST,
        AGAIN,
        ours("random", "asha", usual=True),
        ours("bohb", "hyperband", usual=True),
        ours("tpe", "asha", usual=True),
        optuna("tpe", "none", usual=True),
        optuna("gp", "none", usual=True),
        optuna("tpe", "hyperband", usual=True),
        tune("random", "asha", usual=True),
        elsewhere("Syne Tune", "asha", usual=True),
        elsewhere("Syne Tune", "bohb", usual=True),
        elsewhere("SMAC", "multi-fidelity", usual=True),
        learning("auto"),
        learning("tpe"),
        ours("auto", "auto", "auto, budget", limit="budget"),
        ours("auto", "auto", "auto, trials", limit="trials"),
        ours("random", "fifo"),
        ours("random", PROMOTION, "random, asha (promotion)"),
        ours("random", "hyperband"),
        ours("random", "async_hyperband"),
        ours("random", "median"),
        ours("tpe", "fifo"),
        ours("tpe", PROMOTION, "tpe, asha (promotion)"),
        ours("tpe", "async_hyperband"),
        ours("tpe", "median"),
        ours({"tpe": {"like_optuna": True}}, "asha", "tpe like_optuna, asha"),
        ours("cmaes", "fifo"),
        ours("bohb", "asha"),
        ours("mobster", SCHEDULES["tpe"], "auto without guard and by_step"),
        ours(
            MODEL,
            SCHEDULES["tpe"],
            "auto without guard",
        ),
        ours(
            MODEL,
            {"async_hyperband": {"eager": 24, "guard": True, "recheck": True}},
            "auto that stops, not pauses",
        ),
        ours("mobster", "fifo"),
        ours("mobster", "hyperband"),
        optuna("random", "none"),
        optuna("random", "halving"),
        optuna("random", "hyperband"),
        optuna("random", "median"),
        optuna("tpe", "halving"),
        optuna("tpe", "median"),
        optuna("cmaes", "none"),
        tune("random", "fifo"),
        tune("random", "asha-brackets"),
        tune("random", "hyperband"),
        tune("random", "median"),
        tune("optuna", "fifo"),
        tune("optuna", "asha"),
        elsewhere("Syne Tune", "random"),
        elsewhere("Syne Tune", "asha-brackets"),
        elsewhere("Syne Tune", "median"),
        elsewhere("Syne Tune", "cqr"),
        elsewhere("Syne Tune", "bore"),
    )
}
