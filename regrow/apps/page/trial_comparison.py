"""Several trials of one experiment beside each other: their curves, what they reached, and in which
parameters they differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from regrow.apps.page import pictures, views
from regrow.search.durations import duration
from regrow.search.history import History, TrialRecord
from regrow.search.numbers import columned
from regrow.show.views import summaries
from regrow.show.views.comparison import ComparisonRow, leading


def compared(history: History, numbers: Sequence[int]) -> dict[str, Any]:
    """Return the trials of these numbers; `missing` are those that do not exist."""
    found = [history.trials[number] for number in numbers if number < len(history.trials)]
    missing = [number for number in numbers if number >= len(history.trials)]
    labels = [
        {
            "number": trial.number,
            "name": f"trial {trial.number}",
            "hue": place % pictures.HUES,
        }
        for place, trial in enumerate(found)
    ]
    metric = history.objective.name
    made = {"labels": labels, "missing": missing, "drawn": None, "outcomes": [], "settings": []}
    if len(found) < 2:
        return made
    drawn = pictures.chart([_curve(trial) for trial in found], "step", metric)
    return {
        **made,
        "drawn": drawn,
        "outcomes": views.cells(_outcomes(history, found)),
        "settings": views.settings([summaries.reached_with(history, trial) for trial in found]),
    }


def _curve(trial: TrialRecord) -> pictures.DrawnCurve:
    steps = enumerate(trial.values, start=1)
    points = [(float(step), value if math.isfinite(value) else None) for step, value in steps]
    return pictures.DrawnCurve(
        label=f"trial {trial.number}", points=points, end=float(trial.step), straight=True
    )


def _outcomes(history: History, found: Sequence[TrialRecord]) -> list[ComparisonRow]:
    values = [None if trial.best is None else trial.best[0] for trial in found]
    times = [trial.seconds for trial in found]
    rows = [
        ComparisonRow(
            title=history.objective.name,
            cells=columned(values),
            best=leading(values, history.objective.mode),
        ),
        ComparisonRow(
            title="at step", cells=["" if t.best is None else str(t.best[1]) for t in found]
        ),
        ComparisonRow(title="state", cells=[summaries.state_text(trial) for trial in found]),
        ComparisonRow(title="steps", cells=[str(trial.step) for trial in found]),
        ComparisonRow(title="attempts", cells=[str(len(trial.attempts)) for trial in found]),
        ComparisonRow(title="time", cells=["" if one is None else duration(one) for one in times]),
        ComparisonRow(
            title="code", cells=[", ".join(summaries.versions(history, t)) for t in found]
        ),
    ]
    return [row for row in rows if any(row.cells)]
