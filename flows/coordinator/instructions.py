"""What a coordinator tells its driver: instructions, and the assignments of attempts."""

from __future__ import annotations

import msgspec

from regrow.search.events import Status
from regrow.search.history import History, TrialRecord
from regrow.search.planning.planner import seed_for
from regrow.tasks.ports.messages import Assignment


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver has to do.

    Attributes:
        submit: attempts to submit.
        forget: (trial, attempt) that were given up and may never answer: kill them if possible, and
            do not wait for them.
        drain: (node ID, reason) of nodes that are about to go away: place nothing there.
        relay: (node ID, name) of relays to start.
        avoid: IDs of nodes to avoid: those about to go away, and those that fell silent, which an
            attempt might never reach.
        nodes: IDs of nodes on which attempts run.
        trouble: why the log or checkpoints cannot be written at present; None if all is well.
        finished: how the session ended; None while it runs. These are then the last instructions.
        overdue: whether attempts that still run are to be ended now, as money or time is over.
        superseded: whether another driver took the experiment over.

    """

    submit: tuple[Assignment, ...] = ()
    forget: tuple[tuple[int, int], ...] = ()
    drain: tuple[tuple[str, str], ...] = ()
    relay: tuple[tuple[str, str], ...] = ()
    avoid: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    trouble: str | None = None
    finished: Status | None = None
    overdue: bool = False
    superseded: bool = False


def assignment(history: History, number: int, attempt: int) -> Assignment:
    """Return the assignment of a started attempt of trial `number`."""
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
        ran=sum(a.seconds or 0.0 for a in trial.attempts),
        avoid_spot=record.avoid_spot,
        market=record.market,
        every_seconds=record.every_seconds,
        attributes=trial.first_attributes,
        explanation=explanation(trial, attempt),
    )


def explanation(trial: TrialRecord, attempt: int) -> str:
    """Explain why there is another attempt, and where it continues; "" for the first one."""
    if attempt == 1:
        return ""
    before = trial.attempts[attempt - 2]
    why = f" ({before.message})" if before.message else ""
    where = f" on {before.where}" if before.where else ""
    how = "withdrawn" if before.withdrawn else before.outcome
    ending = f"attempt {before.number} was {how}{where}{why}"
    if trial.attempts[attempt - 1].clones and trial.changes:
        return f"{ending}; continues with the weights of trial {trial.changes[-1].source}"
    step = max(trial.checkpoints, default=0)
    start = (
        f"continues after step {step}, from its checkpoint"
        if step
        else "starts from the beginning, as it has no checkpoint"
    )
    return f"{ending}; {start}"
