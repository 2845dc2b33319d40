"""The events of an experiment's log: everything that happened, and everything that was decided.

The types are in `session_events.py` and `trial_events.py`. All other code imports them from here,
where their union and its JSON are. How an event changes the history is in `history/`. Events are of
two kinds: *observations* (reported by a worker, a driver or a user) and *decisions* (taken by the
planner; `regrow verify` recomputes them from the events before). Fields may be added with a
default; none is ever renamed or removed.

msgspec because a log of a million reports is decoded in seconds (about 1 us an event, pydantic 20
us).
"""

from __future__ import annotations

import msgspec

from regrow.search.event import Event
from regrow.search.session_events import (
    Capacity,
    Closed,
    Closing,
    Created,
    Hold,
    Joined,
    Known,
    Left,
    Metered,
    Milestone,
    Opened,
    Priced,
    Rehearsed,
    Status,
)
from regrow.search.trial_events import (
    Answered,
    Asked,
    Began,
    Cause,
    Decided,
    Dropped,
    Ended,
    Excluded,
    Halted,
    Moved,
    Noted,
    Outcome,
    Place,
    Proceeded,
    Proposed,
    Queued,
    Reported,
    Retired,
    Revived,
    Row,
    Saved,
    Started,
    Suggested,
    Waited,
)

__all__ = [
    "Answered",
    "AnyEvent",
    "Asked",
    "Began",
    "Capacity",
    "Cause",
    "Closed",
    "Closing",
    "Created",
    "Decided",
    "Dropped",
    "Ended",
    "Event",
    "Excluded",
    "Halted",
    "Hold",
    "Joined",
    "Known",
    "Left",
    "Metered",
    "Milestone",
    "Moved",
    "Noted",
    "Opened",
    "Outcome",
    "Place",
    "Priced",
    "Proceeded",
    "Proposed",
    "Queued",
    "Rehearsed",
    "Reported",
    "Retired",
    "Revived",
    "Row",
    "Saved",
    "Started",
    "Status",
    "Suggested",
    "Waited",
    "decode",
    "encode",
    "is_decision",
]


AnyEvent = (
    Created
    | Opened
    | Joined
    | Left
    | Capacity
    | Priced
    | Metered
    | Rehearsed
    | Proposed
    | Started
    | Waited
    | Began
    | Reported
    | Asked
    | Suggested
    | Queued
    | Answered
    | Proceeded
    | Noted
    | Decided
    | Retired
    | Revived
    | Excluded
    | Halted
    | Moved
    | Saved
    | Dropped
    | Ended
    | Milestone
    | Closing
    | Closed
)

_encoder = msgspec.json.Encoder()

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode(event: AnyEvent) -> bytes:
    """Return one line of JSON, without the newline; a decoded event gives the same bytes again."""
    return _encoder.encode(event)


def decode(line: bytes) -> AnyEvent:
    """Return the event of a line. Raises msgspec.DecodeError (a ValueError) on anything else."""
    return _decoder.decode(line)


def is_decision(event: AnyEvent) -> bool:
    """Return whether the planner made this event, so that `verify` can recompute it."""
    if isinstance(event, Ended | Closing):
        return event.by == "planner"
    return isinstance(
        event,
        Proposed
        | Started
        | Suggested
        | Decided
        | Retired
        | Revived
        | Moved
        | Dropped
        | Milestone
        | Closed,
    )
