"""What an attempt needs, and what fits on the nodes of a cluster: counted once, asked of Ray as it was counted."""

from __future__ import annotations

from typing import Any

import pytest

from regrow.infra.ray.executor import options_of
from regrow.infra.ray.joining import TRIAL_ENV, shortage, slots
from regrow.search.errors import SpecError
from regrow.search.needs import Needs, room
from regrow.search.spec import Spec
from regrow.search.spec.parts import Resources
from regrow.tasks.errors import UserError
from tests.unit.simulated import SPEC

SMALL, LARGE = {"CPU": 4.0, "memory": 2.0**33}, {"CPU": 8.0, "GPU": 2.0, "memory": 2.0**34, "licence": 1.0}


@pytest.mark.parametrize(
    ("resources", "small", "large"),
    [
        ({}, 4, 8), ({"cpu": 3}, 1, 2), ({"cpu": 1 / 3}, 12, 24), ({"cpu": 1, "memory": "4GiB"}, 2, 4), ({"cpu": 1, "gpu": 1}, 0, 2),
        ({"cpu": 0, "gpu": 0.25}, 0, 8), ({"custom": {"licence": 1}}, 0, 1), ({"cpu": 9}, 0, 0), ({"cpu": 0}, 1, 1),
    ],
)  # fmt: skip
def test_an_attempt_is_on_one_node(resources: dict[str, Any], small: int, large: int) -> None:
    needs = Resources(**resources).needs()
    assert (needs.fitting(SMALL), needs.fitting(LARGE), room(needs, [SMALL, LARGE])) == (small, large, small + large)


def test_all_bundles_of_a_wide_attempt_are_on_one_node() -> None:
    assert [Resources(cpu=2).needs(width).fitting(LARGE) for width in (1, 2, 3, 4, 5)] == [4, 2, 1, 1, 0]
    assert room(Resources(cpu=3).needs(4), [LARGE, SMALL]) == 0, "also where two nodes together had it"
    mixed = Needs(bundles=({"CPU": 1.0, "GPU": 1.0}, {"CPU": 3.0}))
    assert (mixed.of_node(), mixed.fitting(LARGE), mixed.fitting(SMALL)) == ({"CPU": 4.0, "GPU": 1.0}, 2, 0)


@pytest.mark.parametrize(
    ("resources", "most"), [({}, 8), ({"gpu": 1}, 2), ({"gpu": 0.5}, 2), ({"gpu": 0.3}, 3), ({"cpu": 9}, 1), ({"cpu": 0}, 1)]
)
def test_how_many_slots_one_attempt_can_have(resources: dict[str, Any], most: int) -> None:
    assert Resources(**resources).shape.widest([SMALL, LARGE]) == most


def test_ray_is_asked_for_all_bundles() -> None:
    needs = Resources(cpu=0.5, gpu=0.1, memory=1000, custom={"licence": 0.5}).needs(10)
    assert options_of(needs) == {
        "num_cpus": 5.0, "num_gpus": 1.0, "memory": 10_000, "resources": {"licence": 5.0}, "runtime_env": TRIAL_ENV,
    }
    assert options_of(Resources(cpu=0).needs()) == {"num_cpus": 0, "num_gpus": 0, "resources": {}, "runtime_env": TRIAL_ENV}


def test_what_fits_on_no_node_is_said_with_what_the_nodes_have() -> None:
    class Two:
        local = True

        def nodes(self) -> list[dict[str, float]]:
            return [SMALL, LARGE]

    cluster: Any = Two()
    assert slots(Spec.parse({**SPEC, "resources": {"cpu": 4}, "concurrency": None}), cluster) == 3
    asked = {"cpu": 1, "gpu": 4, "custom": {"licence": 1}}
    with pytest.raises(SpecError) as error:
        slots(Spec.parse({**SPEC, "resources": asked}), cluster)
    assert (error.value.key, error.value.value) == ("resources", asked)
    assert "they have cpu 4, gpu 0, memory 8.6 GB; cpu 8, gpu 2, memory 17 GB, licence 1" in str(error.value)


def test_a_cluster_that_grows_may_have_no_node_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        local = False

        def nodes(self) -> list[dict[str, float]]:
            return [{"memory": 1e9}]

    cluster: Any = Empty()
    asked = Spec.parse({**SPEC, "resources": {"cpu": 4}, "concurrency": None})
    with pytest.raises(SpecError, match="say how many trials may run at a time"):
        slots(asked, cluster)
    monkeypatch.setenv("REGROW_SLOTS", "30")
    assert slots(asked, cluster) == 30
    assert slots(Spec.parse({**SPEC, "resources": {"cpu": 4}, "concurrency": 7}), cluster) == 7
    told = shortage(asked, cluster)
    assert told is not None
    assert "which needs {'cpu': 4" in told
    for wrong in ("many", "0", "-1", "1.5"):
        monkeypatch.setenv("REGROW_SLOTS", wrong)
        with pytest.raises(UserError, match=f"REGROW_SLOTS='{wrong}' is not a whole number from 1"):
            slots(asked, cluster)
