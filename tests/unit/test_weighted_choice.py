"""Choices whose values are not equally likely."""

from __future__ import annotations

from collections import Counter

import pytest

from regrow.search.errors import SpecError
from regrow.search.samplers import make
from regrow.search.space import Space
from regrow.search.spec import Spec
from tests.unit.simulated import SPEC

KIND = {"choice": ["a", "b", "c"], "probabilities": [0.7, 0.3, 0]}


def test_values_are_drawn_by_their_probabilities() -> None:
    spec = Spec.parse(
        {**SPEC, "space": {"x": KIND, "y": {"uniform": [0, 1]}}, "search": "random", "trials": 2000}
    )
    assert spec.space.to_json()["x"] == {**KIND, "probabilities": [0.7, 0.3, 0.0]}
    sampler = make(spec.search, spec.setting)
    drawn = [one.config["x"] for n in range(2000) if (one := sampler.ask(n, n)) is not None]
    counts = Counter(drawn)
    assert counts["c"] == 0
    assert 1300 < counts["a"] < 1500
    domain = Space.parse({"x": KIND}).flat[0].domain
    assert [domain.quantile(u) for u in (0.0, 0.69, 0.71, 0.999)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize("shares", [[0.5], [1, -1, 1], [0, 0, 0], ["a", 1, 1], 3])
def test_probabilities_that_are_none_are_refused(shares: object) -> None:
    with pytest.raises(SpecError) as refused:
        Space.parse({"x": {"choice": ["a", "b", "c"], "probabilities": shares}})
    assert refused.value.key == "space.x.probabilities"


def test_probabilities_whose_sum_no_float_holds_are_drawn_by() -> None:
    domain = Space.parse({"x": {"choice": ["a", "b"], "probabilities": [1e308, 1e308]}})
    assert [domain.flat[0].domain.quantile(u) for u in (0.1, 0.9)] == ["a", "b"]
    assert Space.parse(domain.to_json()) == domain
