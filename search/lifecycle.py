"""The life of trials and attempts: one table of legal moves.

An illegal move raises and changes nothing. `docs/architecture.md` shows the diagram that `mermaid()` makes from the
same table. What the moves do to an experiment's history is in `history.py`.
"""

from __future__ import annotations

from enum import StrEnum


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
    REPORT = "report"
    DONE = "done"
    PAUSE = "pause"
    STOP = "stop"
    LOSE = "lose"
    FAIL = "fail"
    RETRY = "retry"


_FINAL = frozenset({TrialState.DONE, TrialState.STOPPED, TrialState.FAILED})

TABLE: dict[tuple[TrialState, Move], TrialState] = {
    (TrialState.PENDING, Move.START): TrialState.RUNNING,
    (TrialState.PAUSED, Move.START): TrialState.RUNNING,
    (TrialState.PAUSED, Move.STOP): TrialState.STOPPED,
    (TrialState.LOST, Move.START): TrialState.RUNNING,
    (TrialState.RUNNING, Move.REPORT): TrialState.RUNNING,
    (TrialState.RUNNING, Move.DONE): TrialState.DONE,
    (TrialState.RUNNING, Move.PAUSE): TrialState.PAUSED,
    (TrialState.RUNNING, Move.STOP): TrialState.STOPPED,
    (TrialState.RUNNING, Move.LOSE): TrialState.LOST,
    (TrialState.RUNNING, Move.FAIL): TrialState.FAILED,
    (TrialState.FAILED, Move.RETRY): TrialState.LOST,
    (TrialState.FAILED, Move.PAUSE): TrialState.PAUSED,
    (TrialState.FAILED, Move.STOP): TrialState.STOPPED,
}
"""Every legal move; whatever is not in here is illegal."""


class IllegalMove(Exception):
    """An event that the lifecycle does not allow: a bug of regrow, or a log that was tampered with."""

    def __init__(self, trial: int, state: TrialState | None, move: str) -> None:
        super().__init__(trial, state, move)
        self.trial, self.state, self.move = trial, state, move

    def __str__(self) -> str:
        where = f"in state {self.state.value!r}" if self.state else "which does not exist"
        return f"trial {self.trial}, {where}, cannot {self.move}"


def move(trial: int, state: TrialState, what: Move) -> TrialState:
    """The state after `what`. Raises IllegalMove, naming trial, state and move."""
    try:
        return TABLE[state, what]
    except KeyError:
        raise IllegalMove(trial, state, what.value) from None


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> pending: propose"]
    lines += [f"    {a} --> {b}: {m}" for (a, m), b in TABLE.items()]
    lines += [f"    {s} --> [*]" for s in TrialState if s.final]
    return "\n".join(lines)
