"""The events of an experiment's log: everything that happened, and everything that was decided.

First those of an experiment and its sessions, then those of trials, then their union and its JSON.
How an event changes the history is in `history/`. Events are of two kinds: *observations* (reported
by a worker, a driver or a user) and *decisions* (taken by the planner; `regrow verify` recomputes
them from the events before). Fields may be added with a default; none is ever renamed or removed.

msgspec because a log of a million reports is decoded in seconds (about 1 us an event, pydantic 20
us).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from regrow.search.measured import Amount, Count, Known, Price, Time, Traffic, Usage

Hold = Literal["", "failures", "ends"]
"""After which ends of trials a session takes no decision until `Proceeded`: "failures" that the
study does not catch, or all "ends".
"""

Status = Literal["finished", "stopped", "interrupted", "failed"]
"""How an experiment (or one session of it) ended."""

Outcome = Literal["done", "paused", "stopped", "failed", "lost", "preempted"]
"""How an attempt ended.

- done: it ran to the trial's end.
- paused: it may continue from its last checkpoint.
- stopped: ended permanently by a decision.
- failed: it raised an error.
- lost: it disappeared without a message.
- preempted: it was notified that its node goes away, or (cause "infrastructure") that only its
  process must end; it saved a checkpoint and left.
"""

Cause = Literal["", "preempted", "infrastructure", "error", "stalled", "oom"]
"""Why an attempt failed or was lost, as the retry budgets count it; else empty. oom: the memory of
a GPU was full.
"""

_INFINITE = ("inf", "-inf")


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    """Base of all events. `t` is when it was written: wall-clock time of the writer, seconds since
    the epoch.

    Bounds on values are part of the fields' types, so code that folds events need not check them.
    """

    t: Time


class Created(Event, frozen=True, kw_only=True, tag="created"):
    """The first event of a log: identifies the experiment.

    Attributes:
        id: the experiment's UUID.
        spec: the canonical JSON form of the specification.
        known: trials that a warm start took over from earlier experiments.
        auto: why `search` and `schedule` were chosen, for each of them that the specification left
            to regrow; `spec` has what was chosen.
        learnt: trials of experiments on other tasks, those of one experiment next to each other.
        distinct: no configuration is proposed twice while others of the space are untried. False in
            logs of versions without this rule.

    """

    id: str
    spec: dict[str, Any]
    known: list[Known] = []
    auto: dict[str, str] = {}
    learnt: list[Known] = []
    distinct: bool = False


class Opened(Event, frozen=True, kw_only=True, tag="opened"):
    """A writer took over the log, which fences off all writers before it. The first event of a
    claim segment, unless that adds `Excluded` or `Halted` to a closed log.

    Attributes:
        by: "driver" (a new session: attempts still open belong to a driver that is gone) or
            "coordinator" (the same driver's coordinator came back: attempts continue).
        driver: id of the driver.
        slots: attempts that may run at a time; for groups, workers.
        trials: the total number of trials from here on.
        flow_run: the Prefect flow run, None for none.
        code: SHA-256 of the pickled trainable, None if it has an import path.
        versions: versions of the libraries whose results may differ between versions.
        widest: slots that one attempt may have, as limited by one node or, for groups, by the
            cluster; 0: all.
        settings: the keys of the specification that may change between sessions, where they differ
            from those of `Created`.
        environment: what the driver recorded about its code and its machine; empty if a coordinator
            opens.
        retry_failed: the user wants all trials that have failed so far to be retried.
        agent: the agent that leads this session; empty: a driver without agents.
        hold: see Hold; empty: decisions never wait.

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
    agent: str = ""
    hold: Hold = ""


class Joined(Event, frozen=True, kw_only=True, tag="joined"):
    """An agent is part of the leader's cluster.

    Attributes:
        agent: its id.
        host: name of its machine.
        node_id: the id of its node in the cluster.
        cpus, gpus: what trials may use of it.
        market: "spot" or "on-demand"; empty: not specified.
        ends: when its machine or job ends, seconds since the epoch; None: not known.

    """

    agent: str
    host: str
    node_id: str
    cpus: Amount
    gpus: Amount
    market: str = ""
    ends: Time | None = None


class Left(Event, frozen=True, kw_only=True, tag="left"):
    """An agent is no longer part of the leader's cluster. `why`: for people."""

    agent: str
    why: str


class Capacity(Event, frozen=True, kw_only=True, tag="capacity"):
    """The cluster has become larger or smaller: new values of `slots` and `widest` as in `Opened`.

    0 slots: it has no room for a single attempt now. `spot`: slots on spot machines among them.
    """

    slots: int
    widest: int
    spot: int = 0


class Priced(Event, frozen=True, kw_only=True, tag="priced"):
    """What the cluster's nodes cost has changed; it holds until the next such event, or the end of
    the session.

    Attributes:
        per_hour: sum of the prices on the nodes' labels, an hour, idle nodes and the head included.
        nodes: number of nodes with a price.

    """

    per_hour: Price
    nodes: Count


class Metered(Event, frozen=True, kw_only=True, tag="metered"):
    """What the coordinator and the driver asked of the store since the last such event. Only with
    `store_prices`; what attempts asked is in `Began`, `Saved` and `Ended`.
    """

    traffic: Traffic


class Rehearsed(Event, frozen=True, kw_only=True, tag="rehearsed"):
    """The recorder has tried what the end of a session with a deadline takes, on its machine.
    `seconds`: to load MLflow, later to make the report as well.
    """

    seconds: Time


class Milestone(Event, frozen=True, kw_only=True, tag="milestone"):
    """Decision: a quarter, half or four fifths of a limit are used. Times are in seconds since the
    epoch.

    Attributes:
        limit: "budget", "stop.dollars" or "stop.deadline".
        percent: 25, 50 or 80.
        spent: what the experiment has cost so far; None without prices.
        ends: when all trials are expected to have ended; None: not known, or as many trials run as
            money and time allow.
        between: the times between which that is expected with a probability of 80 %.
        cost: what it will have cost then; None: not known.

    """

    limit: str
    percent: Count
    spent: float | None = None
    ends: float | None = None
    between: tuple[float, float] | None = None
    cost: float | None = None


class Closing(Event, frozen=True, kw_only=True, tag="closing"):
    """No attempt starts any more, running ones end.

    Attributes:
        status: how the session ends.
        why: for people.
        by: "planner" for a stop condition.
        limit: the limit that ends it, such as "budget" or "stop.dollars"; empty: none. With
            one, running trials save and may continue in a later session, as they do with "user".

    """

    status: Status
    why: str
    by: Literal["planner", "user"]
    limit: str = ""

    @property
    def pauses(self) -> bool:
        """Whether running trials save and may continue, instead of ending for good."""
        return bool(self.limit) or self.by == "user"


class Closed(Event, frozen=True, kw_only=True, tag="closed"):
    """Decision: nothing is left to do in this session."""

    status: Status


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One `report` of a trainable.

    Attributes:
        step: counted from 1.
        t: when it was reported, seconds since the epoch.
        metrics: by name; None for a metric that is not finite. The objective is always finite.

    """

    step: Count
    t: Time
    metrics: dict[str, float | None]


class Proposed(Event, frozen=True, kw_only=True, tag="proposed"):
    """Decision: a new trial and its configuration (flat, dotted names). `state` is data of the
    sampler, which gets it back with the trial's result.
    """

    trial: int
    config: dict[str, Any]
    state: dict[str, Any] = {}


class Started(Event, frozen=True, kw_only=True, tag="started"):
    """Decision: start an attempt of a trial.

    (trial, attempt) is the lease.

    Attributes:
        until: the step at which the next decision is due, None for none before the trial's end.
        checkpoints: manifests it may restore, newest first.
        avoid_spot: it was preempted so often that it should run on a node that is no spot machine,
            if there is one.
        clones: how many of the first `checkpoints` belong to another trial. The one that can be
            read becomes this trial's own, at the step that this trial has reached.
        width: slots of resources that it gets.
        market: the kind of machine to run on, "spot" or "on-demand", by `market` of the
            specification; empty: any.
        config: the flat configuration with which the trial continues, smaller by `on_oom`; None if
            it does not change.
        every_seconds: seconds between two checkpoints, by `checkpoint: auto`; None: as the
            specification has it.

    """

    trial: int
    attempt: int
    until: int | None = None
    checkpoints: list[str] = []
    avoid_spot: bool = False
    clones: int = 0
    width: int = 1
    market: str = ""
    config: dict[str, Any] | None = None
    every_seconds: Time | None = None


class Waited(Event, frozen=True, kw_only=True, tag="waited"):
    """An attempt has waited `seconds` for a machine, and has not begun."""

    trial: int
    attempt: int
    seconds: Time


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node of an attempt. All fields but the name are empty, or None, if there is no cluster or
    it does not provide them.

    Attributes:
        node: its name, for people.
        node_id: its id in the cluster.
        node_type: its type, as the cluster calls it.
        market: "spot" or "on-demand".
        price: of the whole node, an hour.
        share: the attempt's part of the node.
        gpus: its GPUs there, as in CUDA_VISIBLE_DEVICES: "0,2"; empty for none.

    """

    node: str
    node_id: str = ""
    node_type: str = ""
    market: str = ""
    price: Price | None = None
    share: Price = 1.0
    gpus: str = ""


class Began(Event, frozen=True, kw_only=True, tag="began"):
    """An attempt runs on a node. Steps beyond `restored` that earlier attempts reported are
    superseded from here on.

    Attributes:
        node: the node's name, for people.
        node_id: the node's id in the cluster.
        restored: the step of the checkpoint it loaded, 0 for none.
        skipped: why newer checkpoints could not be used.
        task_run: the Prefect task run that carries the attempt, None for none.
        ago: it runs since this many seconds before `t`.
        node_type, market, share: from the node's labels, see `Place`.
        price: of the whole node, an hour, from its labels; None if it has none.
        gpus: see `Place`.
        others: where the other workers of a group run, by rank. The fields above describe the first
            worker's node, including what its children use.
        traffic: what its process asked of the store to begin, to load the checkpoint above all;
            None without `store_prices`.

    """

    trial: int
    attempt: int
    node: str
    node_id: str = ""
    restored: Count = 0
    skipped: list[str] = []
    task_run: str | None = None
    ago: Time = 0.0
    node_type: str = ""
    market: str = ""
    price: Price | None = None
    share: Price = 1.0
    gpus: str = ""
    others: list[Place] = []
    traffic: Traffic | None = None

    @classmethod
    def at(cls, place: Place, **fields: Any) -> Began:
        """Return the event with the fields of a place."""
        return cls(**msgspec.structs.asdict(place), **fields)


class Reported(Event, frozen=True, kw_only=True, tag="reported"):
    """Rows that an attempt reported, steps ascending and contiguous.

    `exact`: what was reported and is no float, as JSON, by step and name: whole numbers, text,
    truths, lists; "inf" or "-inf" for a metric whose number is None. None for nothing.
    """

    trial: int
    attempt: int
    rows: list[Row]
    exact: dict[int, dict[str, Any]] | None = None

    def reported(self, row: Row) -> dict[str, Any]:
        """Return what one of its rows was made of: metrics with their types, NaN where one was, and
        what is no metric in JSON's types.
        """
        exact = (self.exact or {}).get(row.step, {})
        found = {**dict.fromkeys(row.metrics, math.nan), **exact}
        for name, value in row.metrics.items():
            if value is not None:
                found[name] = exact.get(name, value)
            elif name in exact:
                found[name] = float(exact[name]) if exact[name] in _INFINITE else math.nan
        return found


class Asked(Event, frozen=True, kw_only=True, tag="asked"):
    """A define-by-run trial needs a value of `name` from `distribution` (Optuna's JSON form)."""

    trial: int
    attempt: int
    name: str
    distribution: dict[str, Any]


class Suggested(Event, frozen=True, kw_only=True, tag="suggested"):
    """Decision: the value of a parameter that a trial asked for, also for its later attempts."""

    trial: int
    name: str
    distribution: dict[str, Any]
    value: Any


class Answered(Event, frozen=True, kw_only=True, tag="answered"):
    """What an external sampler (the user's own, of another library's interface) answered.

    Attributes:
        about: the trial that it is about: the next one to be proposed, or one that asked for
            values; None if it is about neither.
        values: of the next trial, its configuration; else the values by parameter.
        state: data of the sampler, for the state of the next trial's proposal.
        ended: by the number of a trial that has ended, the data that the sampler noted for it when
            it was told of that; it is not told again.
        over: no further trial is proposed in this session: as nothing is left to try ("finished"),
            or as the study was stopped. Running trials go on. Also of studies without an external
            sampler; empty: it is not over.

    """

    about: Count | None = None
    values: dict[str, Any] = {}
    state: dict[str, Any] = {}
    ended: dict[int, dict[str, Any]] = {}
    over: Literal["", "finished", "stopped"] = ""


class Proceeded(Event, frozen=True, kw_only=True, tag="proceeded"):
    """Who was told the end of a trial has dealt with it: decisions that waited are due. `for_good`:
    none waits any more in this session.
    """

    for_good: bool = False


class Queued(Event, frozen=True, kw_only=True, tag="queued"):
    """The user wants a define-by-run trial with these values of parameters; the next one that is
    proposed gets them. `attributes`: that it begins with. May be written to a closed log, which
    stays closed.
    """

    values: dict[str, Any]
    attributes: dict[str, Any] = {}


class Noted(Event, frozen=True, kw_only=True, tag="noted"):
    """Attributes that an attempt recorded for its trial, beside its metrics. A later value replaces
    an earlier one of the same name.
    """

    trial: int
    attempt: int
    attributes: dict[str, Any]


class Decided(Event, frozen=True, kw_only=True, tag="decided"):
    """Decision of the scheduler on a trial that reached `step`.

    Attributes:
        verdict: "continue", "stop", "pause" or "restart". The last two end the attempt at a
            checkpoint; a paused trial then waits until the scheduler promotes it, a restarted one
            continues at once.
        until: the step of the next decision, None for none before the trial's end.
        why: the reason, for people.
        source: the trial from whose weights it continues (population-based training); None: its
            own.
        manifests: checkpoints of the source, newest first.
        config: the flat configuration with which it continues, None if it does not change.
        judged_from: with a guarded scheduler, the first step at which trials are stopped at
            present, max_steps for none; None without a guard.

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
    judged_from: int | None = None


class Retired(Event, frozen=True, kw_only=True, tag="retired"):
    """Decision: a paused trial will not continue."""

    trial: int
    why: str = ""


class Revived(Event, frozen=True, kw_only=True, tag="revived"):
    """Decision: retry a failed trial from its last checkpoint, at the user's request; its retries
    count from 0 again.

    What the scheduler had decided before it failed still stands: a trial that was to stop is
    stopped now, one that was to pause is paused.
    """

    trial: int
    why: str = ""


class Excluded(Event, frozen=True, kw_only=True, tag="excluded"):
    """The user dropped a trial that has ended: it ranks no more, and samplers and schedulers no
    longer learn from it. May be written to a closed log, which stays closed.

    `excluded` False: the user keeps it after all.
    """

    trial: int
    excluded: bool = True


class Halted(Event, frozen=True, kw_only=True, tag="halted"):
    """The user stopped a trial that has not ended: a running attempt leaves at its next report. May
    be written to a closed log, which stays closed.
    """

    trial: int


class Moved(Event, frozen=True, kw_only=True, tag="moved"):
    """Decision: a running attempt leaves its machine at its next report, with a checkpoint, and its
    trial continues on a machine of the kind that comes first for it.
    """

    trial: int
    attempt: int
    why: str


class Saved(Event, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint was committed.

    Attributes:
        manifest: its key in the store.
        size: bytes.
        source: the manifest of another trial whose files these are, None if it has its own files.
        seconds: from the call of the user's code until it was durable; None: not measured, as in
            logs of older versions.
        traffic: what its process, and other workers for it, asked of the store since the attempt's
            event before; None without `store_prices`.

    """

    trial: int
    attempt: int
    step: Count
    manifest: str
    size: Count
    source: str | None = None
    seconds: Time | None = None
    traffic: Traffic | None = None


class Dropped(Event, frozen=True, kw_only=True, tag="dropped"):
    """Decision: these checkpoints are no longer needed. They are deleted only after this event."""

    trial: int
    manifests: list[str]


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    """An attempt ended.

    Attributes:
        outcome: how, see Outcome.
        cause: why it failed or was lost, see Cause.
        step: the last step that it did.
        message: one line for people.
        trace: the traceback of the user's code, empty for none.
        by: the writer of the outcome. "planner" if the loss was concluded from the log, or if an
            attempt that had not begun was withdrawn (then it is "paused", and costs no retry).
        cost: what the attempt has cost, None if its node has no price.
        narrower: the trial continues with as few workers as it may have, as there is no room for
            more.
        usage: what it used of its machine. None: not measured, as of an attempt that was killed.
        media: number of images, tables, figures, texts and files that it logged; 0 also if that is
            not known, of a lost one and in older logs.
        traffic: as in `Saved`.

    """

    trial: int
    attempt: int
    outcome: Outcome
    cause: Cause = ""
    step: Count = 0
    message: str = ""
    trace: str = ""
    by: Literal["attempt", "driver", "planner"] = "attempt"
    cost: float | None = None
    narrower: bool = False
    usage: Usage | None = None
    media: Count = 0
    traffic: Traffic | None = None


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
