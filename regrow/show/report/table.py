"""The report's table of trials as plain data: columns, cells, attempts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from regrow.search.history import Attempt, History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.search.space.domains import Constant
from regrow.search.space.space import Parameter
from regrow.show.exports.frames import numeric
from regrow.show.figures import series
from regrow.show.views import machine_use, summaries
from regrow.show.views.names import HEADING, LONGEST, shortened
from regrow.show.web import as_yaml

PARAMETERS = 12
METRICS = 12
FEW = 6
"""Parameters and metrics up to which their names have room."""
TRACES = 200
"""Maximum number of different tracebacks, for a page far below 100 MB."""
TRACE = 6000
"""Maximum characters of a traceback: the last ones, which have the error."""


def rows(history: History) -> dict[str, Any]:
    """Return `columns`, `trials`, `traces` and `sorted_by`, the initial sort column (None: none);
    also `ranked` if attempts have workers.
    """
    parameters, metrics = varied(history), measured(history)
    modes = {metric.name: metric.mode for metric in history.spec.metrics}
    names = titles([*parameters, *metrics])
    columns: list[dict[str, Any]] = [
        {"title": "trial", "kind": "trial", "number": False},
        {"title": "state", "kind": "state", "number": False},
        *(
            {"title": names[n], "name": n, "kind": "parameter", "number": number}
            for n, number in parameters.items()
        ),
        *(
            {
                "title": names[n],
                "name": n,
                "kind": "metric" if place else "objective",
                "number": True,
                "best_is_most": modes.get(n) == "max",
            }
            for place, n in enumerate(metrics)
        ),
        {"title": "at step", "kind": "count", "number": True},
        {"title": "steps", "kind": "count", "number": True, "best_is_most": True},
        {"title": "attempts", "kind": "count", "number": True, "best_is_most": True},
        {"title": "time", "kind": "seconds", "number": True, "best_is_most": True},
    ]
    traces: dict[str, int] = {}
    trials = [_trial(history, trial, metrics, list(parameters), traces) for trial in history.trials]
    found = {
        "columns": columns,
        "trials": trials,
        "traces": list(traces),
        "sorted_by": 2 + len(parameters) if history.best is not None else None,
    }
    return {**found, "ranked": True} if history.spec.resources.ranked else found


def titles(names: Sequence[str]) -> dict[str, str]:
    """Return what stands above each parameter and metric: its name, cut if there are many."""
    most = HEADING if len(names) <= FEW else LONGEST
    return dict(zip(names, shortened(names, [most] * len(names)), strict=True))


def measured(history: History) -> list[str]:
    """Return the metrics that have a column, the objective first."""
    return summaries.reported(history)[:METRICS]


def left_out(history: History) -> str:
    """Return how many parameters and metrics have no column: '3 parameters, 1 metric'; "" for
    none.
    """
    counts = {
        "parameter": sum(map(_varies, history.spec.space.parameters)) - PARAMETERS,
        "metric": len(summaries.reported(history)) - METRICS,
    }
    return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items() if n > 0)


def varied(history: History) -> dict[str, bool]:
    """Return the parameters that are not constants, and whether their values are numbers."""
    found: dict[str, bool] = {}
    for parameter in history.spec.space.parameters:
        if len(found) < PARAMETERS and _varies(parameter):
            name = parameter.name
            found[name] = numeric(t.config[name] for t in history.trials if name in t.config)
    return found


def _varies(parameter: Parameter) -> bool:
    return not isinstance(parameter.domain, Constant) or bool(parameter.when)


def _trial(
    history: History,
    trial: TrialRecord,
    metrics: list[str],
    parameters: list[str],
    traces: dict[str, int],
) -> dict[str, Any]:
    value, step = trial.best if trial.best is not None else (None, None)
    row = {**summaries.measured(trial), metrics[0]: value}
    config = summaries.reached_with(history, trial)
    seconds = [s for a in trial.attempts if (s := _seconds(history, a)) is not None]
    return {
        "cells": [
            trial.number,
            summaries.state_text(trial),
            *(_cell(config.get(name)) for name in parameters),
            *(row.get(name) for name in metrics),
            step,
            trial.step,
            len(trial.attempts),
            round(sum(seconds), 3) if seconds else None,
        ],
        "best": trial.number == history.best,
        "config": as_yaml(history.spec.space.nest(config)),
        "changes": [_change(trial, place) for place in range(len(trial.changes))],
        "attempts": [_attempt(history, trial, a, traces) for a in trial.attempts],
    }


def _cell(value: Any) -> float | str | None:
    """Return a value as it is shown and sorted: numbers, and everything else as text."""
    plain = value is None or isinstance(value, str) or numeric([value])
    return value if plain else json.dumps(value, ensure_ascii=False)


def _change(trial: TrialRecord, place: int) -> str:
    change = trial.changes[place]
    before = trial.changes[place - 1].config if place else trial.proposed
    names = dict.fromkeys([*before, *change.config])
    parts = [
        f"{n} {series.short(before.get(n))} → {series.short(change.config.get(n))}"
        for n in names
        if before.get(n) != change.config.get(n)
    ]
    from_ = f"the weights of trial {change.source}" if change.source is not None else ""
    if change.source_step is not None:
        from_ += f" at its step {change.source_step}"
    changes = "; ".join(filter(None, [from_, ", ".join(parts)]))
    return f"after step {change.step}: {changes or 'nothing'}"


def _seconds(history: History, attempt: Attempt) -> float | None:
    """Return how long it ran, or runs until the last event; None before it began."""
    if attempt.t_began is None:
        return None
    end = history.t_last if attempt.t_ended is None else attempt.t_ended
    return max(0.0, end - attempt.t_began)


def _attempt(
    history: History, trial: TrialRecord, attempt: Attempt, traces: dict[str, int]
) -> dict[str, Any]:
    trace = attempt.trace[-TRACE:]
    kept = trace and (trace in traces or len(traces) < TRACES)
    seconds = _seconds(history, attempt)
    return {
        "number": attempt.number,
        "node": attempt.seat or "",
        "workers": attempt.width,
        "begun": attempt.t_began is not None,
        "outcome": attempt.outcome or ("running" if trial.state is TrialState.RUNNING else "lost"),
        "cause": attempt.cause,
        "from": attempt.from_step,
        "to": attempt.to_step,
        "seconds": None if seconds is None else round(seconds, 3),
        "use": machine_use.of_attempt(attempt),
        "message": attempt.reason,
        "trace": traces.setdefault(trace, len(traces)) if kept else None,
    }
