"""The events of trials: their configurations, attempts, reports, checkpoints, and the decisions on
them.

What concerns a whole session is in `session_events.py`; `events.py` has the union of both, and its
JSON.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from regrow.search.event import Event
from regrow.search.measured import Count, Price, Time, Traffic, Usage

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
