"""The JSON of the log: what is written is what is read, by this version and by the ones before."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.search.bounds import LAST_TIME, MOST
from regrow.search.events import (
    Answered,
    AnyEvent,
    Asked,
    Began,
    Capacity,
    Cause,
    Closed,
    Closing,
    Created,
    Decided,
    Dropped,
    Ended,
    Excluded,
    Halted,
    Joined,
    Left,
    Metered,
    Milestone,
    Moved,
    Noted,
    Opened,
    Outcome,
    Priced,
    Proceeded,
    Proposed,
    Queued,
    Rehearsed,
    Reported,
    Retired,
    Revived,
    Row,
    Saved,
    Started,
    Status,
    Suggested,
    Waited,
    decode,
    encode,
    is_decision,
)
from regrow.search.measured import Traffic

floats = st.floats(allow_nan=False, allow_infinity=False)
times = st.floats(0, LAST_TIME)
prices = st.floats(0, 1e15)
whole = st.integers(0, MOST)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
maps = st.dictionaries(text, plain, max_size=4)
rows = st.builds(Row, whole, times, st.dictionaries(text, st.none() | floats, max_size=4))
texts = st.lists(text, max_size=3)
traffic = st.builds(Traffic, writes=whole, reads=whole, sent=whole)
lease: dict[str, Any] = {"t": times, "trial": whole, "attempt": whole}

BUILDERS: dict[type, st.SearchStrategy[AnyEvent]] = {
    Created: st.builds(Created, t=times, id=text, spec=maps),
    Opened: st.builds(
        Opened,
        t=times,
        by=st.sampled_from(["driver", "coordinator"]),
        driver=text,
        slots=whole,
        trials=whole,
        flow_run=st.none() | text,
        code=st.none() | text,
        versions=st.dictionaries(text, text, max_size=3),
    ),
    Moved: st.builds(Moved, t=times, trial=whole, attempt=whole, why=text),
    Joined: st.builds(
        Joined,
        t=times,
        agent=text,
        host=text,
        node_id=text,
        cpus=st.floats(0, 1e9),
        gpus=st.floats(0, 1e9),
        ends=st.none() | times,
    ),
    Left: st.builds(Left, t=times, agent=text, why=text),
    Milestone: st.builds(
        Milestone,
        t=times,
        limit=text,
        percent=whole,
        spent=st.none() | st.floats(0, 1e9),
        between=st.none() | st.tuples(times, times),
    ),
    Metered: st.builds(Metered, t=times, traffic=traffic),
    Priced: st.builds(Priced, t=times, per_hour=st.floats(0, 1e15), nodes=whole),
    Rehearsed: st.builds(Rehearsed, t=times, seconds=times),
    Capacity: st.builds(Capacity, t=times, slots=whole, widest=whole),
    Proposed: st.builds(Proposed, t=times, trial=whole, config=maps, state=maps),
    Started: st.builds(
        Started, **lease, until=st.none() | whole, checkpoints=texts, clones=whole, width=whole
    ),
    Waited: st.builds(Waited, **lease, seconds=times),
    Began: st.builds(
        Began,
        **lease,
        node=text,
        restored=whole,
        skipped=texts,
        task_run=st.none() | text,
        market=text,
        price=st.none() | prices,
        share=prices,
        traffic=st.none() | traffic,
    ),
    Reported: st.builds(Reported, **lease, rows=st.lists(rows, max_size=4)),
    Asked: st.builds(Asked, **lease, name=text, distribution=maps),
    Suggested: st.builds(
        Suggested, t=times, trial=whole, name=text, distribution=maps, value=whole | floats | text
    ),
    Noted: st.builds(Noted, **lease, attributes=maps),
    Proceeded: st.builds(Proceeded, t=times, for_good=st.booleans()),
    Queued: st.builds(Queued, t=times, values=maps, attributes=maps),
    Answered: st.builds(
        Answered,
        t=times,
        about=st.none() | whole,
        values=maps,
        state=maps,
        ended=st.dictionaries(whole, maps, max_size=2),
        over=st.sampled_from(["", "finished", "stopped"]),
    ),
    Decided: st.builds(
        Decided,
        **lease,
        step=whole,
        verdict=st.sampled_from(["continue", "stop", "pause", "restart"]),
        until=st.none() | whole,
        why=text,
        source=st.none() | whole,
        manifests=texts,
        config=st.none() | maps,
    ),
    Retired: st.builds(Retired, t=times, trial=whole, why=text),
    Revived: st.builds(Revived, t=times, trial=whole, why=text),
    Excluded: st.builds(Excluded, t=times, trial=whole, excluded=st.booleans()),
    Halted: st.builds(Halted, t=times, trial=whole),
    Saved: st.builds(
        Saved,
        **lease,
        step=whole,
        manifest=text,
        size=whole,
        source=st.none() | text,
        traffic=st.none() | traffic,
    ),
    Dropped: st.builds(Dropped, t=times, trial=whole, manifests=texts),
    Ended: st.builds(
        Ended,
        **lease,
        outcome=st.sampled_from(get_args(Outcome)),
        cause=st.sampled_from(get_args(Cause)),
        step=whole,
        message=text,
        trace=text,
        by=st.sampled_from(["attempt", "driver", "planner"]),
    ),
    Closing: st.builds(
        Closing,
        t=times,
        status=st.sampled_from(get_args(Status)),
        why=text,
        by=st.sampled_from(["planner", "user"]),
    ),
    Closed: st.builds(Closed, t=times, status=st.sampled_from(get_args(Status))),
}
events = st.one_of(*BUILDERS.values())


def test_every_event_is_covered_here() -> None:
    assert set(BUILDERS) == set(get_args(AnyEvent))


@given(events)
def test_what_is_read_is_what_was_written(event: AnyEvent) -> None:
    assert decode(encode(event)) == event


@given(events)
def test_an_event_is_one_line(event: AnyEvent) -> None:
    assert b"\n" not in encode(event)


@given(events)
def test_a_decoded_event_gives_the_same_bytes_again(event: AnyEvent) -> None:
    line = encode(event)
    assert encode(decode(line)) == line


@given(events, st.dictionaries(text.map("later_{}".format), plain, max_size=3))
def test_fields_of_a_later_version_are_passed_over(event: AnyEvent, more: dict[str, Any]) -> None:
    line = json.loads(encode(event))
    assert decode(json.dumps({**line, **more}).encode()) == event


@given(events)
def test_fields_at_their_default_need_not_be_there(event: AnyEvent) -> None:
    line = json.loads(encode(event))
    defaults = {
        f.name: f.default
        for f in msgspec.structs.fields(event)
        if f.default is not msgspec.NODEFAULT
    }
    assert not [
        name for name, default in defaults.items() if name in line and line[name] == default
    ]


def test_the_form_on_disk_stays_as_it_is() -> None:
    reported = Reported(t=2.5, trial=3, attempt=1, rows=[Row(1, 2.25, {"loss": 0.5, "odd": None})])
    assert (
        encode(reported)
        == b'{"event":"reported","t":2.5,"trial":3,"attempt":1,"rows":[[1,2.25,{"loss":0.5,"odd":null}]]}'
    )
    ended = Ended(
        t=3.0, trial=3, attempt=1, outcome="lost", cause="preempted", step=1, by="planner"
    )
    assert (
        encode(ended)
        == b'{"event":"ended","t":3.0,"trial":3,"attempt":1,"outcome":"lost","cause":"preempted","step":1,"by":"planner"}'
    )


def test_maps_keep_their_order() -> None:
    """The order of parameters is that of a grid, and of the configuration that the trainable
    gets.
    """
    proposed = Proposed(t=0.0, trial=0, config={"z": 1, "a": 2})
    again = decode(encode(proposed))
    assert isinstance(again, Proposed)
    assert list(again.config) == ["z", "a"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"t":1}',
        b'{"event":"unheard","t":1}',
        b'{"event":"closed","t":1}',
        b'{"event":"closed"',
    ],
)
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(line)


@pytest.mark.parametrize(
    ("event", "decision"),
    [
        (Proposed(t=0, trial=0, config={}), True),
        (Started(t=0, trial=0, attempt=1), True),
        (Decided(t=0, trial=0, attempt=1, step=1, verdict="stop"), True),
        (Dropped(t=0, trial=0, manifests=[]), True),
        (Retired(t=0, trial=0), True),
        (Revived(t=0, trial=0), True),
        (Excluded(t=0, trial=0), False),
        (Halted(t=0, trial=0), False),
        (Closed(t=0, status="finished"), True),
        (Closing(t=0, status="finished", why="", by="planner"), True),
        (Closing(t=0, status="stopped", why="", by="user"), False),
        (Ended(t=0, trial=0, attempt=1, outcome="lost", by="planner"), True),
        (Ended(t=0, trial=0, attempt=1, outcome="lost", by="driver"), False),
        (Ended(t=0, trial=0, attempt=1, outcome="done"), False),
        (Created(t=0, id="", spec={}), False),
        (Opened(t=0, by="driver", driver="", slots=1, trials=1), False),
        (Began(t=0, trial=0, attempt=1, node=""), False),
        (Reported(t=0, trial=0, attempt=1, rows=[]), False),
        (Saved(t=0, trial=0, attempt=1, step=1, manifest="", size=0), False),
    ],
)
def test_decisions_are_what_the_planner_made(event: AnyEvent, decision: bool) -> None:
    assert is_decision(event) == decision
