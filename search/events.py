"""The events of an experiment's log: everything that happened, and everything that was decided.

Only the types and their JSON live here; what an event means is in `history/`. Events are of two kinds:
*observations* (a worker, a driver or a user said something) and *decisions* (the planner's; `regrow verify` recomputes
them from the events before). Fields may be added with a default; none is ever renamed or removed.

msgspec because a log of a million reports is decoded in seconds (about 1 us an event, pydantic 20 us).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Outcome = Literal["done", "paused", "stopped", "failed", "lost", "preempted"]
"""How an attempt ends. `paused`: it may go on from its last checkpoint; `stopped`: by a decision, for good;
`preempted`: told that its node goes away, it saved a checkpoint and left; `lost`: gone without a word."""

Cause = Literal["", "preempted", "infrastructure", "error", "stalled"]
"""Why an attempt failed or was lost, as the retry budgets count it. Empty for the other outcomes."""

Status = Literal["finished", "stopped", "interrupted", "failed"]
"""How an experiment (or one session of it) ends."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """What one `report` said: the step (counted from 1), when (seconds since the epoch), the metrics.

    A metric that is not finite is stored as None; the objective always is finite.
    """

    step: int
    t: float
    metrics: dict[str, float | None]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    """Base of all events. `t` is wall-clock time, seconds since the epoch, of whoever wrote it."""

    t: float


class Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A configuration whose result was known before: of an earlier experiment (`origin`: its name and the trial's number).

    `value` is the objective, `values` all metrics where there are several, `curve` the objective by step; `violations`: by how
    much each of this experiment's constraints is broken.
    """

    config: dict[str, Any]
    status: Literal["done", "stopped", "failed"] = "done"
    value: float | None = None
    values: list[float] | None = None
    curve: list[tuple[int, float]] = []
    violations: list[float] = []
    origin: str = ""


class Created(Event, frozen=True, kw_only=True, tag="created"):
    """The first event of a log: which experiment this is. `spec` is the canonical JSON form of the specification.

    `known` is what a warm start took over from earlier experiments. `auto`: of `search` and `schedule` those that were chosen, as
    the specification left them to regrow, and why; `spec` has what was chosen. `learnt`: trials of experiments on other tasks,
    each experiment's together.
    """

    id: str
    spec: dict[str, Any]
    known: list[Known] = []
    auto: dict[str, str] = {}
    learnt: list[Known] = []


class Opened(Event, frozen=True, kw_only=True, tag="opened"):
    """A writer took the log over; all writers before it are fenced off. Always the first event of a claim segment.

    `by` is "driver" (a new session: attempts still open belong to a driver that is gone) or "coordinator" (the same
    driver's coordinator came back: attempts go on). `slots`: attempts that may run at a time or, of groups, workers; `trials`:
    the total number of trials from here on. `widest`: slots that one attempt may have, as one node has room for them or, of
    groups, the cluster; 0: all. `flow_run` is the Prefect flow run. `versions` names the libraries whose results may differ
    between versions.
    `code` is the SHA-256 of the pickled trainable, if it has no import path. `settings`: the keys of the specification that may
    change from session to session, where they differ from those of `Created`.
    `environment`: what the driver found of its code and its machine; empty where a coordinator opens.
    `retry_failed`: the user wants the trials that have failed by now to be tried again.
    """

    by: Literal["driver", "coordinator"]
    driver: str
    slots: int
    trials: int
    flow_run: str | None = None
    code: str | None = None
    versions: dict[str, str] = {}
    widest: int = 0
    settings: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    retry_failed: bool = False


class Capacity(Event, frozen=True, kw_only=True, tag="capacity"):
    """The cluster has become larger or smaller: `slots` and `widest` are from here on as in `Opened`.

    No slots: it has no room for a single attempt now.
    """

    slots: int
    widest: int


class Proposed(Event, frozen=True, kw_only=True, tag="proposed"):
    """Decision: a new trial and its configuration (flat, dotted names). `state` is what the sampler wants back later."""

    trial: int
    config: dict[str, Any]
    state: dict[str, Any] = {}


class Started(Event, frozen=True, kw_only=True, tag="started"):
    """Decision: an attempt of a trial is to run.

    (trial, attempt) is the lease. `until`: the step at which the next decision is due, None for none before the end.
    `checkpoints`: manifests it may restore, newest first. `avoid_spot`: it was preempted so often that it goes to a node
    that is no spot machine, where there is one. The first `clones` of the checkpoints are another trial's: the one that can
    be read becomes this trial's own, at the step that it has reached. `width`: slots' worth of resources that it gets. `market`:
    the kind of machine that it is to run on, "spot" or "on-demand", by `market` of the specification; empty: any.
    """

    trial: int
    attempt: int
    until: int | None = None
    checkpoints: list[str] = []
    avoid_spot: bool = False
    clones: int = 0
    width: int = 1
    market: str = ""


class Waited(Event, frozen=True, kw_only=True, tag="waited"):
    """An attempt has been waiting for a machine for so many seconds, and has not begun."""

    trial: int
    attempt: int
    seconds: float


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node of an attempt: its name, for people, its id in the cluster, and what kind of node the cluster calls it.

    `market` ("spot", "on-demand"), `price` (of the whole node, an hour) and `share` (the attempt's part of the node): see Began.
    All but the name are empty, or None, where there is no cluster, or it does not say.
    """

    node: str
    node_id: str = ""
    node_type: str = ""
    market: str = ""
    price: float | None = None
    share: float = 1.0


class Began(Event, frozen=True, kw_only=True, tag="began"):
    """An attempt runs on a node, since `ago` seconds before `t`. `restored` is the step of the checkpoint it loaded, 0 for none.

    Steps beyond `restored` that earlier attempts reported are superseded from here on. `skipped` says why newer
    checkpoints could not be used. `task_run` is the Prefect task run that carries the attempt. `node` is the node's name
    for people, `node_id` the cluster's. `market`, `price` (of the whole node, an hour, None where it does not tell) and `share`
    (the attempt's part of it) are as the node's labels have them. `others`: where the other workers of a group run, by rank; the
    first one's place, and what its children have, is in the fields before.
    """

    trial: int
    attempt: int
    node: str
    node_id: str = ""
    restored: int = 0
    skipped: list[str] = []
    task_run: str | None = None
    ago: float = 0.0
    node_type: str = ""
    market: str = ""
    price: float | None = None
    share: float = 1.0
    others: list[Place] = []


class Reported(Event, frozen=True, kw_only=True, tag="reported"):
    """Rows that an attempt reported, steps ascending and contiguous."""

    trial: int
    attempt: int
    rows: list[Row]


class Asked(Event, frozen=True, kw_only=True, tag="asked"):
    """A define-by-run trial needs a value of the parameter `name` from `distribution`, written as Optuna writes one."""

    trial: int
    attempt: int
    name: str
    distribution: dict[str, Any]


class Suggested(Event, frozen=True, kw_only=True, tag="suggested"):
    """Decision: the value that was asked for. It is the trial's, and each further attempt of it has the same."""

    trial: int
    name: str
    distribution: dict[str, Any]
    value: Any


class Noted(Event, frozen=True, kw_only=True, tag="noted"):
    """What an attempt said of its trial beside its metrics, by name. A later one under the same name replaces it."""

    trial: int
    attempt: int
    attributes: dict[str, Any]


class Decided(Event, frozen=True, kw_only=True, tag="decided"):
    """Decision of the scheduler on a trial that reached `step`: go on `until` the next decision, stop, pause or restart.

    Both of the last end the attempt at a checkpoint; a paused trial then waits until the scheduler promotes it, a restarted
    one goes on at once. `source`: it goes on from that trial's weights, `manifests`, newest first (population-based
    training); None: from its own. `config`: the flat configuration with which it goes on, None for the same.
    """

    trial: int
    attempt: int
    step: int
    verdict: Literal["continue", "stop", "pause", "restart"]
    until: int | None = None
    why: str = ""
    source: int | None = None
    manifests: list[str] = []
    config: dict[str, Any] | None = None


class Retired(Event, frozen=True, kw_only=True, tag="retired"):
    """Decision: a paused trial will not go on."""

    trial: int
    why: str = ""


class Revived(Event, frozen=True, kw_only=True, tag="revived"):
    """Decision: a failed trial is tried again, from its last checkpoint, as the user wished; its retries count anew.

    What the scheduler had decided of it before it failed stands: one that it was to stop is stopped now, one that was to
    pause is paused.
    """

    trial: int
    why: str = ""


class Saved(Event, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint was committed: `manifest` is its key in the store, `size` its bytes.

    `source` is the manifest of another trial whose files these are, None for files of its own.
    """

    trial: int
    attempt: int
    step: int
    manifest: str
    size: int
    source: str | None = None


class Dropped(Event, frozen=True, kw_only=True, tag="dropped"):
    """Decision: these checkpoints are not needed any more. Their deletion follows this event, never precedes it."""

    trial: int
    manifests: list[str]


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    """An attempt ended. `step` is the last that it did. `by` is "planner" where the loss was concluded from the log, and where an
    attempt that waited for a machine is to wait no longer (it is "paused" then, and costs no retry).

    `narrower`: the trial goes on with as few workers as it may have, as there is no room for more.
    `message` is one line for people; `trace` the traceback of the user's code, where there is one. `cost`: what the attempt has
    cost, None where its node does not tell a price.
    """

    trial: int
    attempt: int
    outcome: Outcome
    cause: Cause = ""
    step: int = 0
    message: str = ""
    trace: str = ""
    by: Literal["attempt", "driver", "planner"] = "attempt"
    cost: float | None = None
    narrower: bool = False


class Closing(Event, frozen=True, kw_only=True, tag="closing"):
    """No attempt starts any more, running ones are to end. `by` is "planner" for a stop condition (a decision), else "user"."""

    status: Status
    why: str
    by: Literal["planner", "user"]


class Closed(Event, frozen=True, kw_only=True, tag="closed"):
    """Decision: nothing is left to do in this session."""

    status: Status


AnyEvent = (
    Created
    | Opened
    | Capacity
    | Proposed
    | Started
    | Waited
    | Began
    | Reported
    | Asked
    | Suggested
    | Noted
    | Decided
    | Retired
    | Revived
    | Saved
    | Dropped
    | Ended
    | Closing
    | Closed
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode(event: AnyEvent) -> bytes:
    """One line of JSON, without the newline. Maps keep their order, so that a decoded event gives the same bytes again."""
    return _encoder.encode(event)


def decode(line: bytes) -> AnyEvent:
    """The inverse of `encode`. Raises msgspec.DecodeError (a ValueError) on anything else."""
    return _decoder.decode(line)


def is_decision(event: AnyEvent) -> bool:
    """Whether the planner made this event, so that it can be recomputed from those before it."""
    if isinstance(event, Ended | Closing):
        return event.by == "planner"
    return isinstance(event, Proposed | Started | Suggested | Decided | Retired | Revived | Dropped | Closed)
