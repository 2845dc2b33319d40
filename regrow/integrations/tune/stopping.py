"""Translates Tune's `stop`: when a trial, or the experiment, has done enough."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regrow.integrations.tune.private import parts, timeout
from regrow.integrations.tune.schedules import ITERATION
from regrow.search.errors import SpecError
from regrow.tasks.errors import ReportError

UNKNOWN = "stop: the metric"
"""How the message begins about a metric of `stop` that a report does not have."""
_OWN = ("config", "trial_id", "done", "time_total_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConditions:
    """The translation of `stop`.

    Attributes:
        trial: whether a trial has done enough, evaluated on the worker.
        steps: maximum steps of a trial, None for no limit.
        seconds: maximum seconds of the experiment, None for no limit.
        whole: Stoppers that consider all trials.
        named: whether metrics are named, which may be misspelt.

    """

    trial: Callable[[str, dict[str, Any]], bool]
    steps: int | None = None
    seconds: float | None = None
    whole: tuple[Any, ...] = ()
    named: bool = False


def stopping(stop: Any) -> StopConditions:
    """Translate `RunConfig(stop=...)`: a map, a function or Stoppers. Raises SpecError."""
    from ray.tune import Stopper
    from ray.tune.stopper import MaximumIterationStopper, TimeoutStopper

    if stop is None:
        return StopConditions(trial=_Any(()))
    if isinstance(stop, Mapping):
        steps = stop.get(ITERATION)
        return StopConditions(
            trial=_Reached(dict(stop)),
            steps=None if steps is None else int(steps),
            named=not set(stop) <= {ITERATION, "time_total_s"},
        )
    if isinstance(stop, Stopper | list | tuple):
        several = stop if isinstance(stop, list | tuple) else [stop]
        flat = [part for one in several for part in parts(one)]
        timeouts = [timeout(one) for one in flat if isinstance(one, TimeoutStopper)]
        others = tuple(one for one in flat if not isinstance(one, TimeoutStopper))
        if not all(isinstance(one, Stopper) for one in others):
            hint = "give Stoppers, a map or a function"
            raise SpecError("stop", repr(stop), "holds something that is no Stopper", hint)
        whole = tuple(one for one in others if not isinstance(one, MaximumIterationStopper))
        return StopConditions(trial=_Any(others), seconds=min(timeouts, default=None), whole=whole)
    if callable(stop):
        return StopConditions(trial=_Any((stop,)))
    raise SpecError(
        "stop", repr(stop), "is no map, function or Stopper", "write {'training_iteration': 10}"
    )


@dataclass(frozen=True, slots=True)
class _Reached:
    """Thresholds of metrics: the first one reached ends the trial."""

    limits: Mapping[str, float]

    def __call__(self, _trial: str, result: Mapping[str, Any]) -> bool:
        for name in self.limits:
            if name not in result and result.get(ITERATION, 1) == 1:
                seen = ", ".join(key for key in result if key not in _OWN)
                near = difflib.get_close_matches(name, list(result), n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"reported were: {seen}"
                raise ReportError(f"{UNKNOWN} {name!r} was not reported; {hint}")
        return any(name in result and result[name] >= limit for name, limit in self.limits.items())


@dataclass(frozen=True, slots=True)
class _Any:
    """Functions; the trial ends if any of them returns True."""

    functions: tuple[Callable[[str, dict[str, Any]], bool], ...]

    def __call__(self, trial: str, result: dict[str, Any]) -> bool:
        # All are called, since some count their calls.
        answers = [bool(function(trial, result)) for function in self.functions]
        return any(answers)
