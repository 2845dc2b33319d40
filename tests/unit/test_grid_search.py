"""Grid search: every combination once, in an order that is known without walking it."""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.space import Space
from tests.unit.sampling import SPACE, make, size


def cells(written: dict[str, Any]) -> list[dict[str, Any]]:
    space = Space.parse(written)
    sampler = make("grid", space, "min")
    taken: list[dict[str, Any]] = []
    while (proposal := sampler.ask(len(taken), 0)) is not None:
        taken.append(proposal.config)
    assert size("grid", space) == len(taken)
    return taken


def test_the_first_parameter_of_a_grid_is_the_slowest() -> None:
    written = {
        "a": {"grid": [2, 1]},
        "b": "x",
        "c": {"int": [0, 4], "step": 2},
        "d": {"quniform": [0, 0.2, 0.2]},
    }
    assert cells(written) == [
        {"a": a, "b": "x", "c": c, "d": d} for a in (2, 1) for c in (0, 2, 4) for d in (0.0, 0.2)
    ]


def test_a_grid_has_a_conditional_parameter_only_where_it_is_active() -> None:
    written = {
        "m": {"choice": [0.5, 0.9], "when": {"opt": "sgd"}},
        "opt": {"choice": ["sgd", "adam"]},
        "deep": {"grid": [1, 2], "when": {"m": 0.9}},
        "act": {"choice": ["r"]},
    }
    assert cells(written) == [
        {"opt": "sgd", "m": 0.5, "act": "r"},
        {"opt": "sgd", "m": 0.9, "deep": 1, "act": "r"},
        {"opt": "sgd", "m": 0.9, "deep": 2, "act": "r"},
        {"opt": "adam", "act": "r"},
    ]


def test_a_huge_grid_is_counted_and_addressed_without_walking_it() -> None:
    space = Space.parse({f"p{i:02}": {"int": [0, 9]} for i in range(30)})
    assert size("grid", space) == 10**30
    proposal = make("grid", space, "min").ask(10**29 + 7, 0)
    assert proposal is not None
    assert (proposal.config["p00"], proposal.config["p01"], proposal.config["p29"]) == (1, 0, 7)


@pytest.mark.parametrize("search", ["grid", "random", "brute_force"])
def test_a_space_may_have_more_constants_than_python_has_levels_of_calls(search: str) -> None:
    space = Space.parse({**{f"c{n}": n for n in range(2000)}, "x": {"choice": [1, 2]}})
    proposal = make(search, space, "min").ask(0, 0)
    assert proposal is not None
    assert len(proposal.config) == 2001


def test_one_parameter_may_need_many_switches() -> None:
    switches = {f"s{n}": {"choice": [0, 1]} for n in range(40)}
    needs = {"choice": [1, 2, 3], "when": dict.fromkeys(switches, 1)}
    space = Space.parse({**switches, "last": needs})
    assert size("grid", space) == 2**40 + 2
    sampler = make("grid", space, "min")
    found = [sampler.ask(2**40 + n, 0) for n in range(3)]
    assert [one and one.config.get("last") for one in found] == [2, 3, None]


def test_only_a_grid_has_a_size() -> None:
    assert size("random", SPACE) is None
    assert size("tpe", SPACE) is None


@pytest.mark.parametrize(
    "domain", [{"uniform": [0, 1]}, {"normal": [0, 1]}, {"int": [1, 10**6]}], ids=str
)
def test_a_parameter_with_too_many_values_has_no_grid(domain: Any) -> None:
    with pytest.raises(SpecError, match=r"^space\.a: .* use grid: \[\.\.\.\]"):
        make("grid", Space.parse({"a": domain}), "min")
