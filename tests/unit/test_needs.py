"""What an attempt needs, and what fits on the nodes of a cluster: counted once, asked of Ray as it
was counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from regrow.infra.ray import scaling
from regrow.infra.ray.executor import options_of
from regrow.infra.ray.joining import TRIAL_ENV, shortage, slots
from regrow.search.errors import SpecError
from regrow.search.needs import Needs, Shape, room
from regrow.search.spec import Spec
from regrow.search.spec.parts import Children, Resources
from regrow.tasks.errors import UserError
from tests.unit.simulated import SPEC

SMALL, LARGE = (
    {"CPU": 4.0, "memory": 2.0**33},
    {"CPU": 8.0, "GPU": 2.0, "memory": 2.0**34, "licence": 1.0},
)


@pytest.mark.parametrize(
    ("resources", "small", "large"),
    [
        ({}, 4, 8), ({"cpu": 3}, 1, 2), ({"cpu": 1 / 3}, 12, 24), ({"cpu": 1, "memory": "4GiB"}, 2, 4), ({"cpu": 1, "gpu": 1}, 0, 2),
        ({"cpu": 0, "gpu": 0.25}, 0, 8), ({"custom": {"licence": 1}}, 0, 1), ({"cpu": 9}, 0, 0), ({"cpu": 0}, 1, 1),
    ],
)  # fmt: skip
def test_an_attempt_is_on_one_node(resources: dict[str, Any], small: int, large: int) -> None:
    needs = Resources(**resources).needs()
    assert (needs.fitting(SMALL), needs.fitting(LARGE), room(needs, [SMALL, LARGE])) == (
        small,
        large,
        small + large,
    )


def test_all_bundles_of_a_wide_attempt_are_on_one_node() -> None:
    assert [Resources(cpu=2).needs(width).fitting(LARGE) for width in (1, 2, 3, 4, 5)] == [
        4,
        2,
        1,
        1,
        0,
    ]
    assert room(Resources(cpu=3).needs(4), [LARGE, SMALL]) == 0, (
        "also where two nodes together had it"
    )
    mixed = Needs(bundles=({"CPU": 1.0, "GPU": 1.0}, {"CPU": 3.0}))
    assert (mixed.of_node(), mixed.fitting(LARGE), mixed.fitting(SMALL)) == (
        {"CPU": 4.0, "GPU": 1.0},
        2,
        0,
    )


@pytest.mark.parametrize(
    ("resources", "most"),
    [
        ({}, 8),
        ({"gpu": 1}, 2),
        ({"gpu": 0.5}, 2),
        ({"gpu": 0.3}, 3),
        ({"cpu": 9}, 1),
        ({"cpu": 0}, 1),
    ],
)
def test_how_many_slots_one_attempt_can_have(resources: dict[str, Any], most: int) -> None:
    assert Resources(**resources).shape.widest([SMALL, LARGE]) == most


def test_ray_is_asked_for_all_bundles() -> None:
    needs = Resources(cpu=0.5, gpu=0.1, memory=1000, custom={"licence": 0.5}).needs(10)
    assert options_of(needs.of_node()) == {
        "num_cpus": 5.0,
        "num_gpus": 1.0,
        "memory": 10_000,
        "resources": {"licence": 5.0},
        "runtime_env": TRIAL_ENV,
    }
    assert options_of(Resources(cpu=0).needs().of_node()) == {
        "num_cpus": 0,
        "num_gpus": 0,
        "resources": {},
        "runtime_env": TRIAL_ENV,
    }


# ---- groups


@pytest.mark.parametrize(
    ("resources", "nodes", "slots", "widest"),
    [
        ({"workers": 3}, [4, 4], 6, 3),  # one of them lies on both
        ({"workers": 4, "cpu": 3}, [4, 4, 4], 0, 4),
        ({"workers": 3, "cpu": 3}, [4, 4, 4], 3, 3),
        ({"workers": [2, 4]}, [10], 10, 4),
        ({"workers": [2, 4]}, [3, 2], 4, 4),
        ({"workers": [2, 4]}, [3], 3, 3),
        ({"workers": [2, 4]}, [1], 0, 2),
        ({"workers": [2, 4]}, [], 0, 2),
        ({"children": {"cpu": 1, "count": 3}}, [4, 4], 2, 1),
        ({"children": {"cpu": 2, "count": 2}}, [2, 2, 2], 1, 1),
        ({"workers": 2, "children": {"cpu": 2}}, [4, 4], 4, 2),
        ({"workers": 2, "children": {"cpu": 5}}, [4, 4], 0, 2),
        ({"workers": [1, 4], "children": {"cpu": 2}}, [4, 3], 4, 4),
        ({"workers": [1, 4], "children": {"cpu": 2}}, [4, 1], 3, 3),
        ({"workers": 2, "cpu": 0.1}, [1], 10, 2),
    ],
)
def test_a_group_may_lie_on_several_nodes(
    resources: dict[str, Any], nodes: list[int], slots: int, widest: int
) -> None:
    shape, there = Resources(**resources).shape, [{"CPU": float(cpus)} for cpus in nodes]
    assert (shape.slots(there), shape.widest(there)) == (slots, widest)


def test_each_kind_of_bundle_needs_what_it_needs() -> None:
    resources = Resources(cpu=1, gpu=1, workers=2, children=Children(cpu=4, count=1))
    needs = resources.needs(2)
    assert needs.bundles == ({"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}, {"CPU": 4})
    assert (needs.strategy, needs.children) == ("PACK", 1)
    assert resources.shape.slots([LARGE]) == 2
    assert resources.shape.slots([SMALL, LARGE]) == 2, "the GPUs are what is short"
    assert resources.shape.slots([SMALL]) == 0
    assert [needs.may_use(node) for node in (SMALL, LARGE, {"CPU": 3.0})] == [True, True, False]
    assert [Resources(cpu=5).needs().may_use(node) for node in (SMALL, LARGE)] == [False, True]


def test_what_a_group_is_made_of_and_what_is_none() -> None:
    assert [Resources(workers=w).grouped for w in (None, 1, (1, 1), (1, 2), 2)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert Resources(children=Children()).grouped
    assert Resources(workers=1).needs() == Resources().needs()


def test_counting_at_once_is_counting_one_by_one() -> None:
    chance = random.Random(5)
    for _ in range(300):
        nodes = [
            {"CPU": float(chance.randint(0, 9)), "GPU": float(chance.randint(0, 3))}
            for _ in range(chance.randint(0, 5))
        ]
        children = (
            {"cpu": chance.choice((0.5, 1, 2, 3)), "count": chance.randint(1, 3)}
            if chance.random() < 0.6
            else None
        )
        least = chance.randint(1, 3)
        workers = [least, least + chance.randint(0, 3)]
        given = {
            "cpu": chance.choice((0.5, 1, 2)),
            "gpu": chance.choice((0, 0, 0.5)),
            "workers": workers,
            "children": children,
        }
        shape = Resources.model_validate(given).shape
        if shape.grouped:
            assert (shape.slots(nodes), shape.widest(nodes)) == one_by_one(shape, nodes), (
                shape,
                nodes,
            )


def one_by_one(shape: Shape, nodes: Sequence[Mapping[str, float]]) -> tuple[int, int]:
    """Slots and widest, each bundle put on the first node that has room for it."""
    left = [dict(node) for node in nodes]

    def put(bundle: Mapping[str, float]) -> bool:
        for node in left:
            if all(node[name] >= amount for name, amount in bundle.items()):
                for name, amount in bundle.items():
                    node[name] -= amount
                return True
        return False

    found: list[int] = []
    while not found or found[-1] == shape.most:
        children = [put(shape.child) for _ in range(shape.children)]
        found.append(sum([put(shape.slot) for _ in range(shape.most)]) if all(children) else 0)
    return sum(width for width in found if width >= shape.least), max(shape.least, found[0])


def test_a_large_cluster_is_counted_at_once() -> None:
    nodes = [{"CPU": 64.0, "memory": 2.0**37}] * 300
    for resources in (
        {"workers": 4},
        {"workers": [2, 8]},
        {"cpu": 3, "children": {"cpu": 2, "count": 2}},
    ):
        began = time.process_time()
        assert Resources(**resources).shape.slots(nodes) > 2000
        assert time.process_time() - began < 0.5, "it is asked for twice a second; 40 ms as a rule"


def test_how_many_slots_there_are_where_somebody_says_how_many_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def most(workers: Any, **changes: Any) -> int | None:
        return scaling.most(Spec.parse({**SPEC, "resources": {"workers": workers}, **changes}))

    assert [most(w, concurrency=3) for w in (None, 1, 4, [2, 5])] == [3, 3, 12, 15]
    assert most(4) is None
    monkeypatch.setenv("REGROW_SLOTS", "3")
    assert [most(w) for w in (None, 2, 4, [2, 8], [5, 8])] == [3, 3, 4, 3, 5], "at least one group"


def test_with_a_market_attempts_are_submitted_for_the_machines_that_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class One:
        local = False

        def nodes(self) -> list[dict[str, float]]:
            return [{"CPU": 2.0}]

    cluster: Any = One()

    def found(**changes: Any) -> int:
        spec = Spec.parse({**SPEC, "resources": {"cpu": 1}, **changes})
        return slots(spec, cluster, by_agent=True)

    assert found(market="spot") == 2
    monkeypatch.setenv("REGROW_MACHINES", "spot=16,on-demand=6")
    assert [found(market=one) for one in ("spot", "on-demand")] == [16, 6]
    assert scaling.on_demand(Spec.parse({**SPEC, "market": "spot"})) == 6
    assert scaling.on_demand(Spec.parse(SPEC)) == 0
    assert found() == 2, "an attempt that runs anywhere waits for what is there"
    assert found(market="spot", concurrency=3) == 3
    monkeypatch.setenv("REGROW_MACHINES", "spot=many")
    with pytest.raises(UserError, match="REGROW_MACHINES='spot=many' is not of the form"):
        found(market="spot")


def test_a_cluster_without_room_for_a_group_is_told_with_what_it_has() -> None:
    class Two:
        local = True

        def nodes(self) -> list[dict[str, float]]:
            return [{"CPU": 2.0}, {"CPU": 1.0}]

    cluster: Any = Two()
    assert slots(Spec.parse({**SPEC, "resources": {"workers": 3}}), cluster) == 3
    for resources, told in (
        ({"workers": 4}, "of 4 workers that need this"),
        ({"workers": [5, 8]}, "of 5 workers that need this"),
        ({"children": {"count": 3}}, "with 3 bundles of children that needs this"),
        (
            {"workers": 2, "children": {"cpu": 2}},
            "of 2 workers with 1 bundle of children that need this",
        ),
    ):
        spec = Spec.parse({**SPEC, "resources": resources})
        with pytest.raises(SpecError) as error:
            slots(spec, cluster)
        assert f"the cluster has no room for a trial {told}; they have cpu 2" in str(error.value)
        assert error.value.value == {"cpu": 1, **spec.to_json()["resources"], **_whole(resources)}
        waits = shortage(spec, cluster)
        assert waits is not None
        assert waits.startswith("The cluster has no room for a trial now, which needs {'cpu': 1")


def _whole(resources: dict[str, Any]) -> dict[str, Any]:
    return (
        {"children": {"cpu": 1, "count": 1, **resources["children"]}}
        if "children" in resources
        else {}
    )


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
    assert "they have cpu 4, gpu 0, memory 8.6 GB; cpu 8, gpu 2, memory 17 GB, licence 1" in str(
        error.value
    )


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
