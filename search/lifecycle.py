"""The life of trials and of their attempts: two tables of legal moves, and the rules that join them, all of it data.

An illegal move raises and changes nothing. `docs/architecture.md` shows the diagrams that are made from the same tables. What
the moves do to an experiment's history is in `history/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, TypeAlias, TypeVar

from regrow.search.events import Cause, Outcome

S = TypeVar("S", bound=StrEnum)
M = TypeVar("M", bound=StrEnum)

Leave: TypeAlias = Literal["stop", "pause", "restart"]
"""A verdict of the scheduler that ends the attempt; the other one, "continue", does not."""


class TrialState(StrEnum):
    """Where a trial stands. The last three are final."""

    PENDING = "pending"
    """Proposed; no attempt has started."""
    RUNNING = "running"
    """An attempt holds its lease."""
    PAUSED = "paused"
    """Ended at a checkpoint to make room or because the experiment was interrupted; goes on later, or is given up."""
    LOST = "lost"
    """Its attempt failed or was lost within the retry budget; another attempt follows."""
    DONE = "done"
    """Ran to its end."""
    STOPPED = "stopped"
    """Stopped early by a decision."""
    FAILED = "failed"
    """Its retry budget is used up; it is tried again only if the user asks for that."""

    @property
    def final(self) -> bool:
        """Whether no attempt will follow, unless the user asks for another one of a failed trial."""
        return self in _FINAL


class Move(StrEnum):
    """What happens to a trial."""

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
"""Every legal move of a trial; whatever is not in here is illegal."""


class AttemptState(StrEnum):
    """Where an attempt stands. It holds its trial's lease until it has ended."""

    SUBMITTED = "submitted"
    """Started by a decision; no node has said that it runs there."""
    RUNNING = "running"
    """A node runs it."""
    LEAVING = "leaving"
    """The scheduler decided that it ends: at a checkpoint, unless the trial stops for good."""
    ENDED = "ended"
    """Over, in whatever way; its outcome says which."""


class AttemptMove(StrEnum):
    """What happens to an attempt."""

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
    (AttemptState.LEAVING, AttemptMove.REPORT): AttemptState.LEAVING,  # what was on its way when that was decided
    (AttemptState.LEAVING, AttemptMove.SAVE): AttemptState.LEAVING,
    (AttemptState.LEAVING, AttemptMove.END): AttemptState.ENDED,
}
"""Every legal move of an attempt. The scheduler decides on it once more only if it let it go on."""

# ---- the rules that join the two ---------------------------------------------------------------------------------------

OUTCOMES: Mapping[Outcome, Move] = {
    "done": Move.DONE, "paused": Move.PAUSE, "stopped": Move.STOP,
    "failed": Move.FAIL, "lost": Move.FAIL, "preempted": Move.FAIL,
}
"""What an attempt's end is for its trial. FAIL is LOSE as long as the retry budget of its cause lasts."""

_ANY: frozenset[Cause] = frozenset({"preempted", "infrastructure", "error", "stalled"})
CAUSES: Mapping[Outcome, frozenset[Cause]] = {"failed": _ANY, "lost": _ANY, "preempted": frozenset({"preempted"})}
"""The causes that an outcome may have; one that is not in here needs none."""

STANDING: Mapping[tuple[Leave | None, Move], Move] = {
    ("stop", Move.PAUSE): Move.STOP,
    ("stop", Move.LOSE): Move.STOP,
    ("pause", Move.LOSE): Move.PAUSE,
}
"""A decision stands, also where the attempt was gone before it heard of it: (verdict, move) and the move in its place."""

REVIVAL: Mapping[Leave | None, Move] = {
    None: Move.RETRY, "restart": Move.RETRY, "stop": Move.STOP, "pause": Move.PAUSE
}
"""What becomes of a failed trial that is tried again, by the verdict on its last attempt: that stands, too."""

HELD: frozenset[tuple[TrialState, Leave | None]] = frozenset({(TrialState.RUNNING, "pause"), (TrialState.PAUSED, "pause")})
"""Where a trial, by its state and the verdict on its last attempt, is held: only its promotion lets it go on."""


def consequence(outcome: Outcome, verdict: Leave | None, *, retries: bool) -> Move:
    """What the end of an attempt, on which there is a `verdict`, is for its trial; `retries`: its budget allows another one."""
    what = OUTCOMES[outcome]
    if what is Move.FAIL and retries:
        what = Move.LOSE
    return STANDING.get((verdict, what), what)


# ---- moving ------------------------------------------------------------------------------------------------------------


class IllegalMove(Exception):
    """An event that the lifecycle does not allow: a bug of regrow, or a log that was tampered with.

    `trial` None: it concerns the whole experiment. `attempt` None: it concerns the trial. `state` None: there is no such trial
    or attempt. `story` has the last events of the trial, oldest first, once the history has added them.
    """

    def __init__(
        self, trial: int | None, state: str | None, move: str, *, attempt: int | None = None, story: tuple[str, ...] = ()
    ) -> None:
        super().__init__(trial, state, move)
        self.trial, self.state, self.move = trial, state, move
        self.attempt, self.story = attempt, story

    def __str__(self) -> str:
        told = f"{self._who} cannot {self.move}"
        return f"{told}; its last events: {'; '.join(self.story)}" if self.story else told

    @property
    def _who(self) -> str:
        if self.trial is None:
            return "the experiment"
        who = f"trial {self.trial}" if self.attempt is None else f"attempt {self.attempt} of trial {self.trial}"
        return f"{who}, in state {str(self.state)!r}," if self.state is not None else f"{who}, which does not exist,"


def move(trial: int, state: TrialState, what: Move) -> TrialState:
    """The state of a trial after `what`. Raises IllegalMove, naming trial, state and move."""
    try:
        return TABLE[state, what]
    except KeyError:
        raise IllegalMove(trial, state, what.value) from None


def move_attempt(trial: int, attempt: int, state: AttemptState, what: AttemptMove) -> AttemptState:
    """The state of an attempt after `what`. Raises IllegalMove, naming trial, attempt, state and move."""
    try:
        return ATTEMPT_TABLE[state, what]
    except KeyError:
        gone = ": it does not hold the lease" if state is AttemptState.ENDED else ""
        raise IllegalMove(trial, state, f"{what.value}{gone}", attempt=attempt) from None


# ---- showing -----------------------------------------------------------------------------------------------------------


def mermaid() -> str:
    """The trials' table as a Mermaid state diagram."""
    return _diagram(TABLE, "pending: propose", [state for state in TrialState if state.final])


def mermaid_of_attempts() -> str:
    """The attempts' table as a Mermaid state diagram."""
    return _diagram(ATTEMPT_TABLE, "submitted: start", [AttemptState.ENDED])


def _diagram(table: Mapping[tuple[S, M], S], first: str, last: list[S]) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {before} --> {after}: {what}" for (before, what), after in table.items() if before != after]
    stays: dict[S, list[M]] = {}
    for (before, what), after in table.items():
        if before == after:
            stays.setdefault(before, []).append(what)  # several arrows of a state to itself are drawn on one another
    lines += [f"    note left of {state}: {', '.join(several)}" for state, several in stays.items()]
    return "\n".join([*lines, *(f"    {s} --> [*]" for s in last)])
