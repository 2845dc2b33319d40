"""Assignments of attempts, derived from the history."""

from __future__ import annotations

from regrow.search.history import History, TrialRecord
from regrow.search.planning.planner import seed_for
from regrow.tasks.ports.messages import Assignment


def assignment(history: History, number: int, attempt: int) -> Assignment:
    """Return the assignment of an attempt of trial `number`, which was started and has not
    ended.
    """
    trial, spec = history.trials[number], history.spec
    record = trial.attempts[attempt - 1]
    given = {name: value for name, value in trial.config.items() if name not in trial.suggested}
    return Assignment(
        trial=number,
        attempt=attempt,
        config=spec.space.nest(given),
        seed=seed_for(spec.seed, number, "trial"),
        until=record.until,
        checkpoints=tuple(record.checkpoints),
        clones=record.clones,
        step=trial.step,
        width=record.width,
        needs=spec.resources.needs(record.width),
        suggested={name: trial.config[name] for name in trial.suggested},
        values=tuple(trial.values) if spec.stop.trial.watches else (),
        times=tuple(trial.curve.clock) if spec.step_metric is not None else (),
        ran=sum(
            a.t_ended - a.t_began
            for a in trial.attempts
            if a.t_began is not None and a.t_ended is not None
        ),
        avoid_spot=record.avoid_spot,
        market=record.market,
        story=story(trial, attempt),
    )


def story(trial: TrialRecord, attempt: int) -> str:
    """Explain to people why there is another attempt, and from where it continues. Empty for the
    first attempt.
    """
    if attempt == 1:
        return ""
    before = trial.attempts[attempt - 2]
    why = f" ({before.message})" if before.message else ""
    where = f" on {before.where}" if before.where else ""
    how = "withdrawn" if before.withdrawn else before.outcome
    told = f"attempt {before.number} was {how}{where}{why}"
    if trial.attempts[attempt - 1].clones and trial.changes:
        return f"{told}; continues with the weights of trial {trial.changes[-1].source}"
    step = max(trial.checkpoints, default=0)
    start = (
        f"continues after step {step}, from its checkpoint"
        if step
        else "starts from the beginning, as it has no checkpoint"
    )
    return f"{told}; {start}"
