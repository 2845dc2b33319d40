"""The examples of one's own search keep what the kit asks for, and a foreign optimiser finds more
than chance does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from regrow.testing import FunctionObjective, Spec, check_sampler, check_scheduler, simulate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def _beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.parametrize("name", ["own_sampler.py", "own_scheduler.py", "nevergrad_sampler.py"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < 80


def test_the_samplers_keep_their_word() -> None:
    check_sampler("own_sampler:Pairs")
    check_sampler("nevergrad_sampler:Nevergrad", trials=20)


def test_the_scheduler_keeps_its_word() -> None:
    check_scheduler({"own_scheduler:Gap": {"most": 0.1}}, trials=8)


def test_the_foreign_optimiser_comes_closer_than_random_search() -> None:
    def best(search: str) -> float:
        spec = Spec.parse(
            {
                "name": "bowl",
                "trainable": "a.py:b",
                "metric": "loss",
                "mode": "min",
                "search": search,
                "trials": 60,
                "space": {"x": {"uniform": [0.0, 1.0]}, "y": {"uniform": [0.0, 1.0]}},
                "max_steps": 1,
            }
        )
        bowl = FunctionObjective(
            function=lambda c, _: float((c["x"] - 0.3) ** 2 + (c["y"] - 0.8) ** 2), spec=spec
        )
        history = simulate(spec, bowl, workers=4).history
        found = history.trials[history.best or 0].best
        assert found is not None
        return found[0]

    assert best("nevergrad_sampler:Nevergrad") < best("random") / 2
