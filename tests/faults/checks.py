"""What must hold of an experiment that was cut, and of one that was not. No test lives here.

The *normal form* of a log says what was tried, learned and decided, in order. Two logs with the
same normal form are the same experiment. It is the list of these entries, made by reading the
events in order:

* `created` with id and specification; `closed` with its status.
* `proposed` with trial, configuration and the sampler's state.
* `row` with trial, step and objective; `saved` and `dropped` with trial and step, one for each
  checkpoint.
* `decided` with trial, step, verdict, until, why and the configuration from then on.
* `retired` and `revived` with trial.
* `final` with trial, state and the number of its steps, where a trial comes to a final state.

Left out is what a crash must add, and nothing else: `Opened`, `Started`, `Began`, the `Ended` of a
lost attempt, the numbers of attempts, times. A step that is done again gives the same entries
again: of equal `row`, `saved`, `dropped` and `closed` entries only the first counts, while one that
differs (another value for the same step) is an entry of its own, so that it shows. A `proposed`,
`decided`, `retired`, `revived` or `final` entry is never done again: each counts. Checkpoints of a
trial after a decision that ends an attempt of it are left out: one that is lost then need not have
made them, and if the trial continues at all they are made later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regrow.infra.log.log import Log
from regrow.infra.log.reading import read_events
from regrow.infra.log.rows import LogRows
from regrow.infra.log.segments import PREFIX, cover, extents
from regrow.search.events import (
    Answered,
    AnyEvent,
    Began,
    Capacity,
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
    Opened,
    Priced,
    Proceeded,
    Proposed,
    Queued,
    Rehearsed,
    Reported,
    Retired,
    Revived,
    Saved,
    Started,
    Suggested,
    Waited,
)
from regrow.search.history import History, cost
from regrow.search.lifecycle import TrialState
from regrow.search.planning.verify import verify
from regrow.tasks.checkpoint.manifests import unseal
from regrow.tasks.ports.messages import Assignment, Progress, Reply
from regrow.tasks.ports.store import Store
from tests.faults.session import Session
from tests.faults.work import START, after
from tests.faults.world import World

Entry = tuple[object, ...]
METRIC = "score"
TOLERANCE = 1e-6
"""Of sums of money."""
_ONCE_MORE = ("row", "saved", "dropped", "closed")


class Broken(AssertionError):
    """Something that always holds does not. `law` names it."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


def must(law: str, holds: object, what: object = "") -> None:
    """Raises Broken unless it holds."""
    if not holds:
        raise Broken(law, str(what))


def normal(events: Iterable[AnyEvent]) -> list[Entry]:
    """The normal form of a log."""
    history = History()
    entries: list[Entry] = []
    seen: set[str] = set()
    told: set[int] = set()  # to end an attempt
    steps: dict[str, int] = {}  # of manifests
    final: set[int] = set()
    for event in events:
        history.apply(event)
        found = _by_itself(event)
        match event:
            case Decided() if event.verdict != "continue":
                told.add(event.trial)
            case Saved():
                steps[event.manifest] = event.step
                found = (
                    [("saved", event.trial, event.step, event.size)]
                    if event.trial not in told
                    else []
                )
            case Dropped() if event.trial not in told:
                found = [("dropped", event.trial, steps[manifest]) for manifest in event.manifests]
            case Revived():
                final.discard(event.trial)
            case Ended():
                trial = history.trials[event.trial]
                if trial.state.final and event.trial not in final:
                    final.add(event.trial)
                    found = [("final", event.trial, trial.state.value, trial.step)]
        for entry in found:
            if entry[0] not in _ONCE_MORE or repr(entry) not in seen:
                entries.append(entry)
                seen.add(repr(entry))
    return entries


def _by_itself(event: AnyEvent) -> list[Entry]:
    """The entries of an event that depend on no other."""
    match event:
        case Created():
            return [("created", event.id, event.spec)]
        case Proposed():
            return [("proposed", event.trial, event.config, event.state)]
        case Reported():
            return [("row", event.trial, row.step, row.metrics[METRIC]) for row in event.rows]
        case Decided():
            return [
                (
                    "decided",
                    event.trial,
                    event.step,
                    event.verdict,
                    event.until,
                    event.why,
                    event.config,
                )
            ]
        case Suggested():
            return [("suggested", event.trial, event.name, event.value)]
        case Retired():
            return [("retired", event.trial)]
        case Revived():
            return [("revived", event.trial)]
        case Excluded():
            return [("excluded", event.trial, event.excluded)]
        case Closed():
            return [("closed", event.status)]
        case _:
            return []


def must_equal(found: list[Entry], expected: list[Entry]) -> None:
    """Raises Broken at the first entry that differs."""
    for place in range(max(len(found), len(expected))):
        one = found[place] if place < len(found) else None
        other = expected[place] if place < len(expected) else None
        must("equal logs", one == other, f"entry {place} is {one}, not {other}")


@dataclass(slots=True)
class Curve:
    """A trial as an independent reading of the events has it: simple, and not the code under
    test.
    """

    config: str
    values: list[float] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    """After each step, as the next one depends on it."""
    by: list[int] = field(default_factory=list)
    holder: int | None = None
    began: bool = False
    attempts: int = 0
    over: bool = False
    stop: bool = False
    failed: bool = False
    checkpoints: dict[str, int] = field(default_factory=dict)
    clones: list[str] = field(default_factory=list)
    """Another trial's checkpoints, with which it is to continue."""
    repeated: int = 0


def read(events: Iterable[AnyEvent]) -> list[Curve]:
    """The trials of a log. Raises Broken for an event out of place."""
    curves: list[Curve] = []
    saved: dict[str, str] = {}
    for event in events:
        if isinstance(
            event,
            Created
            | Opened
            | Joined
            | Left
            | Capacity
            | Priced
            | Metered
            | Rehearsed
            | Queued
            | Answered
            | Proceeded
            | Excluded
            | Milestone
            | Closing
            | Closed,
        ):
            continue
        if isinstance(event, Proposed):
            must("numbered trials", event.trial == len(curves), event)
            curves.append(Curve(json.dumps(event.config, sort_keys=True)))
            continue
        curve = curves[event.trial]
        if isinstance(event, Started):
            must("finished trials stay finished", not curve.over, event)
            must(
                "one lease a trial",
                curve.holder is None and event.attempt == curve.attempts + 1,
                event,
            )
            must(
                "offered checkpoints are there",
                event.checkpoints[event.clones :] == _newest_first(curve),
                event,
            )
            must(
                "a clone is of the checkpoints that were decided",
                event.checkpoints[: event.clones] == curve.clones,
                event,
            )
            curve.attempts = curve.holder = event.attempt
            curve.began = False
            continue
        if isinstance(event, Dropped):
            must(
                "deletions of what is there", set(event.manifests) <= set(curve.checkpoints), event
            )
            for manifest in event.manifests:
                del curve.checkpoints[manifest]
            continue
        if isinstance(event, Revived):
            must(
                "only a trial that failed is tried again",
                curve.holder is None and curve.failed,
                event,
            )
            curve.failed = False
            continue
        if isinstance(event, Suggested):
            known = json.loads(curve.config)
            must("one value for each parameter", event.name not in known, event)
            curve.config = json.dumps({**known, event.name: event.value}, sort_keys=True)
            continue  # of the trial, whoever asked for it
        if isinstance(event, Retired):
            must("only a trial that does not run is given up", curve.holder is None, event)
            curve.over = True
            continue
        if isinstance(event, Moved):
            must("only a running trial moves", event.attempt == curve.holder, event)
            continue
        if isinstance(event, Halted):
            must("only a trial that has not ended is stopped", not curve.over, event)
            curve.over = curve.holder is None
            continue
        must("only the holder of the lease counts", event.attempt == curve.holder, event)
        _take(curve, event, saved)
    return curves


def _take(curve: Curve, event: AnyEvent, saved: dict[str, str]) -> None:
    """What the holder of a trial's lease says, or what is decided of it. `saved`: states of
    checkpoints, by manifest.
    """
    match event:
        case Began():
            must("an attempt begins once", not curve.began, event)
            must("continues from what was done", event.restored <= len(curve.values), event)
            curve.began = True
            curve.repeated += len(curve.values) - event.restored
            del (
                curve.values[event.restored :],
                curve.by[event.restored :],
                curve.states[event.restored :],
            )
            curve.checkpoints = {m: s for m, s in curve.checkpoints.items() if s <= event.restored}
        case Reported():
            for row in event.rows:
                must("contiguous steps", row.step == len(curve.values) + 1, event)
                state, value = after(
                    curve.states[-1] if curve.states else START, curve.config, row.step
                )
                must("exact values", row.metrics[METRIC] == value, event)
                must("rows of their own attempt", row.metrics["attempt"] == event.attempt, event)
                curve.values.append(value)
                curve.states.append(state)
                curve.by.append(event.attempt)
        case Saved():
            must("checkpoints of what was reported", event.step <= len(curve.values), event)
            if event.source is not None:
                must(
                    "a clone is of the checkpoints that were decided",
                    event.source in curve.clones,
                    event,
                )
                curve.clones, curve.states[event.step - 1] = [], saved[event.source]
            curve.checkpoints[event.manifest] = event.step
            saved[event.manifest] = curve.states[event.step - 1]
        case Decided():
            must("nothing is decided after a stop", not curve.stop, event)
            curve.stop = event.verdict == "stop"
            if event.source is not None:
                curve.clones = list(event.manifests)
            if event.config is not None:
                curve.config = json.dumps(event.config, sort_keys=True)
        case Ended():
            curve.holder = None
            curve.failed = event.outcome == "failed"
            curve.over = event.outcome in ("done", "stopped") or curve.stop
        case _:
            pass


def must_have_room(events: Iterable[AnyEvent]) -> None:
    """No attempt starts where the cluster has no room for it, as far as that was known, and none
    waits that runs.
    """
    slots, widths, begun = 0, dict[int, int](), set[tuple[int, int]]()
    for event in events:
        if isinstance(event, Opened | Capacity):
            slots = event.slots
        elif isinstance(event, Ended):
            del widths[event.trial]
        elif isinstance(event, Began):
            begun.add((event.trial, event.attempt))
        elif isinstance(event, Waited):
            must("who waits has not begun", (event.trial, event.attempt) not in begun, event)
        elif isinstance(event, Started):
            widths[event.trial] = event.width
            must("no more run than there is room for", sum(widths.values()) <= slots, event)


def must_keep_limits(events: Iterable[AnyEvent]) -> int:
    """No more money is spent, and nothing runs for longer, than the limits in force then allow, but
    for one lease of what runs; and all is saved that was not killed. Returns how many sessions the
    limits have ended.
    """
    history, ended, last = History(), 0, 0.0
    paid, since = 0.0, dict[int, float]()
    prices = dict[int, float]()
    for event in events:
        if isinstance(event, Opened) and event.by == "driver":
            # of attempts whose driver died no more is known than that they ran until then
            paid += sum((last - t) * prices[trial] for trial, t in since.items())
            since.clear()
        history.apply(event)
        stop, lease = history.spec.stop, history.spec.lease
        if isinstance(event, Began):
            each = event.price if event.price is not None else history.spec.price_per_hour
            since[event.trial], prices[event.trial] = event.t, (each or 0.0) / 3600.0
        elif isinstance(event, Ended) and event.trial in since:
            paid += (event.t - since.pop(event.trial)) * prices[event.trial]
        spent = paid + sum((event.t - t) * prices[trial] for trial, t in since.items())
        if stop.dollars is not None:
            over = lease * sum(prices[trial] for trial in since) + TOLERANCE
            must("no more is spent than is allowed", spent <= stop.dollars + over, event)
            counted = cost.of(history, event.t).total or 0.0
            must("all that is spent is counted", counted >= spent - TOLERANCE, (counted, spent))
        if stop.deadline is not None and isinstance(event, Started | Reported | Saved):
            end = history.t_created + float(stop.deadline)
            must("nothing is done after the deadline", event.t <= end + lease, event)
        if isinstance(event, Closed) and history.closing is not None and history.closing.limit:
            ended += 1
            _must_be_saved(history)
        last = event.t
    must("what is lost costs a step", history.lost_steps <= _losses(history), history.lost_steps)
    return ended


def _must_be_saved(history: History) -> None:
    for trial in history.trials:
        killed = trial.attempts and trial.attempts[-1].outcome == "lost"
        saved = trial.step == max(trial.checkpoints, default=0)
        must("all is saved at a limit", saved or killed or trial.state.final, trial)


def _losses(history: History) -> int:
    return sum(a.outcome == "lost" for trial in history.trials for a in trial.attempts)


def must_have_same_trials(found: Iterable[AnyEvent], expected: Iterable[AnyEvent]) -> None:
    """Every trial has the configuration, the values and the end that it has in the other log."""
    one, other = (
        [(c.config, c.values, c.over) for c in read(events)] for events in (found, expected)
    )
    must("the same trials", one == other, one)


def _newest_first(curve: Curve) -> list[str]:
    return sorted(curve.checkpoints, key=lambda m: -curve.checkpoints[m])


def must_be_sound(store: Store, *, trials: int, swept: bool = True) -> list[AnyEvent]:
    """All that must hold at the end of an experiment, however often it was cut. Returns its
    events.
    """
    events = read_events(store)
    checked = verify(events)
    must("every decision recomputes", checked.difference is None, checked.difference)
    history = checked.history
    must(
        "it ends",
        history.closed is not None and history.closed.status == "finished",
        history.closed,
    )
    must(
        "exact totals",
        len(history.trials) == trials and (history.unlimited or history.total == trials),
        len(history.trials),
    )
    must_have_room(events)
    curves, logged = read(events), LogRows.logged(history, store)
    for trial, curve in zip(history.trials, curves, strict=True):
        must(
            "every trial ends",
            trial.state in (TrialState.DONE, TrialState.STOPPED) and curve.over,
            trial,
        )
        must("one value a step", list(trial.values) == curve.values, trial)
        must("lineage", list(trial.curve.lineage()) == curve.by, trial.curve.runs)
        rows = list(logged.of(trial.number))
        must(
            "one row a step",
            [row.step for _, row in rows] == list(range(1, len(curve.values) + 1)),
            trial,
        )
        must("one row a step", [row.metrics[METRIC] for _, row in rows] == curve.values, trial)
        must("lineage", [attempt for attempt, _ in rows] == curve.by, trial.curve.runs)
    must(
        "counted losses",
        history.lost_steps == sum(curve.repeated for curve in curves),
        history.lost_steps,
    )
    live = {c.manifest for trial in history.trials for c in trial.checkpoints.values()}
    must("checkpoints as decided", live == {m for curve in curves for m in curve.checkpoints}, live)
    must_refer(store, live)
    if swept:
        must(
            "nothing orphaned",
            set(store.list("manifests/")) == live,
            set(store.list("manifests/")) ^ live,
        )
        referred = {file.key for key in live for file in unseal(key, store.read(key)).files}
        must(
            "nothing orphaned",
            set(store.list("blobs/")) == referred,
            set(store.list("blobs/")) ^ referred,
        )
    known = extents(store.list(PREFIX))
    chain, hole = cover(known, 0, max(extent.last for extent in known))
    must(
        "a log whose end is proved",
        Log.proven(store) == max(extent.last for extent in known),
        store.list(PREFIX),
    )
    must("a log without holes", hole is None and chain, hole)
    return events


def must_refer(store: Store, manifests: Iterable[str]) -> None:
    """None of these manifests refers to a blob that is not there."""
    blobs = set(store.list("blobs/"))
    for key in manifests:
        missing = {file.key for file in unseal(key, store.read(key)).files} - blobs
        must("manifests last", not missing, f"{key} refers to {missing}")


def live_manifests(store: Store) -> set[str]:
    """The checkpoints that the durable log keeps."""
    return {m for curve in read(read_events(store)) for m in curve.checkpoints}


def may_count(store: Store) -> set[str]:
    """The manifests that the durable log keeps, or may yet hear of: those of attempts that hold
    their lease.
    """
    curves = read(read_events(store))
    held = tuple(f"manifests/{n}/{c.holder}/" for n, c in enumerate(curves) if c.holder is not None)
    kept = {m for curve in curves for m in curve.checkpoints}
    return kept | {m for m in store.list("manifests/") if m.startswith(held)}


# ---- while it runs


def watch(world: World, verb: str, key: str) -> None:
    """After each effect: a manifest comes after its blobs and goes before them, and after the log
    said so.
    """
    if verb == "create" and key.startswith("manifests/"):
        must_refer(world.store, may_count(world.store) & {key})
    elif verb == "delete" and key.startswith("blobs/"):
        must_refer(world.store, may_count(world.store))
    elif verb == "delete" and key.startswith("manifests/"):
        must("deletion follows the log", key not in live_manifests(world.store), key)


def on_submit(session: Session, assignment: Assignment) -> None:
    """An attempt is handed out: that it starts is in the log."""
    started = [
        (e.trial, e.attempt) for e in read_events(session.world.store) if isinstance(e, Started)
    ]
    lease = assignment.trial, assignment.attempt
    must("written before it is acted on", lease in started, f"{lease} was handed out")


def on_answer(session: Session, progress: Progress, reply: Reply) -> None:
    """An attempt is answered: what it said, and the decision that it hears of, are in the log."""
    if reply.reason == "fenced":
        return
    law, events = "written before it is acted on", read_events(session.world.store)
    mine = [e for e in events if getattr(e, "trial", None) == progress.trial]
    rows = {row.step for e in mine if isinstance(e, Reported) for row in e.rows}
    must(law, {row.step for row in progress.rows} <= rows, f"rows of {progress} were acknowledged")
    saved = {e.manifest for e in mine if isinstance(e, Saved)}
    dropped = {m for e in mine if isinstance(e, Dropped) for m in e.manifests}
    must(
        law,
        {s.manifest for s in progress.saved} <= saved,
        f"checkpoints of {progress} were acknowledged",
    )
    must(law, set(reply.drop) <= dropped, f"{reply.drop} are to be deleted")
    decided = [e for e in mine if isinstance(e, Decided)]
    if reply.reason == "stopped":
        closing = any(isinstance(e, Closing) for e in events)
        must(
            law,
            closing or (decided and decided[-1].verdict == "stop"),
            "an attempt is told to stop",
        )
    if progress.ended is not None:
        ends = [e for e in mine if isinstance(e, Ended) and e.attempt == progress.attempt]
        must(law, ends, f"the end of {progress.trial}/{progress.attempt} was acknowledged")
    if reply.next is not None:
        on_submit(session, reply.next)


WATCHED: Mapping[str, Any] = {"on_submit": on_submit, "on_answer": on_answer}
"""What a session is given, to be looked at while it runs."""


def segments_of(store: Store, after: int) -> int:
    """How many segments the log has after number `after`."""
    return sum(1 for _ in Log.read(store, after))
