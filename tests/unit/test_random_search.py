"""Random search: draws that follow the prior and never change."""

from __future__ import annotations

import numpy as np

from regrow.search.space import Space
from tests.unit.sampling import SPACE, make, seed_of


def test_random_proposals_never_change() -> None:
    """They are recomputed from logs that another version of Python wrote: these are the values of
    the first.
    """
    space = Space.parse(
        {"a": {"uniform": [0, 1]}, "b": {"int": [1, 100]}, "c": {"choice": ["x", "y", "z"]}}
    )
    proposals = [make("random", space, "min").ask(n, n) for n in range(3)]
    assert [p.config for p in proposals if p] == [
        {"a": 0.7417194198289921, "b": 39, "c": "x"},
        {"a": 0.5825904866870052, "b": 76, "c": "z"},
        {"a": 0.1414748646098044, "b": 40, "c": "z"},
    ]


def test_a_parameter_draws_the_same_whatever_the_others_do() -> None:
    one = make("random", Space.parse({"a": {"uniform": [0, 1]}}), "min").ask(0, 5)
    two = make("random", Space.parse({"z": {"int": [1, 9]}, "a": {"uniform": [0, 1]}}), "max").ask(
        0, 5
    )
    assert one is not None
    assert two is not None
    assert one.config["a"] == two.config["a"]


def test_random_draws_follow_the_prior() -> None:
    sampler = make("random", SPACE, "min")
    configs = [p.config for n in range(4000) if (p := sampler.ask(n, seed_of(n)))]
    quarter = [sum(c["lr"] < 1e-4 for c in configs), sum(c["units"] < 32 for c in configs) * 1.5]
    assert all(abs(count / 4000 - 0.25) < 0.03 for count in quarter)
    assert abs(np.mean([c["init"] for c in configs]) - 1) < 0.1
    assert abs(np.std([c["init"] for c in configs]) - 2) < 0.1
    assert {c["layers"] for c in configs} == {1, 2, 3, 4, 5, 6}
    assert abs(sum(c["layers"] == 6 for c in configs) / 4000 - 1 / 6) < 0.03
