"""What the driver makes of the nodes that Ray tells of: where an attempt may go, and for how many
there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from regrow.infra.ray import nodes as module
from regrow.infra.ray import private
from regrow.infra.ray.labels import AGENT_LABEL
from regrow.infra.ray.nodes import Nodes
from regrow.search.needs import ClusterCapacity
from regrow.search.spec.parts import Resources

NEEDS, SHAPE = Resources(cpu=1).needs(), Resources(cpu=1).shape
See = Callable[..., Nodes]


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> See:
    """The nodes after one more look at the cluster, which has these: markets by name, None for no
    label. `agents`: the agents of nodes, by the nodes' names.
    """
    drained: set[str] = set()
    monkeypatch.setattr(private, "draining_nodes", lambda: drained)
    context = SimpleNamespace(get_node_id=lambda: "head")
    made: list[Nodes] = []

    def look(
        *,
        draining: tuple[str, ...] = (),
        agents: Mapping[str, str] = MappingProxyType({}),
        **markets: str | None,
    ) -> Nodes:
        found = [
            _node("head", None, 0),
            *(_node(name, market, 2) for name, market in markets.items()),
        ]
        for node in found:
            if node["NodeID"] in agents:
                node["Labels"][AGENT_LABEL] = agents[node["NodeID"]]
        monkeypatch.setattr(
            module, "ray", SimpleNamespace(nodes=lambda: found, get_runtime_context=lambda: context)
        )
        drained.clear()
        drained.update(draining)
        if not made:
            made.append(Nodes())
        made[0]._query()
        return made[0]

    return look


def _node(name: str, market: str | None, cpus: int) -> dict[str, Any]:
    labels = {} if market is None else {"ray.io/market-type": market}
    return {"NodeID": name, "Alive": True, "Resources": {"CPU": float(cpus)}, "Labels": labels}


def selector(nodes: Nodes) -> dict[str, str] | None:
    return nodes.selector(NEEDS, avoid_spot=True)


def test_a_node_that_stays_is_asked_for_also_while_there_is_none(
    see: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert selector(see(a="spot", b="spot")) is None, "it would wait for ever"
    assert selector(see(a="spot", b="on-demand")) == {"ray.io/market-type": "!spot"}
    assert selector(see(a="spot")) == {"ray.io/market-type": "!spot", "ray.io/node-id": "!in(b)"}, (
        "one may come again"
    )
    monkeypatch.setattr(module, "GONE_SECONDS", 0.0)
    assert selector(see()) == {"ray.io/market-type": "!spot"}
    assert see(a="spot").selector(NEEDS, avoid_spot=False) is None


def test_what_waits_behind_a_request_to_a_node_that_vanished_is_asked_for_in_another_way(
    see: See,
) -> None:
    see(a=None, b=None, c=None)
    nodes = see(b=None)
    assert nodes.selector(NEEDS, avoid_spot=False) == {"ray.io/node-id": "!in(a,c)"}
    assert see(b=None, d=None).selector(NEEDS, avoid_spot=False, avoid=["b"]) == {
        "ray.io/node-id": "!in(b,a,c)"
    }


def test_a_node_that_its_agent_has_replaced_is_lost_before_ray_finds_it_dead(see: See) -> None:
    see(a=None, b=None, agents={"a": "one", "b": "two"})
    agents = {"new": "one", "a": "one", "b": "two"}
    nodes = see(new=None, a=None, b=None, agents=agents)
    assert nodes.pop_lost() == ["a"]
    assert {node["NodeID"] for node in nodes.alive()} == {"head", "new", "b"}
    assert nodes.selector(NEEDS, avoid_spot=False) == {"ray.io/node-id": "!in(a)"}
    assert see(new=None, a=None, b=None, agents=agents).pop_lost() == []


def test_whoever_started_the_cluster_says_which_nodes_may_come(
    see: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_MARKETS", "spot, on-demand")
    assert selector(see()) == {"ray.io/market-type": "!spot"}
    monkeypatch.setenv("REGROW_MARKETS", "spot")
    assert selector(see(a="spot")) is None


def test_a_node_that_is_about_to_go_has_no_room(see: See) -> None:
    assert see().room(SHAPE) == ClusterCapacity(slots=0, widest=1)
    assert see(a="spot", b=None).room(SHAPE) == ClusterCapacity(slots=4, widest=2, spot=2)
    nodes = see(a="spot", b=None, draining=("a",))
    assert nodes.room(SHAPE) == ClusterCapacity(slots=2, widest=2)
    nodes.drain("b", "told so")
    assert nodes.room(SHAPE) == ClusterCapacity(slots=0, widest=1)


def test_who_asks_for_a_kind_of_machine_goes_there_or_waits(see: See) -> None:
    nodes = see(a="spot", b="spot", c=None)
    assert nodes.selector(NEEDS, avoid_spot=False, market="spot") == {"ray.io/market-type": "spot"}
    assert nodes.selector(NEEDS, avoid_spot=False, market="on-demand") == {
        "ray.io/market-type": "!spot"
    }
    avoiding = nodes.selector(NEEDS, avoid_spot=False, market="spot", avoid=["a", "c"])
    assert avoiding == {"ray.io/market-type": "spot", "ray.io/node-id": "!in(a)"}
    asked = see().selector(NEEDS, avoid_spot=False, market="spot")
    assert asked == {"ray.io/market-type": "spot", "ray.io/node-id": "!in(a,b,c)"}


def test_a_group_is_kept_off_a_node_only_where_the_others_can_hold_all_of_it(see: See) -> None:
    needs = Resources(cpu=1, workers=4).needs(4)
    assert see(a=None, b=None, c=None).selector(needs, avoid_spot=False, avoid=["a"]) == {
        "ray.io/node-id": "!in(a)"
    }
    nodes = see(a=None, b=None, c=None)
    assert nodes.selector(needs, avoid_spot=False, avoid=["a", "b"]) is None, (
        "it would wait for ever"
    )
    assert nodes.selector(
        Resources(cpu=1, workers=2).needs(2), avoid_spot=False, avoid=["a", "b"]
    ) == {"ray.io/node-id": "!in(a,b)"}


def test_a_node_that_was_drained_has_no_room_before_the_next_look_either(
    see: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[str] = []
    monkeypatch.setattr(private, "drain", lambda node_id, *_: drained.append(node_id))
    nodes = see(a=None, b=None)
    nodes.drain("b", "told so")
    nodes._drain_asked()
    assert drained == ["b"]
    assert nodes.room(SHAPE) == ClusterCapacity(slots=2, widest=2)
