"""The port of a scheduler: five methods, what a user's own may declare beside them, and that nobody
else knows their names.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regrow.search import schedulers
from regrow.search.errors import SpecError
from regrow.search.events import Started
from regrow.search.planning.simulator import FunctionObjective, simulate
from regrow.search.spec import Spec
from regrow.testing import (
    Decision,
    Drop,
    End,
    News,
    Scheduler,
    SchedulerPort,
    Setting,
    Start,
    Verdict,
    check_scheduler,
)

ROOT = Path(__file__).parents[2]
REGISTRY = ROOT / "search" / "schedulers" / "__init__.py"
TWO = [{"name": "score", "mode": "max"}, {"name": "cost", "mode": "min"}]


def own(kind: type) -> str:
    """The import path of a class of this module."""
    return f"{__name__}:{kind.__name__}"


def spec(schedule: object, **changes: Any) -> Spec:
    given = {
        "name": "port",
        "trainable": "a.py:f",
        "metric": "score",
        "mode": "max",
        "space": {"x": {"uniform": [0, 1]}},
    }
    return Spec.parse(
        {**given, "search": "random", "schedule": schedule, "trials": 4, "max_steps": 4, **changes}
    )


class Bare:
    """Has the five methods and derives from nothing: pauses each trial at its second step, and
    promotes the best that waits.
    """

    def __init__(self, setting: Setting) -> None:
        self.sign = setting.sign
        self.waiting: dict[int, float] = {}

    def apply(self, news: News) -> None:
        match news:
            case Decision():
                self.waiting[news.trial] = self.sign * news.values[-1]
            case Start() | Drop() | End():
                self.waiting.pop(news.trial, None)

    def first(self, trial: int, after: int) -> int | None:
        return 2 if after < 2 else None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        return Verdict(action="pause", why="its turn is over")

    def promote(self, *, complete: bool) -> int | None:
        return (
            min(self.waiting, key=lambda trial: (self.waiting[trial], trial), default=None)
            if complete
            else None
        )

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        return None


class Several(Scheduler):
    """May be used where there are several metrics."""

    several = True


class Wide(Scheduler):
    """Says what an attempt gets, and nothing else."""

    def width(self, trial: int) -> int:
        return 2


class Lacks:
    """Has four of the five."""

    apply = first = decide = promote = Bare.decide


def test_the_port_has_five_methods() -> None:
    found = [
        name
        for name, value in vars(SchedulerPort).items()
        if callable(value) and not name.startswith("_")
    ]
    assert found == ["apply", "first", "decide", "promote", "surplus"]


@pytest.mark.parametrize("name", schedulers.NAMES)
def test_every_registered_scheduler_has_it(name: str) -> None:
    assert all(
        callable(getattr(schedulers.kind(name), method))
        for method in ("apply", "first", "decide", "promote", "surplus")
    )


def test_a_class_that_has_the_five_methods_is_a_scheduler_whatever_it_derives_from() -> None:
    check_scheduler(own(Bare), trials=5, max_steps=4)


def test_a_class_that_lacks_one_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"is no scheduler; derive it from regrow\.testing\.Scheduler"
    ):
        spec(own(Lacks)).check_imports()


def test_a_scheduler_of_ones_own_may_declare_that_it_takes_several_metrics() -> None:
    spec(own(Several), metric=TWO, mode=None).check_imports()
    with pytest.raises(
        SpecError, match="decides by one metric, and there are several; write schedule: fifo"
    ):
        spec(own(Wide), metric=TWO, mode=None).check_imports()


def test_what_an_attempt_gets_is_asked_of_those_that_say_so() -> None:
    for schedule, width in ((own(Wide), 2), (own(Several), 1)):
        given = spec(schedule)
        run = simulate(
            given,
            FunctionObjective(function=lambda config, step: float(step), spec=given),
            workers=4,
        )
        assert {event.width for event in run.events if isinstance(event, Started)} == {width}


def test_how_much_will_be_done_is_foreseen_without_a_users_own_scheduler() -> None:
    # 4 trials do 1 step, 2 two, 1 four
    halving = {"successive_halving": {"n": 4, "reduction_factor": 2}}
    assert schedulers.most_steps(halving, spec(halving).setting, 4) == 4 + 2 + 2
    assert schedulers.most_steps("nowhere:Nobody", spec("fifo").setting, 4) == 16
    assert schedulers.most_steps("fifo", spec("fifo", max_steps=None).setting, 4) is None


def literals(source: str) -> set[str]:
    """The strings of a module that are exactly the name of a scheduler."""
    found = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return {name for name in schedulers.NAMES if name in found}


ALSO = {
    "search/samplers/__init__.py": {"dehb"},  # the sampler of that name
    "search/schedulers/median.py": {"percentile"},  # an option
    "search/schedulers/pbt.py": {"pbt"},  # what its chance is drawn by
    "search/schedulers/pb2.py": {"pb2"},
    "regrow/show/figures/scaling.py": {"median"},  # the statistic
    "search/spec/auto.py": {"hyperband"},  # what is chosen where nothing is said
}


def test_the_names_of_schedulers_are_written_in_the_registry_only() -> None:
    parts = [
        "search",
        "tasks",
        "infra",
        "flows",
        "regrow/show",
        "regrow/apps",
        "regrow/cli",
        "regrow",
    ]
    files = {
        file
        for part in parts
        for file in (ROOT / part).glob("*.py" if part == "regrow" else "**/*.py")
    }
    assert REGISTRY in files
    found = {
        str(file.relative_to(ROOT)): names
        for file in files - {REGISTRY}
        if (names := literals(file.read_text()))
    }
    assert found == ALSO
    assert literals(REGISTRY.read_text()) == {*schedulers.NAMES}
