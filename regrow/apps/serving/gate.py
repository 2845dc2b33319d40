"""Decides which checkpoints a gate accepts, by any reported metric. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from regrow.search.events import AnyEvent, Ended, Reported
from regrow.search.numbers import readable
from regrow.search.rollout import Gate


@dataclass(kw_only=True)
class GateEvaluator:
    """Evaluates a gate, with its metrics at every step: a history keeps them for few steps only."""

    gate: Gate
    seen: set[str] = field(default_factory=set)
    """Names of all metrics that were reported so far."""
    ended: bool = False
    """Whether a trial is done: metrics that were not reported by then do not exist."""
    _rows: dict[tuple[int, int], tuple[float, ...]] = field(default_factory=dict)

    def apply(self, event: AnyEvent) -> None:
        """Apply an event. If a step is reported again, the last report counts."""
        if isinstance(event, Reported):
            for row in event.rows:
                self.seen.update(row.metrics)
                self._rows[event.trial, row.step] = tuple(
                    math.nan if (value := row.metrics.get(name)) is None else value
                    for name in self.gate.metrics
                )
        elif isinstance(event, Ended) and event.outcome == "done":
            self.ended = True

    def values(self, trial: int, step: int) -> Mapping[str, float | None]:
        """Return the gate's metrics at a step; None for those that were not reported there."""
        row = self._rows.get((trial, step), (math.nan,) * len(self.gate.metrics))
        return {
            name: None if math.isnan(value) else value
            for name, value in zip(self.gate.metrics, row, strict=True)
        }

    def passes(self, trial: int, step: int) -> bool:
        values = self.values(trial, step)
        return all(one.met(values[one.metric]) for one in self.gate.conditions)

    def describe(self, trial: int, step: int) -> str:
        """Describe a step for people, with the gate's metrics."""
        values = self.values(trial, step)
        readings = (
            f"{name} {'not reported' if value is None else readable(value)}"
            for name, value in values.items()
        )
        return f"trial {trial}, step {step}, {', '.join(readings)}"

    def unknown(self) -> str:
        """Return what is wrong with a gate whose metric was never reported, "" for nothing."""
        missing = [name for name in self.gate.metrics if name not in self.seen]
        if not missing or not self.seen:
            return ""
        return f"--gate: no trial reports {missing[0]!r}; there are {', '.join(sorted(self.seen))}"
