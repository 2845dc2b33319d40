"""Records of a trial and of an attempt: plain data, which only the fold changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from regrow.search.curve import Curve
from regrow.search.events import Began, Created, Opened, Outcome, Place, Saved
from regrow.search.lifecycle import HELD, AttemptState, Leave, TrialState
from regrow.search.measured import Usage
from regrow.search.spec import Spec

STORY = 8
"""Events of a trial that an error shows."""
_SHOWN = 80  # characters of a message

STUDY_STOPPED = "optuna:stopped"
"""Attribute with which a trial stops its study: no further one is proposed in the session."""
ATTRIBUTES = "attributes"
"""Key of a proposal's state for the attributes with which its trial begins."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One run of a trial on one node. It holds the trial's lease until it has ended."""

    number: int
    t_started: float
    state: AttemptState = AttemptState.SUBMITTED
    t_began: float | None = None
    t_ended: float | None = None
    node: str | None = None
    node_id: str = ""
    others: tuple[Place, ...] = ()
    """Where the other workers of a group run, by rank."""
    task_run: str | None = None
    from_step: int = 0
    to_step: int = 0
    """The last step that was reported."""
    until: int | None = None
    """The step at which the next decision is due, None for none before the trial's end."""
    first: int | None = None
    """The step at which its first decision was due, None for none."""
    avoid_spot: bool = False
    market: str = ""
    """The requested kind of machine, empty for any. Once the attempt has begun: that of its node,
    empty if the node has no label.
    """
    waited: float = 0.0
    """Seconds that the attempt waited for a machine before it began, as last recorded."""
    verdict: Leave | None = None
    """How the attempt is to end by the scheduler's decision; kept after it has ended. None if the
    scheduler did not decide to end it.
    """
    why: str = ""
    """The reason of the verdict, for people."""
    outcome: Outcome | None = None
    """How the attempt ended, None until it has."""
    cause: str = ""
    message: str = ""
    trace: str = ""
    width: int = 1
    """Slots of resources that it has; for a group: its workers."""
    checkpoints: list[str] = field(default_factory=list)
    """Manifests that it may restore, newest first."""
    clones: int = 0
    """How many of the first `checkpoints` belong to another trial."""
    superseded: int = 0
    """Steps of this attempt that a later attempt had to repeat."""
    wasted_s: float = 0.0
    """Slot-seconds without a result: from the last step that still counts to the attempt's end."""
    price: float | None = None
    """Price of a slot and hour: the attempt's share of its nodes' prices, else the specification's
    price when it began; None if there was none.
    """
    node_price: float | None = None
    """Price of its nodes an hour as a whole, counting those that have a price; None if none has."""
    cost: float | None = None
    """What the attempt has cost; None without a price, and until it has ended."""
    node_type: str = ""
    """Type of its node, as the cluster calls it; empty if unknown."""
    saved: int = 0
    """The step of its last checkpoint, even if that was dropped since."""
    gpus: str = ""
    """Its GPUs on its first node, as in CUDA_VISIBLE_DEVICES; empty for none."""
    narrower: bool = False
    """Whether it waited in vain for this many workers, and the trial continues with fewer."""
    every_seconds: float | None = None
    """Seconds between its checkpoints by `checkpoint: auto`; None: as the specification has it."""
    step_seconds: float = 0.0
    """Duration of its last steps, the longer ones rather; 0 before the first report."""
    save_seconds: float = 0.0
    """The same of its checkpoints; 0: not measured."""
    usage: Usage | None = None
    """What it used of its machine, for people: no decision reads it. None: not measured."""

    @property
    def reason(self) -> str:
        """Why it ended, for people; empty if there is nothing to say."""
        return self.message or self.stop or self.leave or ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Known ids of the nodes that it runs on, that of the first worker first."""
        found = (self.node_id, *(other.node_id for other in self.others))
        return tuple(dict.fromkeys(node for node in found if node))

    @property
    def where(self) -> str | None:
        """Its nodes for people, such as "a", "a x2" or "a x2, b"; None until it began."""
        if not self.others:
            return self.node
        counts = Counter([self.node or "?", *(other.node for other in self.others)])
        return ", ".join(
            node if count == 1 else f"{node} x{count}" for node, count in counts.items()
        )

    @property
    def seat(self) -> str | None:
        """Its nodes for people, with its GPUs: "a, GPU 0"; None until it began."""
        return f"{self.where}, GPU {self.gpus}" if self.gpus else self.where

    @property
    def seconds(self) -> float | None:
        """How long it ran, in seconds; None if it never began, or has not ended."""
        if self.t_began is None or self.t_ended is None:
            return None
        return max(0.0, self.t_ended - self.t_began)  # clocks of machines differ

    def slot_seconds(self, now: float) -> float:
        """Return the seconds that the attempt ran on a node, times its slots, until it ended or
        until `now` (seconds since the epoch). 0 if it never began.
        """
        if self.t_began is None:
            return 0.0
        return (
            max(0.0, (now if self.t_ended is None else self.t_ended) - self.t_began) * self.width
        )  # clocks of machines differ, so the difference may be negative

    def cost_at(self, t: float) -> float | None:
        """Return the cost by the time `t` (seconds since the epoch), None without a price."""
        if self.price is None or self.t_began is None:
            return None
        return round(self.slot_seconds(t) * self.price / 3600.0, 9)

    def recorded_cost(self, t: float) -> float | None:
        """Return the cost to write into the attempt's end, None unless a node has a price.

        The specification's price may change later, so a cost based on it is not written.
        """
        return None if self.node_price is None else self.cost_at(t)

    @property
    def withdrawn(self) -> bool:
        """Whether it was withdrawn while it waited for a machine, before it began."""
        return self.outcome == "paused" and self.t_began is None

    @property
    def stop(self) -> str | None:
        """Why the scheduler decided to stop the trial, None if it did not."""
        return self.why if self.verdict == "stop" else None

    @property
    def leave(self) -> str | None:
        """Why the scheduler decided to pause or restart the trial, None if it did not."""
        return self.why if self.verdict in ("pause", "restart") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a trial by a decision.

    Attributes:
        step: it holds from the step after this one.
        config: the flat configuration from there on.
        source: the trial whose weights it took over, None for its own.
        source_step: the step of these weights, None if it kept its own or the source's checkpoints
            could not be read.

    """

    step: int
    config: dict[str, Any]
    source: int | None = None
    source_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Checkpoints of another trial from which this trial is to continue.

    Attributes:
        source: the other trial.
        step: the step of this trial that they stand for.
        attempt: the attempt in which this was decided. Checkpoints that it still saves hold the
            weights that are being replaced.
        manifests: the checkpoints, newest first.

    """

    source: int
    step: int
    attempt: int
    manifests: list[str]


@dataclass(slots=True, kw_only=True)
class TrialRecord:
    """One configuration and its results."""

    number: int
    config: dict[str, Any]
    """The current flat configuration."""
    proposed: dict[str, Any]
    """The flat configuration with which the trial was proposed."""
    proposal_state: dict[str, Any]
    curve: Curve
    """What the trial reported, without superseded steps."""
    state: TrialState = TrialState.PENDING
    attempts: list[Attempt] = field(default_factory=list)
    checkpoints: dict[int, Saved] = field(default_factory=dict)
    """The kept checkpoints by step, oldest first."""
    ended_by: Counter[str] = field(default_factory=Counter)
    """Number of ended attempts by cause."""
    evictions: int = 0
    """Attempts preempted as their node went away; the loss of a driver does not count."""
    unmet_market: tuple[str, float] | None = None
    """The kind of machine for which an attempt of this trial last waited in vain, and when it was
    withdrawn (seconds since the epoch).
    """
    decided: int = 0
    """The last step at which a decision was taken."""
    changes: list[Change] = field(default_factory=list)
    clone: Clone | None = None
    """Set from the decision to clone until the trial has saved the clone as its own checkpoint."""
    replaced: list[str] = field(default_factory=list)
    """Manifests whose step has a newer checkpoint, and that are not dropped yet."""
    stale: int = 0
    """Checkpoints before this step hold weights that a clone replaced."""
    furthest: int = 0
    """The last step that any of its attempts reported, superseded steps included."""
    evicted: tuple[str, ...] = ()
    """Nodes (for people) of the preempted attempts since the last new step."""
    revived: int = 0
    """How often it was retried after it had failed."""
    excluded: bool = False
    """Whether the user dropped it: it does not rank, and nothing learns from it."""
    suggested: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For a define-by-run trial, the distribution of each parameter that has a value by now, in the
    order in which they were asked for.
    """
    attributes: dict[str, Any] = field(default_factory=dict)
    """What its attempts recorded; as at first when an attempt starts from step 0."""

    @property
    def first_attributes(self) -> dict[str, Any]:
        """The attributes that the user queued with its values."""
        return dict(self.proposal_state.get(ATTRIBUTES, {}))

    @property
    def step(self) -> int:
        """The last step of the curve, 0 before the first."""
        return len(self.curve)

    @property
    def values(self) -> Sequence[float]:
        """The objective by step; that of step s is at s - 1."""
        return self.curve.values

    @property
    def best(self) -> tuple[float, int] | None:
        """The value of the objective by which the trial counts, and its step: by `score` of the
        specification the best one, or the last.

        None if no step (or not the last) meets the constraints, or if the user dropped the trial;
        with the score "final" also until the trial is done.
        """
        unfinished = self.curve.at_end and self.state is not TrialState.DONE
        return None if self.excluded or unfinished else self.curve.best

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that holds the lease, None for none."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.state is not AttemptState.ENDED else None

    @property
    def held(self) -> bool:
        """Whether the scheduler paused the trial or is about to: only a promotion continues it."""
        return bool(self.attempts) and (self.state, self.attempts[-1].verdict) in HELD

    @property
    def seconds(self) -> float | None:
        """How long its attempts ran that have ended, in seconds; None before one has."""
        found = [a.seconds for a in self.attempts if a.seconds is not None]
        return sum(found) if found else None

    @property
    def failure(self) -> Attempt | None:
        """The last attempt, if it failed, was lost or made the trial fail; else None."""
        last = self.attempts[-1] if self.attempts else None
        wrong = last is not None and (
            last.outcome in ("failed", "lost") or self.state is TrialState.FAILED
        )
        return last if wrong else None

    @property
    def usable(self) -> list[str]:
        """Manifests of the kept checkpoints that hold the trial's weights, newest first."""
        steps = sorted((step for step in self.checkpoints if step >= self.stale), reverse=True)
        return [self.checkpoints[step].manifest for step in steps]

    def checkpoint_at(self, step: int) -> Saved | None:
        """Return the checkpoint of `step` if it is kept, else the newest one, None for none."""
        if step in self.checkpoints:
            return self.checkpoints[step]
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None

    def account(self) -> None:
        """Compute the wasted time of lost attempts from the steps that still count."""
        last_row = {number: self.curve.times[last - 1] for number, last in self.curve.runs}
        for attempt in self.attempts:
            if attempt.cause and attempt.t_began is not None and attempt.t_ended is not None:
                # Rows have their node's clock, so bound the result: from 0 to the whole attempt.
                useful_until = max(last_row.get(attempt.number, attempt.t_began), attempt.t_began)
                attempt.wasted_s = max(0.0, attempt.t_ended - useful_until) * attempt.width


def specification(created: Created, opened: Opened | None = None) -> Spec:
    """Return the specification as of a session's settings, else as created. Raises SpecError."""
    return Spec.recorded(
        {**created.spec, **(opened.settings if opened is not None else {})}, where="log"
    )


def prices_of(began: Began, width: int, usual: float | None) -> tuple[float | None, float | None]:
    """Return the price of a slot and hour, and that of the nodes as a whole; None for unknown ones.
    `usual`: the specification's price of a slot, for nodes without a price.
    """
    own = Place(began.node, began.node_id, began.node_type, began.market, began.price, began.share)
    places = (own, *began.others)
    shares = [one.price * one.share for one in places if one.price is not None]
    nodes = {one.node_id or one.node: one.price for one in places if one.price is not None}
    if not nodes:
        return usual, None
    unknown = (len(places) - len(shares)) * (usual or 0.0)
    return (sum(shares) + unknown) / width, sum(nodes.values())


def event_lines(trial: TrialRecord, zero: float) -> tuple[str, ...]:
    """Return the last events of a trial as text, oldest first, attempt by attempt, with known times
    in seconds after `zero`. An error shows them beside the refused move.
    """
    lines = ["it was proposed"]
    for attempt in trial.attempts[-STORY:]:
        lines += [
            what if t is None else f"{what} at {t - zero:.1f} s" for t, what in _of(trial, attempt)
        ]
    return tuple(lines[-STORY:])


def _of(trial: TrialRecord, attempt: Attempt) -> Iterator[tuple[float | None, str]]:
    who = f"attempt {attempt.number}"
    yield attempt.t_started, f"{who} was submitted"
    if attempt.t_began is not None:
        yield attempt.t_began, f"{who} began on {attempt.node}, after step {attempt.from_step}"
    if attempt.to_step > attempt.from_step:
        counts = (
            attempt.to_step <= trial.step
            and trial.curve.attempt_at(attempt.to_step) == attempt.number
        )
        yield (
            trial.curve.times[attempt.to_step - 1] if counts else None,
            f"{who} reported step {attempt.to_step}",
        )
    for saved in trial.checkpoints.values():
        if saved.attempt == attempt.number:
            yield saved.t, f"{who} saved step {saved.step}"
    if attempt.verdict is not None:
        yield None, f"{who} was to {attempt.verdict} ({_short(attempt.why)})"
    if attempt.outcome is not None:
        why = f" ({_short(attempt.message)})" if attempt.message else ""
        yield attempt.t_ended, f"{who} ended as {attempt.outcome}{why}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
