"""The sampler "brute_force": every cell once, in a random order that is never enumerated."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.search.errors import SpecError
from regrow.search.samplers import make, size
from regrow.search.samplers.base import Result
from regrow.search.samplers.grid import Cells, permuted
from regrow.search.space import Choice, Float, Grid, Int, Space
from regrow.search.space.setting import Setting
from tests.unit.replaying import Replayed, seed_of

SPACE = Space.parse(
    {
        "kind": {"choice": ["a", "b", "c"]},
        "depth": {"int": [1, 4], "when": {"kind": "a"}},
        "drop": {"quniform": [0, 0.3, 0.1]},
        "g": {"grid": [1, 2]},
    }
)
CELLS = (4 + 2) * 4 * 2


def setting(space: Space = SPACE, seed: int = 0) -> Setting:
    return Setting(space=space, modes=("min",), seed=seed)


def order(seed: int) -> list[str]:
    sampler = make("brute_force", setting(seed=seed))
    proposals = [sampler.ask(n, seed_of(n)) for n in range(CELLS + 2)]
    assert proposals[CELLS:] == [None, None]
    return [json.dumps(p.config) for p in proposals if p is not None]


def test_every_cell_once_in_an_order_of_the_experiments_seed() -> None:
    assert size("brute_force", setting()) == CELLS
    cells = Cells(SPACE, Choice, Float, Grid, Int)
    inside = {json.dumps(cells.at(k)) for k in range(CELLS)}
    first, again, other = order(1), order(1), order(2)
    assert len(first) == len(set(first)) == CELLS
    assert set(first) == set(other) == inside
    assert first == again != other


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**64))
def test_it_is_a_permutation(count: int, seed: int) -> None:
    assert sorted(permuted(k, count, seed) for k in range(count)) == list(range(count))


def test_all_orders_of_three_are_about_equally_likely() -> None:
    found = Counter(tuple(permuted(k, 3, seed) for k in range(3)) for seed in range(240))
    assert len(found) == 6
    # chi-squared of 5 degrees: one in 1,000
    assert sum((n - 40) ** 2 / 40 for n in found.values()) < 20.5


def test_successive_cells_are_as_far_apart_as_random_ones() -> None:
    places = [permuted(k, 10_000, 5) for k in range(2_000)]
    apart = [abs(a - b) for a, b in pairwise(places)]
    assert abs(sum(apart) / len(apart) - 10_000 / 3) < 200  # 4 standard errors


def test_spaces_too_large_to_enumerate() -> None:
    space = Space.parse({f"p{i}": {"choice": list(range(10))} for i in range(29)})
    sampler = make("brute_force", setting(space))
    assert size("brute_force", setting(space)) == 10**29
    proposals = [sampler.ask(n, 0) for n in (0, 1, 10**28, 10**29 - 1)]
    assert len({json.dumps(p.config) for p in proposals if p}) == 4
    assert sampler.ask(10**29, 0) is None


def test_a_trial_of_the_users_takes_no_place_in_the_order() -> None:
    sampler = make("brute_force", setting())
    found = []
    for number in range(CELLS + 2):
        if number in (0, 7):
            sampler.tell(Result(number=number, config={}, status="running"))
            continue
        proposal = sampler.ask(number, 0)
        assert proposal is not None
        found.append(json.dumps(proposal.config))
        sampler.tell(
            Result(number=number, config=proposal.config, state=proposal.state, status="running")
        )
    assert found == order(0)


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (
            {"uniform": [0, 1]},
            "is continuous, so its values cannot be tried one by one; use choice: .*, or quniform",
        ),
        (
            {"int": [1, 5000]},
            "has 5000 values, so its values cannot be tried one by one; use choice: .*, or a step",
        ),
    ],
)
def test_what_has_no_cells_is_refused(domain: dict[str, list[int]], message: str) -> None:
    with pytest.raises(SpecError, match=f"space.x: .*: {message}"):
        make("brute_force", setting(Space.parse({"x": domain})))


def test_a_replay_proposes_the_same() -> None:
    replayed = Replayed(
        search="brute_force", setting=setting(), objective=lambda c: c["drop"], count=50
    ).run()
    assert replayed.compared > 80
