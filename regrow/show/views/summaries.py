"""An experiment as plain data: the stable format of `show --json` and `trials --json`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from regrow.infra.log.rows import Sorted
from regrow.infra.state.notes import Notes
from regrow.infra.state.places import Places
from regrow.infra.state.sources import changes, code_changed
from regrow.search import schedulers
from regrow.search.history import History, TrialRecord, cost, repeats, waste
from regrow.search.history.repeats import Repeated, shown
from regrow.search.lifecycle import TrialState
from regrow.show.views import agents, budget
from regrow.tasks.errors import UserError

UNKNOWN = "unknown"
"""Version of the code of a session that did not record it."""
POINT = ("trial", "step", "attempt")
"""Keys of a point that are not metrics."""


def trial(history: History, number: int) -> TrialRecord:
    """Return a trial. Raises UserError if there is none of this number."""
    count = len(history.trials)
    if not 0 <= number < count:
        existing = f"it has the trials 0 to {count - 1}" if count else "it has no trials yet"
        raise UserError(f"there is no trial {number} in {history.spec.name!r}; {existing}")
    return history.trials[number]


def status(history: History, *, alive: bool, lost: str = "interrupted") -> str:
    """Return running, finished, stopped, interrupted or failed. A session that was not closed
    counts as `lost`, unless it is alive; the page tells such a one from one that its user
    interrupted.
    """
    if history.closed is not None:
        return history.closed.status
    return "running" if alive else lost


def best(history: History) -> dict[str, Any] | None:
    """Return the best trial, or None; `checkpoint`: that step's manifest, the newest, or None.

    With repeats, the best trial of the configuration whose mean is the best, and in addition the
    mean and standard deviation of the configuration's `trials`.
    """
    found = repeats.best(history)
    if found is None:
        return None
    trial, mean = found.trial, found.mean
    checkpoint = trial.checkpoint_at(found.step)
    view = {
        "trial": trial.number,
        "value": found.value,
        "step": found.step,
        "config": history.spec.space.nest(reached_with(history, trial)),
        "checkpoint": checkpoint.manifest if checkpoint is not None else None,
    }
    return view if mean is None else {**view, **_mean(mean)}


def _mean(found: Repeated) -> dict[str, Any]:
    numbers = [trial.number for trial in found.trials]
    return {"trials": numbers, "count": len(numbers), "mean": found.mean, "sd": found.sd}


def reached(view: Mapping[str, Any]) -> str:
    """Return the value that a view of `best` is ranked by, with its deviation, as text."""
    return shown(view.get("mean", view["value"]), view.get("sd"))


def ranked(history: History) -> list[TrialRecord]:
    """Return the trials, best first; those without a value last."""
    sign = history.objective.sign
    return sorted(
        history.trials,
        key=lambda t: (t.best is None, sign * t.best[0] if t.best else 0.0, t.number),
    )


def reached_with(history: History, trial: TrialRecord) -> dict[str, Any]:
    """Return the flat configuration of a trial's best value, else its current one."""
    if trial.changes and trial.best is not None:
        return history.path(trial.number, trial.best[1])[-1]
    return trial.config


def reported(history: History) -> list[str]:
    """Return the names of all metrics, those of the specification first, then as they were first
    reported.
    """
    names = dict.fromkeys(metric.name for metric in history.spec.metrics)
    for trial in history.trials:
        names |= dict.fromkeys(measured(trial))
    return list(names)


def measured(trial: TrialRecord) -> Mapping[str, float | None]:
    """Return a trial's metrics at the step of its best value, else at its last step."""
    return trial.curve.shown(trial.best[1] if trial.best else trial.step)


def state_text(trial: TrialRecord) -> str:
    """Return a trial's state, for people: "done", "done, dropped"."""
    return f"{trial.state.value}, dropped" if trial.excluded else trial.state.value


def representative_step(history: History, trial: TrialRecord) -> int:
    """Return the step whose metrics represent a trial, 0 before the first: that of its best value;
    the last one if there are several metrics; if no step met the constraints, the best of all
    steps.
    """
    return trial.step if len(history.spec.metrics) > 1 else trial.curve.representative


def checkpoint(history: History, trial: TrialRecord, places: Places | None = None) -> str | None:
    """Return the manifest of a trial's checkpoint: that of its representative step, else the
    newest, None for none.

    `places`: return its full address, a path or an S3 URL, instead of its key in the store.
    """
    found = trial.checkpoint_at(representative_step(history, trial))
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


def means(history: History) -> list[dict[str, Any]]:
    """Return configurations that were repeated, best mean first, with mean and standard deviation
    (0 for one) of the best values of their trials that are done. Empty without repeats.
    """
    return [
        {"config": history.spec.space.nest(one.trials[0].config), **_mean(one)}
        for one in repeats.repeated(history)
    ]


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
        **({"repeats": found} if (found := means(history)) else {}),
        "counts": {state.value: count for state, count in history.counts.items()},
        "total": None if history.unlimited else history.total,
        "trials": [trial_view(history, trial) for trial in history.trials],
        "wasted_steps": history.lost_steps,
        "waste": _waste(waste.of_all(history)),
        "steps": cost.steps(history),
        "slot_hours": round(spent.hours, 6),
        "cost": None if spent.money is None else round(spent.money, 6),
        "cost_outside_attempts": round(spent.rest, 6),
        **({"store": _store(spent)} if spent.traffic else {}),
        **({"limits": used} if (used := budget.view(history, now, alive=alive)) else {}),
        "wasted_cost": None if (lost := waste.money(history)) is None else round(lost, 6),
        "elapsed_s": round(history.elapsed(now if alive else None), 3),
        "sessions": sessions(history),
        **({"agents": found} if (found := agents.view(history, alive=alive)) else {}),
        **({} if notes is None else notes.view()),
    }


def _store(spent: cost.Cost) -> dict[str, float]:
    return {
        "cost": round(spent.store, 6),
        "writes": spent.traffic.writes,
        "reads": spent.traffic.reads,
        "bytes_sent": spent.traffic.sent,
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


def ran_with(history: History, trial: TrialRecord, version: str) -> bool:
    """Return whether any attempt of a trial ran with a version of the code: the first characters of
    its commit, of the hash of the trainable's file, or of that of all source files.
    """
    return any(
        one is not None and str(one).startswith(version)
        for environment in _ran_in(history, trial)
        for one in _hashes(environment)
    )


def code_version(environment: Mapping[str, Any]) -> str:
    """Return a version of the code, for people: the first 8 characters of its commit; with
    uncommitted changes followed by + and those of the hash of its source files; of this hash alone
    outside a repository. UNKNOWN if neither is known.
    """
    commit, own, whole = (None if one is None else str(one)[:8] for one in _hashes(environment))
    if commit is None:
        return whole or own or UNKNOWN
    return f"{commit}+{whole or own or ''}" if environment["git"].get("dirty") else commit


def versions(history: History, trial: TrialRecord | None = None) -> list[str]:
    """Return the versions of the code with which the sessions were run, or the attempts of a trial:
    each once, by its last use, the latest last.
    """
    found = (
        [
            one.environment
            for one in history.openings
            if one.environment or one is history.openings[0]
        ]
        if trial is None
        else _ran_in(history, trial)
    )
    return list(dict.fromkeys(map(code_version, reversed(found))))[::-1]


def _ran_in(history: History, trial: TrialRecord) -> list[Mapping[str, Any]]:
    """Return the environment of each attempt's session; empty where it is unknown."""
    openings = [opened for opened in history.openings if opened.environment]
    places = [bisect_right(openings, a.t_started, key=lambda one: one.t) for a in trial.attempts]
    return [openings[place - 1].environment if place else {} for place in places]


def _hashes(environment: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return the commit, the hash of the trainable's file and that of all source files, or None."""
    code = environment.get("code", {})
    commit = environment.get("git", {}).get("commit")
    return commit, code.get("sha256"), code.get("working_dir_sha256")


def code_line(history: History) -> str | None:
    """Return a line about the last change of the code, and when; None if it never changed."""
    openings = [opened for opened in history.openings if opened.environment]
    lines = [code_changed(before, after.environment) for before, after in pairwise(openings)]
    return next((line for line in reversed(lines) if line is not None), None)


def trial_view(history: History, trial: TrialRecord) -> dict[str, Any]:
    """Return one trial: its best value, its steps, its attempts."""
    return {
        "number": trial.number,
        "state": trial.state.value,
        "dropped": trial.excluded,
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
                "gpus": a.gpus,
                **({"workers": a.width} if history.spec.resources.ranked else {}),
                "node_type": a.node_type,
                "slot_seconds": round(a.slot_seconds(history.t_last), 3),
                "price_per_hour": a.price,
                "market": a.market,
                "node_price_per_hour": a.node_price,
                "cost": a.cost_at(history.t_last),
                "cause": a.cause,
                "reason": a.message,
                "usage": None if a.usage is None else msgspec.to_builtins(a.usage),
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
    """Yield every (trial, step) once, with its attempt and metrics, by `metric_key`."""
    for number, attempt, row in found:
        metrics = {metric_key(name): value for name, value in row.metrics.items()}
        yield {**metrics, "trial": number, "step": row.step, "attempt": attempt}


def metric_key(name: str) -> str:
    """Return a metric's key in a point, with `metrics.` before a name that is one of our keys."""
    return f"metrics.{name}" if name in POINT else name
