"""Conditions by which trials are selected: `lr > 0.1 and state == failed`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.history.fold import History
from regrow.search.history.records import TrialRecord
from regrow.search.options import nearest

MOST = 1000
"""Most characters of a condition."""
_SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*(?P<name>\S.*?)\s*(?P<sign><=|>=|==|!=|<|>)\s*(?P<value>\S.*?)\s*")
_HINT = "write lr > 0.1, or state == failed and steps < 3"
_OWN = ("trial", "state", "value", "steps", "attempts", "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    name: str
    sign: str
    value: str

    def holds(self, found: object) -> bool:
        """Return whether a trial's value meets it; an unknown one meets nothing but `!=`."""
        if isinstance(found, bool) or not isinstance(found, int | float):
            same = found is not None and str(found).lower() == self.value.strip("'\"").lower()
            return same if self.sign == "==" else not same if self.sign == "!=" else False
        return _SIGNS[self.sign](found, float(self.value))


def selected(history: History, condition: str) -> list[TrialRecord]:
    """Return the trials that meet a condition: NAME SIGN VALUE, joined by `and`.

    NAME is a parameter, a metric (of the trial's best step, else of its last), or trial, state,
    value, steps, attempts or dropped. Raises SpecError at `--where` for anything else.
    """
    if len(condition) > MOST:
        raise SpecError("--where", condition[:40] + "...", f"has over {MOST} characters", _HINT)
    metrics = {metric.name for metric in history.spec.metrics}
    numbers = {"value", *metrics}
    names = dict.fromkeys([*_OWN, *metrics])
    for trial in history.trials:
        names |= dict.fromkeys([*trial.config, *trial.curve.metrics(trial.step)])
    values = [_values(history, trial) for trial in history.trials]
    numbers |= {
        key
        for one in values
        for key, value in one.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    parts = [_parsed(part, names, numbers) for part in re.split(r"\s+and\s+", condition)]
    return [
        trial
        for trial, its in zip(history.trials, values, strict=True)
        if all(part.holds(its.get(part.name)) for part in parts)
    ]


def _values(history: History, trial: TrialRecord) -> dict[str, Any]:
    metrics = trial.curve.shown(trial.curve.representative) if trial.step else {}
    own = {
        "trial": trial.number,
        "state": trial.state.value,
        "value": metrics.get(history.objective.name),
        "steps": trial.step,
        "attempts": len(trial.attempts),
        "dropped": trial.excluded,
    }
    return {**metrics, **own, **trial.config}


def _parsed(text: str, names: Mapping[str, object], numbers: set[str]) -> _Part:
    form = _FORM.fullmatch(text)
    if form is None:
        raise SpecError("--where", text, "is no condition", _HINT)
    part = _Part(name=form["name"], sign=form["sign"], value=form["value"])
    if part.name not in names:
        problem = f"names {part.name!r}, which is neither a parameter nor a metric"
        raise SpecError("--where", text, problem, nearest(part.name, set(names)) or _HINT)
    if part.name in numbers:
        try:
            float(part.value)
        except ValueError:
            problem = f"compares {part.name}, which is a number, with {part.value!r}"
            raise SpecError("--where", text, problem, _HINT) from None
    elif part.sign not in ("==", "!="):
        problem = f"compares {part.name}, which is no number, by {part.sign}"
        raise SpecError("--where", text, problem, "write == or !=")
    return part
