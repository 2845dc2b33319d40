"""Conditions on metrics that a step must meet to count: `latency <= 10`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from regrow.search.errors import SpecError
from regrow.search.numbers import finite

_FORM = re.compile(
    r"\s*(?P<metric>\S.*?)\s*(?P<sign><=|>=)\s*(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The condition that `metric` is at most, or at least, `bound`."""

    metric: str
    sign: Literal["<=", ">="]
    bound: float

    @classmethod
    def parse(cls, text: object, key: str) -> Constraint:
        """Return `METRIC <= NUMBER` or `METRIC >= NUMBER` as a constraint. Raises SpecError."""
        form = _FORM.fullmatch(text) if isinstance(text, str) else None
        if form is None:
            raise SpecError(
                key,
                text,
                "is no condition on a metric",
                "write METRIC <= NUMBER or METRIC >= NUMBER",
            )
        sign: Literal["<=", ">="] = "<=" if form["sign"] == "<=" else ">="
        return cls(metric=form["metric"], sign=sign, bound=float(form["bound"]))

    def violation(self, metrics: Mapping[str, float | None]) -> float:
        """Return by how much it is broken: at most 0 if it is met, infinite without the metric."""
        value = metrics.get(self.metric)
        if value is None:
            return math.inf
        broken = value - self.bound if self.sign == "<=" else self.bound - value
        return finite(broken)
