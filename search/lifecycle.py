"""The lifecycle of trials and of their attempts: two tables of legal moves, and the rules that join
them, all of it data.

An illegal move raises and changes nothing. `docs/architecture.md` shows the diagrams that are made
from the same tables. How a move changes an experiment's history is in `history/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, TypeAlias

from regrow.search.events import Cause, Outcome

Leave: TypeAlias = Literal["stop", "pause", "restart"]
"""A verdict of the scheduler that ends the attempt. The remaining verdict, "continue", does not."""


class TrialState(StrEnum):
    """State of a trial. The last three are final."""

    PENDING = "pending"
    """Proposed; no attempt has started."""
    RUNNING = "running"
    """An attempt holds the trial's lease."""
    PAUSED = "paused"
    """Ended at a checkpoint, to free its slot or by an interruption; it may continue later."""
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
    (TrialState.PENDING, Move.STOP): TrialState.STOPPED,
    (TrialState.PAUSED, Move.START): TrialState.RUNNING,
    (TrialState.PAUSED, Move.STOP): TrialState.STOPPED,
    (TrialState.LOST, Move.START): TrialState.RUNNING,
    (TrialState.LOST, Move.STOP): TrialState.STOPPED,
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
    """It is to end by the scheduler's decision: at a checkpoint, or without one if stopped."""
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
    # the user stopped the trial before any node had reported that it runs there
    (AttemptState.SUBMITTED, AttemptMove.LEAVE): AttemptState.SUBMITTED,
    (AttemptState.SUBMITTED, AttemptMove.END): AttemptState.ENDED,
    (AttemptState.RUNNING, AttemptMove.REPORT): AttemptState.RUNNING,
    (AttemptState.RUNNING, AttemptMove.SAVE): AttemptState.RUNNING,
    (AttemptState.RUNNING, AttemptMove.GO_ON): AttemptState.RUNNING,
    (AttemptState.RUNNING, AttemptMove.LEAVE): AttemptState.LEAVING,
    (AttemptState.RUNNING, AttemptMove.END): AttemptState.ENDED,
    # the report was in transit when the decision was taken
    (AttemptState.LEAVING, AttemptMove.REPORT): AttemptState.LEAVING,
    (AttemptState.LEAVING, AttemptMove.SAVE): AttemptState.LEAVING,
    # the user stopped a trial that was to pause
    (AttemptState.LEAVING, AttemptMove.LEAVE): AttemptState.LEAVING,
    (AttemptState.LEAVING, AttemptMove.END): AttemptState.ENDED,
}
"""Every legal move of an attempt. The scheduler decides again only after "continue"."""

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

_ANY: frozenset[Cause] = frozenset({"preempted", "infrastructure", "error", "stalled", "oom"})
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
"""The move of a failed trial that is retried: the verdict on its last attempt still stands."""

HELD: frozenset[tuple[TrialState, Leave | None]] = frozenset(
    {(TrialState.RUNNING, "pause"), (TrialState.PAUSED, "pause")}
)
"""(state, last verdict) in which a trial is held: only a promotion continues it."""


def consequence(outcome: Outcome, verdict: Leave | None, *, retries: bool) -> Move:
    """Return the trial's move when an attempt ends. `verdict`: the scheduler's decision on it, None
    for none. `retries`: whether the retry budget allows another attempt.
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
        events = f"; its last events: {'; '.join(self.story)}" if self.story else ""
        return f"{self.summary}{events}"

    @property
    def summary(self) -> str:
        """The message without the trial's last events."""
        return f"{self._who} cannot {self.move}"

    @property
    def _who(self) -> str:
        if self.trial is None:
            return "the experiment"
        attempt = "" if self.attempt is None else f"attempt {self.attempt} of "
        who = f"{attempt}trial {self.trial}"
        if self.state is None:
            return f"{who}, which does not exist,"
        return f"{who}, in state {str(self.state)!r},"


def move(trial: int, state: TrialState, what: Move) -> TrialState:
    """Return the state of a trial after `what`. Raises IllegalMove."""
    try:
        return TABLE[state, what]
    except KeyError:
        raise IllegalMove(trial, state, what.value) from None


def move_attempt(trial: int, attempt: int, state: AttemptState, what: AttemptMove) -> AttemptState:
    """Return the state of an attempt after `what`. Raises IllegalMove."""
    try:
        return ATTEMPT_TABLE[state, what]
    except KeyError:
        gone = ": it does not hold the lease" if state is AttemptState.ENDED else ""
        raise IllegalMove(trial, state, f"{what.value}{gone}", attempt=attempt) from None
