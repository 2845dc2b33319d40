"""The sampler "qmc": the sequences of scipy, whichever trial is asked for first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.stats import qmc

from regrow.search.errors import SpecError
from regrow.search.samplers import make
from regrow.search.samplers.base import Sampler
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from tests.unit.replaying import Replayed, seed_of

SQUARE = Space.parse({"x": {"uniform": [0, 1]}, "y": {"uniform": [0, 1]}})
MIXED = Space.parse(
    {
        "x": {"uniform": [0, 1]},
        "kind": {"choice": ["a", "b", "c", "d"]},
        "depth": {"int": [1, 8], "when": {"kind": "a"}},
        "size": {"grid": [10, 20, 30]},
        "z": {"normal": [0, 1]},
        "fixed": 1,
    }
)


def setting(space: Space, seed: int = 3) -> Setting:
    return Setting(space=space, modes=("min",), seed=seed)


def configs(sampler: Sampler, numbers: Any) -> list[dict[str, Any]]:
    found = []
    for number in numbers:
        proposal = sampler.ask(number, seed_of(number))
        assert proposal is not None
        found.append(proposal.config)
    return found


@pytest.mark.parametrize(
    ("name", "scramble"), [("sobol", True), ("sobol", False), ("halton", True), ("halton", False)]
)
def test_trial_n_is_point_n_of_the_sequence(name: str, scramble: bool) -> None:
    engine = {"sobol": qmc.Sobol, "halton": qmc.Halton}[name](2, scramble=scramble, seed=3)
    expected = engine.random(1024)
    sampler = make({"qmc": {"qmc_type": name, "scramble": scramble}}, setting(SQUARE))
    numbers = [700, 0, 1, 255, 256, 257, 1023, 5]  # across blocks and back
    found = [[c["x"], c["y"]] for c in configs(sampler, numbers)]
    np.testing.assert_allclose(found, expected[numbers], atol=1e-9)


def test_every_parameter_has_its_own_dimension_and_grids_take_turns() -> None:
    found = configs(make("qmc", setting(MIXED)), range(256))
    # balanced, as random draws are not
    assert Counter(c["kind"] for c in found) == dict.fromkeys("abcd", 64)
    assert all(("depth" in c) == (c["kind"] == "a") for c in found)
    assert [c["size"] for c in found[:4]] == [10, 20, 30, 10]
    assert Counter(c["z"] > 0 for c in found) == {True: 128, False: 128}
    assert {c["fixed"] for c in found} == {1}


def test_the_sequence_is_that_of_the_experiments_seed() -> None:
    one, same, other = (configs(make("qmc", setting(SQUARE, seed)), range(9)) for seed in (1, 1, 2))
    assert one == same != other


def test_points_are_spread_more_evenly_than_random_ones() -> None:
    gaps = []
    for name in ("qmc", "random"):
        points = [[c["x"], c["y"]] for c in configs(make(name, setting(SQUARE)), range(128))]
        gaps.append(qmc.discrepancy(points))
    assert gaps[0] < gaps[1] / 5


def test_a_space_of_grids_and_constants_has_no_dimension() -> None:
    space = Space.parse({"a": {"grid": [1, 2]}, "b": "c"})
    assert configs(make("qmc", setting(space)), range(3)) == [
        {"a": 1, "b": "c"},
        {"a": 2, "b": "c"},
        {"a": 1, "b": "c"},
    ]


def test_an_unknown_sequence_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"search.qmc.qmc_type: \"latin\": is not known; write sobol or halton"
    ):
        make({"qmc": {"qmc_type": "latin"}}, setting(SQUARE))


def test_a_replay_proposes_the_same() -> None:
    assert (
        Replayed(search="qmc", setting=setting(MIXED), objective=lambda c: c["x"], every=5)
        .run()
        .compared
        > 10
    )
