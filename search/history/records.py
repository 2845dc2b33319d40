"""What is known of one trial and of one attempt. Plain records: only the fold (`fold.py`, `clones.py`) changes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from regrow.search.curve import Curve
from regrow.search.events import Created, Opened, Outcome, Place, Saved
from regrow.search.lifecycle import HELD, AttemptState, Leave, TrialState
from regrow.search.spec import Spec


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
    """The last step that it reported."""
    until: int | None = None
    """The step at which the next decision is due; None for none before the trial's end."""
    avoid_spot: bool = False
    market: str = ""
    """The kind of machine that it asks for, empty for any; once it has begun: that of its node, empty where that has no label."""
    waited: float = 0.0
    """Seconds for which it was seen to wait for a machine before it began."""
    verdict: Leave | None = None
    """How it is to end by the scheduler's decision, also once it has; None where the scheduler let it go on."""
    why: str = ""
    """The reason of that decision, for people."""
    outcome: Outcome | None = None
    """How it ended; None until it has."""
    cause: str = ""
    message: str = ""
    trace: str = ""
    width: int = 1
    """Slots' worth of resources that it has; of a group: its workers."""
    checkpoints: list[str] = field(default_factory=list)
    """Manifests that it may restore, newest first."""
    clones: int = 0
    """How many of these, the first ones, are another trial's."""
    superseded: int = 0
    """Steps that it did and that a later attempt had to do again."""
    wasted_s: float = 0.0
    """Slot-seconds that led to nothing: from its last step that still counts to its end."""
    price: float | None = None
    """What a slot costs an hour: its part of what its nodes tell, else by the specification when it began; None where that had no
    price."""
    node_price: float | None = None
    """What its nodes cost an hour as a whole, those that tell; None where none does."""
    cost: float | None = None
    """What it has cost; None where there is no price, and until it has ended."""
    node_type: str = ""
    """What kind of node it runs on, as the cluster calls it; empty where it does not say."""
    saved: int = 0
    """The step of its last checkpoint, also if that was dropped since."""
    narrower: bool = False
    """Whether it waited in vain for so many workers, and the trial goes on with fewer."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the nodes that it runs on, its own first; those that are known."""
        return tuple(dict.fromkeys(node for node in (self.node_id, *(other.node_id for other in self.others)) if node))

    @property
    def where(self) -> str | None:
        """Its nodes for people, with how many of its workers are there: "a", "a x2", "a x2, b"; None until it began."""
        if not self.others:
            return self.node
        counts = Counter([self.node or "?", *(other.node for other in self.others)])
        return ", ".join(node if count == 1 else f"{node} x{count}" for node, count in counts.items())

    def slot_seconds(self, now: float) -> float:
        """Seconds for which it had its slots, times their number; from its beginning on a node until it ended, or until `now`
        (seconds since the epoch). 0 where it never began.
        """
        if self.t_began is None:
            return 0.0
        return max(0.0, (now if self.t_ended is None else self.t_ended) - self.t_began) * self.width  # clocks of machines differ

    def cost_at(self, t: float) -> float | None:
        """What it has cost by the time `t` (seconds since the epoch); None where there is no price."""
        if self.price is None or self.t_began is None:
            return None
        return round(self.slot_seconds(t) * self.price / 3600.0, 9)

    def told_cost(self, t: float) -> float | None:
        """The same for its end, which says it where its node tells a price: the specification's may be another one by then."""
        return None if self.node_price is None else self.cost_at(t)

    @property
    def withdrawn(self) -> bool:
        """Whether it was to wait for a machine no longer, and never began."""
        return self.outcome == "paused" and self.t_began is None

    @property
    def stop(self) -> str | None:
        """Why the scheduler decided to stop the trial, None where it did not."""
        return self.why if self.verdict == "stop" else None

    @property
    def leave(self) -> str | None:
        """Why the scheduler decided that the trial is to pause or to restart, None where it did not."""
        return self.why if self.verdict in ("pause", "restart") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a decision changed of a trial: from the step after `step` on it has `config`, and the weights that trial `source`
    had after `source_step` (None: its own, also where the source's could not be read).
    """

    step: int
    config: dict[str, Any]
    source: int | None = None
    source_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Another trial's checkpoints from which a trial is to go on, as its own of `step`; `manifests` newest first.

    `attempt` is the one in which that was decided; what it still saves are the weights that are to be replaced.
    """

    source: int
    step: int
    attempt: int
    manifests: list[str]


@dataclass(slots=True, kw_only=True)
class TrialRecord:
    """One configuration and what became of it."""

    number: int
    config: dict[str, Any]
    """The flat configuration that it has now."""
    proposed: dict[str, Any]
    """The one that it was proposed with."""
    proposal_state: dict[str, Any]
    curve: Curve
    """What it reported, superseded steps gone."""
    state: TrialState = TrialState.PENDING
    attempts: list[Attempt] = field(default_factory=list)
    checkpoints: dict[int, Saved] = field(default_factory=dict)
    """Those that are still kept, by step, oldest first."""
    ended_by: Counter[str] = field(default_factory=Counter)
    """Attempts that ended, by cause."""
    evictions: int = 0
    """Attempts whose node went away under them; the loss of a driver is none."""
    in_vain: tuple[str, float] | None = None
    """The kind of machine for which an attempt of it waited in vain last, and when that was decided."""
    decided: int = 0
    """The last step at which a decision was taken."""
    changes: list[Change] = field(default_factory=list)
    clone: Clone | None = None
    """Set from the decision to clone until the trial has a checkpoint of its own from it."""
    replaced: list[str] = field(default_factory=list)
    """Manifests whose step has another checkpoint since, and that are not dropped yet."""
    stale: int = 0
    """Checkpoints before this step hold weights that a clone replaced."""
    revived: int = 0
    """How often it was tried again after it had failed."""
    suggested: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of a define-by-run trial, the distribution of each parameter that has a value by now, in the order of asking."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """What its attempts noted, but for one that began anew."""

    @property
    def step(self) -> int:
        """The last step of the curve, 0 before the first."""
        return len(self.curve)

    @property
    def values(self) -> Sequence[float]:
        """The objective by step, that of step s at s - 1."""
        return self.curve.values

    @property
    def best(self) -> tuple[float, int] | None:
        """The value of the objective by which it counts, and its step: by `score` of the specification the best one, or the last.

        None where no step, or not the last, meets the constraints; with the score "final" also until it is done.
        """
        return None if self.curve.at_end and self.state is not TrialState.DONE else self.curve.best

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that holds the lease."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.state is not AttemptState.ENDED else None

    @property
    def held(self) -> bool:
        """Whether the scheduler paused it, or is about to, so that it goes on only if that promotes it."""
        return bool(self.attempts) and (self.state, self.attempts[-1].verdict) in HELD

    @property
    def failure(self) -> Attempt | None:
        """The last attempt, if it failed or was lost."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.outcome in ("failed", "lost") else None

    def checkpoint_at(self, step: int) -> Saved | None:
        """The checkpoint of `step` if it is kept, else the newest one, None for none."""
        if step in self.checkpoints:
            return self.checkpoints[step]
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None

    def account(self) -> None:
        """Counts what its attempts that failed or were lost did for nothing, seen from what is left of its curve."""
        last_row = {number: self.curve.times[last - 1] for number, last in self.curve.runs}
        for attempt in self.attempts:
            if attempt.cause and attempt.t_began is not None and attempt.t_ended is not None:
                # Rows have the clock of their node: at most the whole attempt, at least nothing.
                useful_until = max(last_row.get(attempt.number, attempt.t_began), attempt.t_began)
                attempt.wasted_s = max(0.0, attempt.t_ended - useful_until) * attempt.width


def specification(created: Created, opened: Opened | None = None) -> Spec:
    """The specification of an experiment as a session has it; None: as it was created. Raises SpecError."""
    return Spec.recorded({**created.spec, **(opened.settings if opened is not None else {})}, where="log")
