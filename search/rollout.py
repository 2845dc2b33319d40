"""Which checkpoints may be served, in the form in which users write it: a gate, and a canary's
share. Serving itself is in `regrow/apps/serving`.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from math import exp, lgamma

from regrow.search.bounds import LONGEST
from regrow.search.durations import in_words, seconds
from regrow.search.errors import SpecError

_SIGNS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_JOIN = re.compile(r"\s+and\s+|\s*,\s*")
_FORM = re.compile(
    r"\s*(?P<metric>[^\s<>=](?:[^<>=]*[^\s<>=])?)\s*(?P<sign><=|>=|<|>)\s*(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)
_SHARE = re.compile(
    r"\s*(?:(?P<trial>\d+)\s*=\s*)?(?P<share>\d+\.?\d*|\.\d+)\s*%?\s*(?:for\s+(?P<span>.+?)\s*)?"
)
CANARY_SECONDS = 600.0
"""Default duration of a canary."""
LEVEL = 0.001
"""Significance level of the test. It is repeated each second: 0.05 would reject good canaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCondition:
    """The condition that `metric` is below, above, at most or at least `bound`."""

    metric: str
    sign: str
    bound: float

    def met(self, value: float | None) -> bool:
        """Return whether a value meets the condition. None (missing, not finite) does not."""
        return value is not None and bool(_SIGNS[self.sign](value, self.bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Conditions that must all be met; `text` is what the user wrote."""

    text: str
    conditions: tuple[MetricCondition, ...]

    @classmethod
    def parse(cls, text: str, key: str) -> Gate:
        """Return the gate written as conditions joined by `and` or commas, as in `accuracy > 0.98
        and latency <= 10`. Raises SpecError at `key`.
        """
        found: list[MetricCondition] = []
        for part in _JOIN.split(text.strip()):
            form = _FORM.fullmatch(part)
            if form is None:
                hint = "write METRIC > NUMBER (or >=, <, <=), several joined by `and`"
                raise SpecError(key, part, "is no condition on a metric", hint)
            found.append(
                MetricCondition(
                    metric=form["metric"], sign=form["sign"], bound=float(form["bound"])
                )
            )
        return cls(text=" ".join(text.split()), conditions=tuple(found))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics in the conditions, each once."""
        return tuple(dict.fromkeys(one.metric for one in self.conditions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The trial period of a better checkpoint before it takes over.

    Attributes:
        share: its share of the requests, above 0 and below 1.
        seconds: duration.
        trial: the trial whose best checkpoint gets this share permanently; None: any checkpoint
            that is better than the one being served.

    """

    share: float
    seconds: float = CANARY_SECONDS
    trial: int | None = None

    @classmethod
    def parse(cls, text: str, key: str, *, of_a_trial: bool = False) -> Canary:
        """Return the canary written as PERCENT for SPAN, `10% for 5min`; the span is optional. With
        `of_a_trial` also TRIAL=PERCENT, `17=10%`.

        Raises SpecError at `key`.
        """
        form = _SHARE.fullmatch(text)
        if form is not None and 0 < (share := float(form["share"]) / 100) < 1:
            span = seconds(form["span"]) if form["span"] else CANARY_SECONDS
            if form["trial"] is None and isinstance(span, float) and 0 < span <= LONGEST:
                return cls(share=share, seconds=span)
            if form["trial"] is not None and not form["span"] and of_a_trial:
                return cls(share=share, trial=int(form["trial"]))
        hint = "write 10%, or 10% for 5min" + ("; for one trial's, 17=10%" if of_a_trial else "")
        raise SpecError(key, text, "is no share of the requests", hint)

    @property
    def text(self) -> str:
        """The canary as text for people."""
        return f"{100 * self.share:g} % for {in_words(self.seconds)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Requests that a model has `answered`, and how many of these it `failed`."""

    answered: int = 0
    failed: int = 0

    @property
    def text(self) -> str:
        """The tally as text for people."""
        return f"{self.failed} of {self.answered} requests"


def fails_more(canary: RequestCounts, others: RequestCounts) -> bool:
    """Return whether a canary fails significantly more often than the others. Bad requests fail
    everywhere.

    Fisher's exact test: if all had the same probability to fail, the canary would have this many
    failures once in `1 / LEVEL` times.
    """
    failed, every = canary.failed + others.failed, canary.answered + others.answered
    most = min(failed, canary.answered)
    tail = sum(
        exp(
            _log_combinations(failed, one)
            + _log_combinations(every - failed, canary.answered - one)
            - _log_combinations(every, canary.answered)
        )
        for one in range(canary.failed, most + 1)
        if canary.answered - one <= every - failed
    )
    return canary.failed > 0 and tail < LEVEL


def _log_combinations(of: int, chosen: int) -> float:
    """Return the logarithm of the number of ways to choose `chosen` of `of`."""
    return lgamma(of + 1) - lgamma(chosen + 1) - lgamma(of - chosen + 1)
