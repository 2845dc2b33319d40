"""What attempts cost on nodes that tell their price, and what of that was for nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from regrow.flows.recording.artifacts import markdown
from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.ray.labels import PRICE_LABEL, price_of
from regrow.infra.state.places import Places
from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Ended,
    Metered,
    Opened,
    Proposed,
    Reported,
    Row,
    Started,
)
from regrow.search.history import History, cost, waste
from regrow.search.measured import Traffic
from regrow.search.planning import limits
from regrow.show.live import text
from regrow.show.report.report import tiles
from regrow.show.views import summaries
from tests.unit import told
from tests.unit.simulated import SPEC

HOUR = 3600.0


def events(**spec: object) -> Iterator[AnyEvent]:
    """One trial: an hour on a third of a node of 3.0 an hour, which is lost half an hour after its
    last step; then an hour more.
    """
    yield Created(
        t=0.0,
        id="00000000-0000-0000-0000-000000000001",
        spec={**SPEC, "schedule": "fifo", "trials": 1, "max_steps": 2, **spec},
    )
    yield Opened(t=0.0, by="driver", driver="d", slots=1, trials=1)
    yield Proposed(t=0.0, trial=0, config={"x": 0.5})
    yield Started(t=0.0, trial=0, attempt=1, market="spot")
    yield Began(t=0.0, trial=0, attempt=1, node="a", market="spot", price=3.0, share=1 / 3)
    yield Reported(t=HOUR / 2, trial=0, attempt=1, rows=[Row(1, HOUR / 2, {"score": 0.1})])
    yield Ended(
        t=HOUR,
        trial=0,
        attempt=1,
        outcome="lost",
        cause="preempted",
        step=1,
        message="the node was lost",
        by="driver",
        cost=1.0,
    )
    yield Started(t=HOUR, trial=0, attempt=2, market="on-demand")
    yield Began(
        t=HOUR, trial=0, attempt=2, node="b", restored=1, market="on-demand", price=8.0, share=0.5
    )
    yield Reported(t=2 * HOUR, trial=0, attempt=2, rows=[Row(2, 2 * HOUR, {"score": 0.2})])
    yield Ended(t=2 * HOUR, trial=0, attempt=2, outcome="done", step=2, cost=4.0)


def folded(**spec: object) -> History:
    return told.folded(events(**spec))


def test_an_attempt_costs_its_part_of_its_node() -> None:
    history = folded()
    assert cost.of(history, history.t_last).money == pytest.approx(5.0)
    assert waste.money(history) == pytest.approx(0.5)
    assert [a.cost for a in history.trials[0].attempts] == [1.0, 4.0]
    view = summaries.show(history, alive=False, now=0.0)
    assert (view["cost"], view["wasted_cost"]) == (pytest.approx(5.0), pytest.approx(0.5))
    (trial,) = view["trials"]
    assert trial["cost"] == pytest.approx(5.0)
    assert [(a["market"], a["node_price_per_hour"], a["cost"]) for a in trial["attempts"]] == [
        ("spot", 3.0, pytest.approx(1.0)),
        ("on-demand", 8.0, pytest.approx(4.0)),
    ]


def test_the_price_of_the_specification_counts_where_a_node_tells_none() -> None:
    history = folded(price_per_hour=100.0)
    assert cost.of(history, history.t_last).money == pytest.approx(5.0)
    bare = History()
    for event in events(price_per_hour=2.0):
        if isinstance(event, Began):
            event = Began(  # noqa: PLW2901
                t=event.t, trial=0, attempt=event.attempt, node=event.node, restored=event.restored
            )
        elif isinstance(event, Ended):
            event = Ended(  # noqa: PLW2901  # noqa: PLW2901
                t=event.t,
                trial=0,
                attempt=event.attempt,
                outcome=event.outcome,
                cause=event.cause,
                step=event.step,
            )
        bare.apply(event)
    assert cost.of(bare, bare.t_last).money == pytest.approx(4.0)
    assert cost.of_trial(bare.trials[0], bare.t_last) == pytest.approx(4.0)
    assert waste.money(bare) == pytest.approx(1.0)


def test_people_are_told_what_it_cost_and_what_of_that_for_nothing() -> None:
    history = folded()
    assert "cost 5.00 at 1 to 4 an hour and slot" in text.spent(history, history.t_last)
    assert "cost 0.50" in text.losses("preempted", waste.of_all(history)["preempted"])
    assert [tile for tile in tiles(history, alive=False, now=0.0) if tile["label"] == "Cost"] == [
        {
            "label": "Cost",
            "number": "5.00",
            "more": "at 1 to 4 for a slot and hour; 0.50 for nothing",
        }
    ]
    page = markdown(history, Places.at("/tmp/nowhere"))
    assert "Cost: 5.00, at 1 to 4 for a slot and hour; 0.50 of it for nothing." in page
    assert "slot-seconds | cost |" in page


def test_mlflow_has_it_as_a_metric_and_as_tags() -> None:
    runs = TrialRuns(lambda _: (), lambda key: key)
    for event in events():
        runs.apply(event)
    parent, trial = runs.drain()
    for run in (parent, trial):
        assert [value for name, value, *_ in run.metrics if name == "regrow.cost"] == [1.0, 5.0]
    assert (
        trial.tags["regrow.cost"],
        trial.tags["regrow.cost_wasted"],
        trial.tags["regrow.market"],
    ) == ("5", "0.5", "on-demand")


@pytest.mark.parametrize(
    ("label", "price"),
    [
        ("0.526", 0.526),
        ("0", 0.0),
        ("", None),
        ("cheap", None),
        ("nan", None),
        ("-1", None),
        ("inf", None),
    ],
)
def test_a_label_that_is_no_price_is_none(label: str, price: float | None) -> None:
    assert price_of({PRICE_LABEL: label}) == price


PRICES = {"per_1000_writes": 100.0, "per_1000_reads": 10.0, "per_gb_out": 2.0}


def with_store(**spec: object) -> list[AnyEvent]:
    """The same trial, of which each attempt asks something of the store, as the coordinator does."""
    loads = Traffic(writes=10, reads=100, sent=500_000_000)
    found: list[AnyEvent] = []
    for event in events(store_prices=PRICES, **spec):
        own = isinstance(event, Began | Ended)
        found.append(msgspec.structs.replace(event, traffic=loads) if own else event)
    return [*found, Metered(t=found[-1].t, traffic=Traffic(writes=100))]


def test_what_the_store_costs_is_a_line_of_its_own_and_counts(places: Places) -> None:
    history = told.folded(with_store(stop={"dollars": 100.0}))
    paid, now = cost.of(history, history.t_last), history.t_last
    # Four times 1 for writes, 1 for reads and 1 for bytes; and 10 of the coordinator.
    assert paid.store == pytest.approx(22.0)
    assert paid.total == pytest.approx((paid.money or 0.0) + paid.rest + 22.0)
    assert limits.spent(history, now) == paid.total
    view = summaries.show(history, alive=False, now=now)
    assert view["store"] == {"cost": 22.0, "writes": 140, "reads": 400, "bytes_sent": 2 * 10**9}
    assert view["limits"]["store"] == 22.0
    line = "store: cost 22.00, 140 writes, 400 reads, 2.0 GB sent"
    assert text.store(history) == line
    assert line in [*text.summary(history, places, alive=False, now=now)]
    tile = next(one for one in tiles(history, alive=False, now=now) if "store" in one["label"])
    assert tile["number"] == "22.00"
    assert "and 22.00 for the store" in markdown(history, places)


def test_money_is_kept_for_the_checkpoints_of_what_runs() -> None:
    # until the first attempt has begun
    history = told.folded(with_store(stop={"dollars": 100.0})[:5])
    spent, rate = limits.spent(history, 0.0), cost.per_hour(history)
    limit = limits.nearest(history, 0.0)
    assert limit is not None
    assert spent == pytest.approx(3.0)
    assert limit.at == pytest.approx((100.0 - 3.0 - 3.0) / rate * HOUR)
    one_more = limits.nearest(history, 0.0, saves=3)
    assert one_more is not None
    assert one_more.at == pytest.approx((100.0 - 3.0 - 9.0) / rate * HOUR)


def test_requests_cost_nothing_without_prices_and_only_from_then_on() -> None:
    history = History()
    for event in with_store():
        if isinstance(event, Created):
            event = msgspec.structs.replace(  # noqa: PLW2901 - the others follow it
                event, spec={key: one for key, one in event.spec.items() if key != "store_prices"}
            )
        history.apply(event)
    assert cost.of(history, history.t_last).store == 0.0
    settings = {"store_prices": PRICES}
    history.apply(
        Opened(t=history.t_last, by="driver", driver="e", slots=1, trials=2, settings=settings)
    )
    history.apply(Metered(t=history.t_last, traffic=Traffic(writes=10)))
    assert cost.of(history, history.t_last).store == pytest.approx(1.0)
