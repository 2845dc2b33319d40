"""The lifecycle of trials and of their attempts: two tables of legal moves, and the rules that join
them, all of it data.

An illegal move raises and changes nothing. `docs/architecture.md` shows the diagrams that are made
from the same tables. How a move changes an experiment's history is in `history/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, TypeAlias, TypeVar

from regrow.search.events import Cause, Outcome

S = TypeVar("S", bound=StrEnum)
M = TypeVar("M", bound=StrEnum)

Leave: TypeAlias = Literal["stop", "pause", "restart"]
"""A verdict of the scheduler that ends the attempt. The remaining verdict, "continue", does not."""


class TrialState(StrEnum):
    """State of a trial. The last three are final."""

    PENDING = "pending"
    """Proposed; no attempt has started."""
    RUNNING = "running"
    """An attempt holds the trial's lease."""
    PAUSED = "paused"
    """Ended at a checkpoint, to free its slot or because the experiment was interrupted. It
    continues later, or is retired.
    """
    LOST = "lost"
    """Its attempt failed or was lost within the retry budget. Another attempt follows."""
    DONE = "done"
    """Ran to its end."""
    STOPPED = "stopped"
    """Stopped early by a decision."""
    FAILED = "failed"
    """Its retry budget is used up. It is retried only at the user's request."""

    @property
    def final(self) -> bool:
        """Whether no attempt will follow, unless the user requests a retry of a failed trial."""
        return self in _FINAL


class Move(StrEnum):
    """A change of a trial's state."""

    START = "start"
    DONE = "done"
    PAUSE = "pause"
    STOP = "stop"
    LOSE = "lose"
    FAIL = "fail"
    RETRY = "retry"


_FINAL = frozenset({TrialState.DONE, TrialState.STOPPED, TrialState.FAILED})

TABLE: Mapping[tuple[TrialState, Move], TrialState] = {
    (TrialState.PENDING, Move.START): TrialState.RUNNING,
    (TrialState.PAUSED, Move.START): TrialState.RUNNING,
    (TrialState.PAUSED, Move.STOP): TrialState.STOPPED,
    (TrialState.LOST, Move.START): TrialState.RUNNING,
    (TrialState.RUNNING, Move.DONE): TrialState.DONE,
    (TrialState.RUNNING, Move.PAUSE): TrialState.PAUSED,
    (TrialState.RUNNING, Move.STOP): TrialState.STOPPED,
    (TrialState.RUNNING, Move.LOSE): TrialState.LOST,
    (TrialState.RUNNING, Move.FAIL): TrialState.FAILED,
    (TrialState.FAILED, Move.RETRY): TrialState.LOST,
    (TrialState.FAILED, Move.PAUSE): TrialState.PAUSED,
    (TrialState.FAILED, Move.STOP): TrialState.STOPPED,
}
"""Every legal move of a trial. Any pair that is not in here is illegal."""


class AttemptState(StrEnum):
    """State of an attempt. It holds its trial's lease until it has ended."""

    SUBMITTED = "submitted"
    """Started by a decision. No node has reported that it runs there."""
    RUNNING = "running"
    """A node runs it."""
    LEAVING = "leaving"
    """The scheduler decided that it ends: at a checkpoint, or, if the trial is stopped, without
    one.
    """
    ENDED = "ended"
    """Over. Its outcome says how it ended."""


class AttemptMove(StrEnum):
    """A change of an attempt's state, or an action that leaves it as it is."""

    BEGIN = "begin"
    REPORT = "report"
    SAVE = "save"
    GO_ON = "go on"
    LEAVE = "leave"
    END = "end"


ATTEMPT_TABLE: Mapping[tuple[AttemptState, AttemptMove], AttemptState] = {
    (AttemptState.SUBMITTED, AttemptMove.BEGIN): AttemptState.RUNNING,
    (AttemptState.SUBMITTED, AttemptMove.END): AttemptState.ENDED,
    (AttemptState.RUNNING, AttemptMove.REPORT): AttemptState.RUNNING,
    (AttemptState.RUNNING, AttemptMove.SAVE): AttemptState.RUNNING,
    (AttemptState.RUNNING, AttemptMove.GO_ON): AttemptState.RUNNING,
    (AttemptState.RUNNING, AttemptMove.LEAVE): AttemptState.LEAVING,
    (AttemptState.RUNNING, AttemptMove.END): AttemptState.ENDED,
    # the report was in transit when the decision was taken
    (AttemptState.LEAVING, AttemptMove.REPORT): AttemptState.LEAVING,
    (AttemptState.LEAVING, AttemptMove.SAVE): AttemptState.LEAVING,
    (AttemptState.LEAVING, AttemptMove.END): AttemptState.ENDED,
}
"""Every legal move of an attempt. The scheduler decides on an attempt again only after
"continue".
"""

# ---- the rules that join the two

OUTCOMES: Mapping[Outcome, Move] = {
    "done": Move.DONE,
    "paused": Move.PAUSE,
    "stopped": Move.STOP,
    "failed": Move.FAIL,
    "lost": Move.FAIL,
    "preempted": Move.FAIL,
}
"""The move of a trial when its attempt ends with this outcome. FAIL becomes LOSE as long as the
retry budget of the cause lasts.
"""

_ANY: frozenset[Cause] = frozenset({"preempted", "infrastructure", "error", "stalled"})
CAUSES: Mapping[Outcome, frozenset[Cause]] = {
    "failed": _ANY,
    "lost": _ANY,
    # its node goes away, or only its process was asked to end
    "preempted": frozenset({"preempted", "infrastructure"}),
}
"""The causes that an outcome may have. An outcome that is not listed needs no cause."""

STANDING: Mapping[tuple[Leave | None, Move], Move] = {
    ("stop", Move.PAUSE): Move.STOP,
    ("stop", Move.LOSE): Move.STOP,
    ("pause", Move.LOSE): Move.PAUSE,
}
"""A decision stands even if the attempt was gone before it received the decision. Maps (verdict,
move) to the move that replaces it.
"""

REVIVAL: Mapping[Leave | None, Move] = {
    None: Move.RETRY,
    "restart": Move.RETRY,
    "stop": Move.STOP,
    "pause": Move.PAUSE,
}
"""The move of a failed trial when it is retried, by the verdict on its last attempt: that decision
still stands.
"""

HELD: frozenset[tuple[TrialState, Leave | None]] = frozenset(
    {(TrialState.RUNNING, "pause"), (TrialState.PAUSED, "pause")}
)
"""The (state, last verdict) pairs in which a trial is held: it continues only once the scheduler
promotes it.
"""


def consequence(outcome: Outcome, verdict: Leave | None, *, retries: bool) -> Move:
    """Return the trial's move when an attempt ends.

    Args:
        outcome: how the attempt ended.
        verdict: the scheduler's decision on the attempt, None for none.
        retries: whether the retry budget allows another attempt.

    """
    what = OUTCOMES[outcome]
    if what is Move.FAIL and retries:
        what = Move.LOSE
    return STANDING.get((verdict, what), what)


# ---- moving


class IllegalMove(Exception):
    """An event that the lifecycle does not allow: a bug of regrow, or a log that was tampered with.

    Attributes:
        trial: number of the trial; None if the event concerns the whole experiment.
        attempt: number of the attempt; None if the event concerns the trial.
        state: state in which the move was refused; None if there is no such trial or attempt.
        move: the refused move, to be read after "cannot".
        story: the last events of the trial, oldest first; empty until the history has added them.

    """

    def __init__(
        self,
        trial: int | None,
        state: str | None,
        move: str,
        *,
        attempt: int | None = None,
        story: tuple[str, ...] = (),
    ) -> None:
        super().__init__(trial, state, move)
        self.trial, self.state, self.move = trial, state, move
        self.attempt, self.story = attempt, story

    def __str__(self) -> str:
        return f"{self.told}; its last events: {'; '.join(self.story)}" if self.story else self.told

    @property
    def told(self) -> str:
        """The message without the trial's last events."""
        return f"{self._who} cannot {self.move}"

    @property
    def _who(self) -> str:
        if self.trial is None:
            return "the experiment"
        who = (
            f"trial {self.trial}"
            if self.attempt is None
            else f"attempt {self.attempt} of trial {self.trial}"
        )
        return (
            f"{who}, in state {str(self.state)!r},"
            if self.state is not None
            else f"{who}, which does not exist,"
        )


def move(trial: int, state: TrialState, what: Move) -> TrialState:
    """Return the state of a trial after `what`. Raises IllegalMove, naming trial, state and
    move.
    """
    try:
        return TABLE[state, what]
    except KeyError:
        raise IllegalMove(trial, state, what.value) from None


def move_attempt(trial: int, attempt: int, state: AttemptState, what: AttemptMove) -> AttemptState:
    """Return the state of an attempt after `what`. Raises IllegalMove, naming trial, attempt, state
    and move.
    """
    try:
        return ATTEMPT_TABLE[state, what]
    except KeyError:
        gone = ": it does not hold the lease" if state is AttemptState.ENDED else ""
        raise IllegalMove(trial, state, f"{what.value}{gone}", attempt=attempt) from None


# ---- showing


def mermaid() -> str:
    """Return the trials' table as a Mermaid state diagram."""
    return _diagram(TABLE, "pending: propose", [state for state in TrialState if state.final])


def mermaid_of_attempts() -> str:
    """Return the attempts' table as a Mermaid state diagram."""
    return _diagram(ATTEMPT_TABLE, "submitted: start", [AttemptState.ENDED])


def _diagram(table: Mapping[tuple[S, M], S], first: str, last: list[S]) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [
        f"    {before} --> {after}: {what}"
        for (before, what), after in table.items()
        if before != after
    ]
    stays: dict[S, list[M]] = {}
    for (before, what), after in table.items():
        if before == after:
            # Mermaid draws several arrows from a state to itself on top of each other
            stays.setdefault(before, []).append(what)
    lines += [f"    note left of {state}: {', '.join(several)}" for state, several in stays.items()]
    return "\n".join([*lines, *(f"    {s} --> [*]" for s in last)])
