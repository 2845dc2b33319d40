"""What people, MLflow and the next session are told of failed trials and of those that are tried
again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import uuid4

import msgspec
import pytest

from regrow.flows.coordinator.claim import claimed
from regrow.flows.coordinator.ledger import Ledger
from regrow.flows.session import SESSION, Session, current_session
from regrow.infra.log.log import Log
from regrow.infra.log.reading import read_events
from regrow.infra.mlflow.parent_run import NOTE_TAG
from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.prefect.events import PrefectEvents
from regrow.infra.state.experiments import prepare, request_retry, retry_requested
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent, Ended, Opened, Revived, encode
from regrow.search.planning.simulator import Simulation
from regrow.search.spec import Spec
from regrow.show.live.board import Board
from regrow.show.live.text import ending, retry, summary
from regrow.show.views import summaries
from tests.memory_store import MemoryStore
from tests.unit.office import opening_of
from tests.unit.revived import failed_after, failing, retried, simulated, until
from tests.unit.simulated import SPEC
from tests.unit.test_mlflow_runs import reports
from tests.unit.told import folded

BROKEN = failing(simulated(schedule="fifo", trials=3), (0, 2), (1, 2), (2, 2))
MENDED = retried(BROKEN)
SOME = failing(simulated(schedule="fifo", trials=4), (1, 2), (3, 2))
ERROR = "NameError: name 'modle' is not defined"


def into(places: Places, events: list[AnyEvent]) -> None:
    log = Log.open(places.store("simulated"))
    log.claim([encode(event) for event in events])


# The offer


def test_the_last_line_of_a_session_whose_trials_failed_offers_to_try_them_again(
    places: Places,
) -> None:
    offer = f"regrow resume simulated --retry-failed --state {places.root}"
    assert (
        list(ending(BROKEN.history, places))[-1]
        == f"3 of 3 trials failed: {ERROR}; after mending it: {offer}"
    )
    assert (
        list(ending(SOME.history, places))[-1]
        == f"2 of 4 trials failed: {ERROR}; after mending it: {offer}"
    )
    assert list(summary(SOME.history, places, alive=False, now=99.0))[-1].startswith(
        "2 of 4 trials failed"
    )
    assert not [line for line in ending(MENDED.history, places) if "failed" in line], (
        "nothing is left of it"
    )


def test_of_several_reasons_the_most_frequent_one_is_named(places: Places) -> None:
    events = [
        msgspec.structs.replace(e, message="OSError: no file")
        if isinstance(e, Ended) and e.cause and e.trial == 2
        else e
        for e in BROKEN.events
    ]
    (line,) = retry(folded(events), places)
    assert line.startswith(f"3 of 3 trials failed, 2 of them of: {ERROR}; after mending it: ")


# The next session


@pytest.mark.parametrize(("run", "failed"), [(BROKEN, 3), (SOME, 2), (MENDED, 0)])
def test_an_experiment_that_has_ended_is_opened_again_only_for_trials_that_failed_and_if_wished(
    places: Places, run: Simulation, failed: int
) -> None:
    into(places, run.events)
    again = prepare(places, "simulated", None, trials=None, code=None)
    assert (again.nothing_left, again.failed) == (True, None)
    wanted = prepare(places, "simulated", None, trials=None, code=None, retry_failed=True)
    assert (wanted.nothing_left, wanted.failed) == (not failed, failed)
    assert not prepare(places, "simulated", None, trials=5, code=None).nothing_left


def test_a_request_to_agents_is_carried_out_by_one_session(places: Places) -> None:
    store = places.store("simulated")
    into(places, BROKEN.events)
    assert not retry_requested(store, "simulated")
    request_retry(store, BROKEN.history.sessions)
    request_retry(store, BROKEN.history.sessions)  # the command was typed twice
    assert retry_requested(store, "simulated")
    assert retry_requested(store, "simulated"), "a driver was lost before it opened its session"
    Log.open(store).claim([encode(event) for event in MENDED.events[len(BROKEN.events) :]])
    assert not retry_requested(store, "simulated")
    request_retry(store, MENDED.history.sessions)
    assert retry_requested(store, "simulated")


def test_one_that_gave_up_early_goes_on_with_those_that_were_never_proposed(places: Places) -> None:
    run = failing(simulated(schedule="fifo", trials=9), *((number, 0) for number in range(5)))
    assert run.history.closing is not None
    assert len(run.history.trials) < 9
    into(places, run.events)
    assert not prepare(places, "simulated", None, trials=None, code=None).nothing_left


def test_a_coordinator_that_comes_back_does_not_wish_again() -> None:
    store = MemoryStore()

    async def session(driver: str) -> Ledger:
        opening = opening_of(BROKEN.spec, id="i", slots=2, trials=3, retry_failed=True)
        return claimed(store, opening, driver)

    Log.open(store).claim([encode(event) for event in BROKEN.events])
    asyncio.run(session("one"))
    again = asyncio.run(session("one"))
    wishes = [
        (event.by, event.retry_failed) for event in read_events(store) if isinstance(event, Opened)
    ]
    assert wishes == [("driver", False), ("driver", True), ("coordinator", False)]
    assert [event.trial for event in read_events(store) if isinstance(event, Revived)] == [0, 1, 2]
    assert sorted(again.starts) == [(0, 2), (1, 2)], "what it had decided is handed out again"


def test_show_says_which_code_each_session_ran() -> None:
    events = [
        msgspec.structs.replace(
            e,
            environment={"files": {"train.py": str(n)}, "git": {"commit": "c" * 40, "dirty": True}},
        )
        if isinstance(e, Opened)
        else e
        for n, e in enumerate(MENDED.events)
    ]
    history = folded(events)
    first, second = summaries.sessions(history)
    assert (first["changed"], first["commit"], first["dirty"], first["retry_failed"]) == (
        [],
        "c" * 40,
        True,
        False,
    )
    assert (second["changed"], second["retry_failed"]) == (["train.py"], True)
    line = summaries.code_line(history)
    assert line is not None
    assert line.startswith("code: train.py changed since the session of ")
    assert line.endswith("(commit ccccccc, dirty)")
    assert summaries.code_line(folded(MENDED.events)) is None


# Those who follow


def test_the_live_view_and_prefect_hear_of_it() -> None:
    board, prefect_events = Board(), PrefectEvents()
    shown: list[str] = []
    told: list[str] = []
    for event in MENDED.events:
        shown += board.apply(event)
        told += [one.line for one in prefect_events.apply(event)]
    again = [f"trial {number}, which had failed, is tried again" for number in range(3)]
    assert [line for line in shown if "tried again" in line] == again
    assert [line for line in told if "tried again" in line] == again
    assert any(line.startswith("trial 0 continues after step 2") for line in shown)
    assert board.incidents.usual_wait is None, "how long the user took is no wait of the cluster's"


def test_the_run_in_mlflow_goes_on_with_one_value_a_step() -> None:
    segments = [[event] for event in MENDED.events]
    runs = TrialRuns(partial(reports, segments))
    cut = len(BROKEN.events)
    for number, event in enumerate(BROKEN.events, start=1):
        runs.apply(event, number)
    keys = [runs.current_key(number) for number in range(3)]
    before = {update.key: update for update in runs.drain()}
    assert before[keys[0]].status == "FAILED"
    for number, event in enumerate(MENDED.events[cut:], start=cut + 1):
        runs.apply(event, number)
    after = {update.key: update for update in runs.drain()}
    assert set(after) == {"experiment", *keys}, "no run was superseded"
    first = after[keys[0]]
    assert (first.status, first.tags["regrow.attempts"]) == ("FINISHED", "2")
    assert [
        point[2]
        for update in (before[keys[0]], first)
        for point in update.metrics
        if point[0] == "score"
    ] == list(range(1, 10))
    assert first.tags[NOTE_TAG] == f"It failed in attempt 1 (*{ERROR}*) and was tried again."


def test_one_that_is_stopped_as_it_is_revived_is_finished_in_mlflow() -> None:
    whole = simulated(1, schedule="asha").open().run()
    log = until(whole.events, "stop")
    runs = TrialRuns(partial(reports, []))
    for event in retried(failed_after(whole, log)).events:
        runs.apply(event)
        if isinstance(event, Revived):
            (update,) = [u for u in runs.drain() if u.key == runs.current_key(event.trial)]
            assert (update.status, update.tags["regrow.state"]) == ("FINISHED", "stopped")
            return
        runs.skip()
    raise AssertionError("nothing was revived")


def test_a_flow_that_goes_on_on_another_cluster_does_not_wish_again(places: Places) -> None:
    session = Session(name="simulated", places=places, spec=Spec.parse(SPEC), retry_failed=True)
    this, other = uuid4(), uuid4()
    token = SESSION.set(session)
    try:
        assert current_session(this) is session
        assert session.retry_failed, "a user started it"
        assert current_session(this) is session
        assert session.retry_failed, "its cluster was lost before the log had the request"
        opening = opening_of(
            session.prepared.spec, id=str(this), flow_run=str(this), retry_failed=True
        )
        claimed(places.store("simulated"), opening, "driver")
        assert current_session(this) is session
        assert not session.retry_failed, "its cluster was lost, and Prefect runs it again"
        assert session.prepared.log.created is not None
        assert current_session(other) is None
    finally:
        SESSION.reset(token)
    assert current_session(this) is None, "a user resumed it"
