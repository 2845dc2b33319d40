"""The table of trials, one page at a time: sorted and filtered on the server, so that 10,000 trials
do not make a large page.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.search.numbers import readable
from regrow.show.figures import series
from regrow.show.report.report import duration
from regrow.show.report.table import left_out, measured, titles, varied
from regrow.show.views import summaries

PER_PAGE = 50
CELL = 60
"""Maximum characters of a cell."""

Sort = Literal["value", "number", "steps", "attempts", "time"]
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    """Which part of the table is shown.

    Attributes:
        order: None: the best, the first or the most first.
        state: None: all.
        page: from 1.

    """

    sort: Sort = "value"
    order: Order | None = None
    page: int = 1
    state: TrialState | None = None


def table(history: History, asked: TableQuery) -> dict[str, Any]:
    """Return columns, rows and their position among all. A page beyond the last is the last one."""
    down = _down(history, asked)
    found = [t for t in history.trials if asked.state is None or t.state is asked.state]
    key = _KEYS[asked.sort]
    valued = [(value, trial) for trial in found if (value := key(trial)) is not None]
    valued.sort(key=lambda pair: (-pair[0] if down else pair[0], pair[1].number))
    none = [trial for trial in found if key(trial) is None]  # last, in either order
    ordered = [*(trial for _, trial in valued), *none]
    pages = max(1, -(-len(ordered) // PER_PAGE))
    page = min(max(1, asked.page), pages)
    names, metrics = list(varied(history)), measured(history)
    shortened = titles([*names, *metrics])
    shown = ordered[(page - 1) * PER_PAGE : page * PER_PAGE]
    return {
        "rows": [_row(history, trial, names, metrics[1:]) for trial in shown],
        "parameters": [(name, shortened[name]) for name in names],
        "metrics": [(name, shortened[name]) for name in metrics[1:]],
        "value_title": shortened[metrics[0]],
        "left_out": left_out(history),
        "page": page,
        "pages": pages,
        "count": len(ordered),
        "first": (page - 1) * PER_PAGE + 1 if shown else 0,
        "last": (page - 1) * PER_PAGE + len(shown),
        "all": len(history.trials),
        "ranked": history.spec.resources.ranked,
        "sort": asked.sort,
        "order": "desc" if down else "asc",
        "state": asked.state.value if asked.state is not None else "",
        "metric": history.objective.name,
        "states": [(state.value, count) for state, count in history.counts.items() if count],
    }


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
        "best": trial.best,
        "metrics": trial.curve.shown(trial.best[1]) if trial.best else {},
    }


def _down(history: History, asked: TableQuery) -> bool:
    if asked.order is not None:
        return asked.order == "desc"
    return history.objective.sign < 0 if asked.sort == "value" else asked.sort != "number"


def _time(trial: TrialRecord) -> float | None:
    ended = [
        max(0.0, a.t_ended - a.t_began)
        for a in trial.attempts
        if a.t_began is not None and a.t_ended is not None
    ]
    return sum(ended) if ended else None


_KEYS: dict[Sort, Callable[[TrialRecord], float | None]] = {
    "value": lambda trial: trial.best[0] if trial.best is not None else None,
    "number": lambda trial: trial.number,
    "steps": lambda trial: trial.step,
    "attempts": lambda trial: len(trial.attempts),
    "time": _time,
}


def _row(
    history: History, trial: TrialRecord, names: list[str], metrics: list[str]
) -> dict[str, Any]:
    row = summaries.measured(trial)
    config = summaries.reached_with(history, trial)
    last = trial.attempts[-1] if trial.attempts else None
    took = _time(trial)
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
        "time": duration(took) if took is not None else "",
        "cells": [_cell(config.get(name)) for name in names],
        "metrics": [_cell(row.get(name)) for name in metrics],
        "why": _cut((last.message or last.stop or last.leave or "") if last is not None else ""),
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
