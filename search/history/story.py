"""The last events of a trial as text, made from its records. An error shows them beside the refused
move.
"""

from __future__ import annotations

from collections.abc import Iterator

from regrow.search.history.records import Attempt, TrialRecord

MOST = 8
"""Events that are shown."""
_SHOWN = 80  # characters of a message


def story(trial: TrialRecord, zero: float) -> tuple[str, ...]:
    """Return the last events, oldest first, attempt by attempt, with known times in seconds after
    `zero`.
    """
    told = ["it was proposed"]
    for attempt in trial.attempts[-MOST:]:
        told += [
            what if t is None else f"{what} at {t - zero:.1f} s" for t, what in _of(trial, attempt)
        ]
    return tuple(told[-MOST:])


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
