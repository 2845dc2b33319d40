"""Parameters whose best values lie at a bound, and the domain that is offered instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.search.history.at_bounds import at_bounds
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.spec import Spec
from regrow.show.live import text
from regrow.show.report import report
from tests.unit.paged import logged, reader
from tests.unit.test_report import Page
from tests.unit.told import remember, rows_of

MIDDLE = [0.3, 0.4, 0.5, 0.35, 0.45, 0.55, 0.33, 0.44]


def run(domain: dict[str, Any], values: list[float], mode: str = "max") -> Simulation:
    """An experiment whose parameter is the objective."""
    spec = Spec.parse(
        {
            "name": "a",
            "trainable": "a:b",
            "metric": "score",
            "mode": mode,
            "space": {"x": domain},
            "points": [{"x": value} for value in values],
            "search": "random",
            "schedule": "fifo",
            "trials": len(values),
            "max_steps": 1,
        }
    )

    def curve(config: Any, *_: Any) -> Any:
        return config["x"]

    return simulate(spec, FunctionObjective(function=curve, spec=spec), workers=2)


def ended(domain: dict[str, Any], values: list[float], mode: str = "max") -> History:
    return run(domain, values, mode).history


@pytest.mark.parametrize(
    ("domain", "values", "mode", "side", "wider"),
    [
        ({"uniform": [0.1, 2]}, [*MIDDLE, 1.99, 1.98, 2.0, 1.97, 1.96, 1.0], "max", "upper", 3.9),
        ({"loguniform": [0.1, 1]}, [*MIDDLE, 1, 0.99, 0.98, 0.97, 0.96, 0.95], "max", "upper", 10),
        (
            {"loguniform": [0.1, 1]},
            [*MIDDLE, 0.1, 0.101, 0.102, 0.103, 0.104, 0.2],
            "min",
            "lower",
            0.01,
        ),
        ({"int": [2, 9]}, [3, 4, 5, 6, 7, 8, 3, 9, 9, 9, 9, 9], "max", "upper", 16),
    ],
)
def test_a_bound_at_which_five_of_the_six_best_lie_is_moved(
    domain: dict[str, Any], values: list[float], mode: str, side: str, wider: float
) -> None:
    [found] = at_bounds(ended(domain, values, mode))
    assert (found.name, found.side) == ("x", side)
    assert found.count >= 5
    assert (found.wider.high if side == "upper" else found.wider.low) == wider


@pytest.mark.parametrize(
    ("domain", "values", "mode"),
    [
        (
            {"uniform": [0, 2]},
            [*MIDDLE, 0.0, 0.01, 0.02, 0.0, 0.01, 0.02],
            "min",
        ),  # as of a dropout
        ({"uniform": [0, 1]}, [*MIDDLE, 1.0, 0.99, 0.98, 1.0, 0.99, 0.98], "max"),
        ({"uniform": [0.1, 2]}, [*MIDDLE, 1.99, 1.98, 2.0, 1.97, 1.0, 1.0], "max"),  # four of six
        ({"uniform": [0.1, 2]}, [1.99, 1.98, 2.0, 1.97, 1.96], "max"),  # too few trials
        ({"int": [1, 1000]}, [*range(100, 110), *[990, 991, 992, 993, 994, 995]], "max"),
        ({"choice": [1, 2, 3]}, [1, 2, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1], "max"),
    ],
)
def test_what_is_no_bound_of_the_search_is_left_alone(
    domain: dict[str, Any], values: list[float], mode: str
) -> None:
    assert list(at_bounds(ended(domain, values, mode))) == []


def test_the_end_of_a_run_its_report_and_its_page_have_the_command(tmp_path: Path) -> None:
    made = run({"loguniform": [0.1, 1]}, [*MIDDLE, 1, 0.99, 0.98, 0.97, 0.96, 0.95])
    logged(tmp_path, "a", made.events)
    places = Places(root=str(tmp_path))
    remember(made.history, made.events)
    where = "x lies at its upper bound in 6 of the 6 best"
    command = "regrow cp a a-wider.yaml --set 'space.x.loguniform=[0.1, 10.0]'"
    assert f"{where}; widen it: {command} --state {tmp_path}" in [
        *text.ending(made.history, places)
    ]
    written = report.html(rows_of(made.history), places, alive=False, now=made.history.t_last)
    for page in (written, reader(tmp_path).get("/e/a").text):
        assert f"{where}. Widen it: {command}" in Page(page).text
