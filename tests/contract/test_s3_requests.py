"""What requests to a bucket cost: all of an experiment are counted, as its server has seen them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from regrow.search.events import Began, Ended, Metered, Saved
from regrow.search.history import cost
from regrow.search.measured import Traffic
from regrow.tasks.ports.store import pop_traffic
from regrow.tasks.trial.trial import Trial
from tests.contract.behind_proxy import at, large
from tests.contract.s3_proxy import Proxy
from tests.unit.attempting import Attempting, attempt, make_office, saving, sent, steadily
from tests.unit.office import MakeOffice

__all__ = ["attempt", "make_office"]
PRICES = {"per_1000_writes": 5.0, "per_1000_reads": 0.4, "per_gb_out": 90.0}
_CLASSES = {"PUT": "writes", "POST": "writes", "LIST": "writes", "GET": "reads", "HEAD": "reads"}


def seen(proxy: Proxy) -> tuple[int, int]:
    """The requests that came to the proxy: those that write or list, and those that read."""
    kinds = ("LIST" if "list-type" in one else one.partition(" ")[0] for one in proxy.requests)
    found = Counter(_CLASSES[kind] for kind in kinds if kind != "DELETE")
    proxy.requests.clear()
    return found["writes"], found["reads"]


def counted(traffic: Traffic | None) -> tuple[int, int]:
    return (0, 0) if traffic is None else (traffic.writes, traffic.reads)


def test_each_try_is_counted_by_its_class_and_bytes_by_what_came(
    proxy: Proxy, tmp_path: Path
) -> None:
    store = at(proxy)
    pop_traffic(store)
    proxy.harm((503, "SlowDown"), 2)
    store.create("k", b"content")
    file = large(tmp_path)
    store.create("large", file)
    store.list("")
    store.fetch("large", tmp_path / "fetched")
    store.delete(["k"])
    found = pop_traffic(store)
    assert counted(found) == seen(proxy)
    assert found is not None
    assert found.writes > 5
    assert found.sent == file.stat().st_size
    assert pop_traffic(store) is None


def test_an_experiment_logs_all_requests_of_its_coordinator_and_attempts(
    proxy: Proxy, make_office: MakeOffice, attempt: Attempting
) -> None:
    store = at(proxy)
    pop_traffic(store)
    office = make_office(store=store, store_prices=PRICES, max_steps=3)

    def evicted(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step / 10}, checkpoint=saving(step))
            sent(trial)
            if step == 2:
                attempt.bench.notice("it goes away", True)

    def whole(trial: Trial) -> None:
        steadily(trial)
        sent(trial)
        store.list("")  # after its last checkpoint

    attempt(office, evicted)
    attempt(office, whole)
    office.instructions()  # waits until the end is in the log
    history = office.history
    assert history.closed is not None
    paid = cost.of(history, history.t_last)
    later = pop_traffic(store) or Traffic()  # the log's last write, and this test, which reads it
    assert counted(paid.traffic + later) == seen(proxy)
    assert paid.traffic.writes > later.writes
    parts = [
        one.traffic for one in office.events if isinstance(one, Began | Saved | Ended | Metered)
    ]
    restored = [one.traffic for one in office.events if isinstance(one, Began) and one.restored]
    assert restored
    assert [counted(one.traffic)[0] for one in office.events if isinstance(one, Ended)][1] > 0
    assert all(counted(one.traffic)[0] > 0 for one in office.events if isinstance(one, Saved))
    assert all(one is not None and one.sent for one in restored)
    assert paid.traffic == sum((one for one in parts if one is not None), Traffic())
    assert paid.store == pytest.approx(
        (paid.traffic.writes * 5.0 + paid.traffic.reads * 0.4) / 1000 + paid.traffic.sent * 90e-9
    )


def test_without_prices_nothing_is_counted(
    proxy: Proxy, make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(store=at(proxy))
    attempt(office, steadily)
    assert not cost.of(office.history, office.history.t_last).traffic
    assert not any(isinstance(one, Metered) for one in office.events)
