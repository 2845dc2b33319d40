"""The table of trials, one page at a time: sorted and filtered on the server, so that 10,000 trials
do not make a large page.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from regrow.apps.page.asked import Sort, TableQuery
from regrow.apps.page.groups import offered, part
from regrow.search.durations import duration
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.search.numbers import readable
from regrow.show.figures import series
from regrow.show.report.table import left_out, measured, titles, varied
from regrow.show.views import machine_use, summaries

PER_PAGE = 50
CELL = 60
"""Maximum characters of a cell."""
NOT_BEGUN = "no attempt yet"
"""Title of the group of trials that no version of the code has run."""


def table(history: History, asked: TableQuery) -> dict[str, Any]:
    """Return columns, rows and their position among all. A page beyond the last is the last one."""
    down = _down(history, asked)
    known = summaries.versions(history)
    found = [t for t in history.trials if _matches(history, t, asked)]
    key = _KEYS[asked.sort]
    valued = [(value, trial) for trial in found if (value := key(trial)) is not None]
    valued.sort(key=lambda pair: (-pair[0] if down else pair[0], pair[1].number))
    none = [trial for trial in found if key(trial) is None]  # last, in either order
    ordered = [*(trial for _, trial in valued), *none]
    keys = {
        "state": lambda trial: [trial.state.value],
        "version": lambda trial: summaries.versions(history, trial)[-1:] or [NOT_BEGUN],
    }
    order = [state.value for state in TrialState] if asked.group == "state" else known[::-1]
    shown = part(ordered, keys[asked.group] if asked.group else None, order, asked.page, PER_PAGE)
    names, metrics = list(varied(history)), measured(history)
    shortened = titles([*names, *metrics])
    listed = {trial.number for group in shown["groups"] for trial in group["rows"]}
    for group in shown["groups"]:
        group["rows"] = [_row(history, trial, names, metrics[1:]) for trial in group["rows"]]
    return {
        **shown,
        "parameters": [(name, shortened[name]) for name in names],
        "metrics": [(name, shortened[name]) for name in metrics[1:]],
        "value_title": shortened[metrics[0]],
        "left_out": left_out(history),
        "count": len(ordered),
        "all": len(history.trials),
        "ranked": history.spec.resources.ranked,
        "sort": asked.sort,
        "order": "desc" if down else "asc",
        "metric": history.objective.name,
        "states": offered((state.value, n) for state, n in history.counts.items() if n),
        "versions": [(version, version) for version in known[::-1]],
        "ticked": set(asked.t),
        "elsewhere": [
            number
            for number in dict.fromkeys(asked.t)
            if number not in listed and number < len(history.trials)
        ],
        "nowhere": [number for number in dict.fromkeys(asked.t) if number >= len(history.trials)],
    }


def _matches(history: History, trial: TrialRecord, asked: TableQuery) -> bool:
    return (asked.state is None or trial.state is asked.state) and (
        not asked.version or asked.version in summaries.versions(history, trial)
    )


def one(history: History, trial: TrialRecord) -> dict[str, Any]:
    view = summaries.trial_view(history, trial)
    traces = [attempt.trace[-20_000:] for attempt in trial.attempts]
    attempts = [
        {**attempt, "trace": trace, "took": duration(attempt["slot_seconds"])}
        for attempt, trace in zip(view["attempts"], traces, strict=True)
    ]
    return {
        **view,
        "attempts": attempts,
        "use": [(a.number, machine_use.of_attempt(a)) for a in trial.attempts if a.t_began],
        "advice": list(machine_use.sentences(history, [trial])),
        "final": trial.state.final,
        "best": trial.best,
        "metrics": trial.curve.shown(trial.best[1]) if trial.best else {},
    }


def _down(history: History, asked: TableQuery) -> bool:
    if asked.order is not None:
        return asked.order == "desc"
    return history.objective.sign < 0 if asked.sort == "value" else asked.sort != "number"


_KEYS: dict[Sort, Callable[[TrialRecord], float | None]] = {
    "value": lambda trial: trial.best[0] if trial.best is not None else None,
    "number": lambda trial: trial.number,
    "steps": lambda trial: trial.step,
    "attempts": lambda trial: len(trial.attempts),
    "time": lambda trial: trial.seconds,
}


def _row(
    history: History, trial: TrialRecord, names: list[str], metrics: list[str]
) -> dict[str, Any]:
    row = summaries.measured(trial)
    config = summaries.reached_with(history, trial)
    last = trial.attempts[-1] if trial.attempts else None
    seconds = trial.seconds
    return {
        "number": trial.number,
        "state": trial.state.value,
        "dropped": trial.excluded,
        "best": trial.number == history.best,
        "value": readable(trial.best[0]) if trial.best else "",
        "at": trial.best[1] if trial.best else "",
        "steps": trial.step,
        "attempts": len(trial.attempts),
        "workers": last.width if last is not None else "",
        "time": duration(seconds) if seconds is not None else "",
        "version": (summaries.versions(history, trial) or [""])[-1],
        "cells": [_cell(config.get(name)) for name in names],
        "metrics": [_cell(row.get(name)) for name in metrics],
        "why": _cut(last.reason if last is not None else ""),
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return _cut(
        series.short(value)
        if isinstance(value, str | int | float)
        else json.dumps(value, ensure_ascii=False)
    )


def _cut(text: str) -> str:
    return text if len(text) <= CELL else text[: CELL - 1] + "…"
