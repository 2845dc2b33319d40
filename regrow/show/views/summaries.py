"""An experiment's history as plain data: the stable format of `regrow show --json` and `regrow
trials --json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from regrow.infra.log.rows import Sorted
from regrow.infra.state.notes import Notes
from regrow.infra.state.places import Places
from regrow.infra.state.sources import changes, code_changed
from regrow.search import schedulers
from regrow.search.history import History, TrialRecord, cost, waste
from regrow.search.lifecycle import TrialState

POINT = ("trial", "step", "attempt")
"""Keys of a point that are not metrics."""


def status(history: History, *, alive: bool, lost: str = "interrupted") -> str:
    """Return running, finished, stopped, interrupted or failed. A session that was not closed
    counts as `lost`, unless it is alive; the page tells such a one from one that its user
    interrupted.
    """
    if history.closed is not None:
        return history.closed.status
    return "running" if alive else lost


def best(history: History) -> dict[str, Any] | None:
    """Return the best trial, None before the first report. `checkpoint` is the manifest of that
    step, else the newest, else None.
    """
    trial = history.leader
    if trial is None or trial.best is None:
        return None
    value, step = trial.best
    checkpoint = trial.checkpoint_at(step)
    return {
        "trial": trial.number,
        "value": value,
        "step": step,
        # it may have changed since
        "config": history.spec.space.nest(history.path(trial.number, step)[-1]),
        "checkpoint": checkpoint.manifest if checkpoint is not None else None,
    }


def standing_step(history: History, trial: TrialRecord) -> int:
    """Return the step whose metrics represent a trial, 0 before the first: that of its best value;
    the last one if there are several metrics; if no step met the constraints, the best of all
    steps.
    """
    return trial.step if len(history.spec.metrics) > 1 else trial.curve.standing


def checkpoint(history: History, trial: TrialRecord, places: Places | None = None) -> str | None:
    """Return the manifest of a trial's checkpoint: that of its representative step, else the
    newest, None for none.

    `places`: return its full address, a path or an S3 URL, instead of its key in the store.
    """
    found = trial.checkpoint_at(standing_step(history, trial))
    if found is None:
        return None
    return found.manifest if places is None else places.address(history.spec.name, found.manifest)


def front(history: History) -> list[dict[str, Any]]:
    """Return the Pareto front by trial, with the metrics of its last step; empty for one metric."""
    if len(history.spec.metrics) == 1:
        return []
    names = [metric.name for metric in history.spec.metrics]
    return [
        {
            "trial": number,
            "metrics": {name: history.trials[number].curve.column(name)[-1] for name in names},
            "config": history.spec.space.nest(history.trials[number].config),
        }
        for number in history.front
    ]


def repeats(history: History) -> list[dict[str, Any]]:
    """Return configurations that were repeated, best mean first, with mean and standard deviation
    (0 for one) of the best values of their trials that are done. Empty without repeats.
    """
    count, sign = history.spec.repeats, history.objective.sign
    found: list[dict[str, Any]] = []
    for first in range(0, len(history.trials) if count > 1 else 0, count):
        group = [
            t
            for t in history.trials[first : first + count]
            if t.state is TrialState.DONE and t.best is not None
        ]
        values = [t.best[0] for t in group if t.best is not None]
        if values:
            found.append(
                {
                    "config": history.spec.space.nest(group[0].config),
                    "trials": [t.number for t in group],
                    "count": len(values),
                    "mean": fmean(values),
                    "sd": stdev(values) if len(values) > 1 else 0.0,
                }
            )
    return sorted(found, key=lambda one: (sign * one["mean"], one["trials"]))


def show(
    history: History, *, alive: bool, now: float, notes: Notes | None = None
) -> dict[str, Any]:
    """Return the whole experiment, as `regrow show NAME --json` prints it. `now` is seconds since
    the epoch; `notes` None: it is at a place that cannot have notes.
    """
    spec = history.spec
    spent = cost.of(history, now if alive else history.t_last)
    return {
        "name": spec.name,
        "status": status(history, alive=alive),
        "metric": spec.objective.name,
        "mode": spec.objective.mode,
        "search": spec.search,
        "schedule": spec.schedule,
        "auto": history.choice.why,
        "best": best(history),
        **({"front": found} if (found := front(history)) else {}),
        **({"repeats": means} if (means := repeats(history)) else {}),
        "counts": {state.value: count for state, count in history.counts.items()},
        "total": history.total,
        "trials": [trial_view(history, trial) for trial in history.trials],
        "wasted_steps": history.lost_steps,
        "waste": _waste(waste.of_all(history)),
        "steps": cost.steps(history),
        "slot_hours": round(spent.hours, 6),
        "cost": None if spent.money is None else round(spent.money, 6),
        "wasted_cost": None if (lost := waste.money(history)) is None else round(lost, 6),
        "elapsed_s": round(history.elapsed(now if alive else None), 3),
        "sessions": sessions(history),
        **({} if notes is None else notes.view()),
    }


def sessions(history: History) -> list[dict[str, Any]]:
    """Return for each session when it began (seconds since the epoch), which code it ran, and which
    files of the code differ from the session before. Unknown values are None.
    """
    found: list[dict[str, Any]] = []
    before: Mapping[str, Any] = {}
    for opened in history.openings:
        environment = opened.environment
        git, code = environment.get("git", {}), environment.get("code", {})
        found.append(
            {
                "began": opened.t,
                "commit": git.get("commit"),
                "dirty": git.get("dirty"),
                "file": code.get("file"),
                "file_sha256": code.get("sha256"),
                "working_dir_sha256": code.get("working_dir_sha256"),
                "changed": changes(before, environment),
                "retry_failed": opened.retry_failed,
            }
        )
        before = environment or before
    return found


def code_line(history: History) -> str | None:
    """Return a line about the last change of the code, and when; None if it never changed."""
    told = [opened for opened in history.openings if opened.environment]
    lines = [code_changed(before, after.environment) for before, after in pairwise(told)]
    return next((line for line in reversed(lines) if line is not None), None)


def trial_view(history: History, trial: TrialRecord) -> dict[str, Any]:
    """Return one trial: its best value, its steps, its attempts."""
    return {
        "number": trial.number,
        "state": trial.state.value,
        "config": history.spec.space.nest(trial.config),
        "value": trial.best[0] if trial.best else None,
        "steps": trial.step,
        "cost": cost.of_trial(trial, history.t_last),
        "waste": _waste(waste.of_trial(trial)),
        "attempts": [
            {
                "attempt": a.number,
                "outcome": a.outcome
                or ("running" if trial.state is TrialState.RUNNING else "lost"),
                "from_step": a.from_step,
                "to_step": a.to_step,
                "node": a.where,
                **({"workers": a.width} if history.spec.resources.ranked else {}),
                "node_type": a.node_type,
                "slot_seconds": round(a.slot_seconds(history.t_last), 3),
                "price_per_hour": a.price,
                "market": a.market,
                "node_price_per_hour": a.node_price,
                "cost": a.cost_at(history.t_last),
                "cause": a.cause,
                "reason": a.message,
            }
            for a in trial.attempts
        ],
    }


def _waste(found: dict[str, waste.Waste]) -> dict[str, dict[str, float]]:
    """Return, by class of failure: attempts, repeated steps, slot-seconds, and their cost."""
    return {
        kind: {
            "attempts": w.attempts,
            "steps": w.steps,
            "node_seconds": round(w.seconds, 3),
            "cost": round(w.money, 6),
        }
        for kind, w in found.items()
    }


def schedule(history: History, number: int, until: int) -> dict[str, Any]:
    """Return the keys of a specification with which one trial trains as trial `number` was trained
    up to step `until`: with the configurations of all trials whose weights it took over, in turn.
    """
    path = history.path(number, until)
    policy = [[step, path[step]] for step in range(1, len(path)) if path[step] != path[step - 1]]
    return {
        "points": [history.spec.space.nest(path[0])],
        "schedule": schedulers.replaying(policy),
        "trials": 1,
        "max_steps": len(path),
    }


def points(found: Sorted) -> Iterator[dict[str, Any]]:
    """Yield every (trial, step) once, with the attempt that reported it and its metrics, by the
    names of `metric_key`.
    """
    for number, attempt, row in found:
        metrics = {metric_key(name): value for name, value in row.metrics.items()}
        yield {**metrics, "trial": number, "step": row.step, "attempt": attempt}


def metric_key(name: str) -> str:
    """Return the key of a metric in a point: its name, with the prefix `metrics.` if it equals one
    of our keys.
    """
    return f"metrics.{name}" if name in POINT else name
