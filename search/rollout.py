"""Which checkpoints may be served, as people write it: a gate, and a canary's share. Who serves is in `regrow/serving`."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from math import exp, lgamma

from regrow.search.durations import in_words, seconds
from regrow.search.errors import SpecError

_SIGNS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_JOIN = re.compile(r"\s+and\s+|\s*,\s*")
_FORM = re.compile(
    r"\s*(?P<metric>[^\s<>=](?:[^<>=]*[^\s<>=])?)\s*(?P<sign><=|>=|<|>)\s*(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)
_SHARE = re.compile(r"\s*(?:(?P<trial>\d+)\s*=\s*)?(?P<share>\d+\.?\d*|\.\d+)\s*%?\s*(?:for\s+(?P<span>.+?)\s*)?")
CANARY_SECONDS = 600.0
"""For how long a better checkpoint is a canary, where nobody says."""
LEVEL = 0.001
"""It is looked each second, so many times: at 0.05 good canaries would be refused often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """`metric` is to be below, above, at most or at least `bound`."""

    metric: str
    sign: str
    bound: float

    def met(self, value: float | None) -> bool:
        """Whether a value meets it; None, for what was not reported or is not finite, does not."""
        return value is not None and bool(_SIGNS[self.sign](value, self.bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """All of its conditions are to be met; `text` is how people wrote it."""

    text: str
    conditions: tuple[Condition, ...]

    @classmethod
    def parse(cls, text: str, key: str) -> Gate:
        """From conditions joined by `and` or commas, as in `accuracy > 0.98 and latency <= 10`. Raises SpecError at `key`."""
        found: list[Condition] = []
        for part in _JOIN.split(text.strip()):
            form = _FORM.fullmatch(part)
            if form is None:
                hint = "write METRIC > NUMBER (or >=, <, <=), several joined by `and`"
                raise SpecError(key, part, "is no condition on a metric", hint)
            found.append(Condition(metric=form["metric"], sign=form["sign"], bound=float(form["bound"])))
        return cls(text=" ".join(text.split()), conditions=tuple(found))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it looks at, each once."""
        return tuple(dict.fromkeys(one.metric for one in self.conditions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What a better checkpoint gets before it answers everybody: `share` of the requests, above 0 and below 1, for `seconds`.

    `trial`: the best checkpoint of this one gets it instead, for good. None: whichever is better than what answers.
    """

    share: float
    seconds: float = CANARY_SECONDS
    trial: int | None = None

    @classmethod
    def parse(cls, text: str, key: str, *, of_a_trial: bool = False) -> Canary:
        """From PERCENT for SPAN, as `10% for 5min`, the span left out at will; `of_a_trial`: also from TRIAL=PERCENT, `17=10%`.

        Raises SpecError at `key`.
        """
        form = _SHARE.fullmatch(text)
        if form is not None and 0 < (share := float(form["share"]) / 100) < 1:
            span = seconds(form["span"]) if form["span"] else CANARY_SECONDS
            if form["trial"] is None and isinstance(span, float) and span > 0:
                return cls(share=share, seconds=span)
            if form["trial"] is not None and not form["span"] and of_a_trial:
                return cls(share=share, trial=int(form["trial"]))
        hint = "write 10%, or 10% for 5min" + ("; for one trial's, 17=10%" if of_a_trial else "")
        raise SpecError(key, text, "is no share of the requests", hint)

    @property
    def text(self) -> str:
        """For people."""
        return f"{100 * self.share:g} % for {in_words(self.seconds)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Requests that a model has `answered`, and how many of these it `failed`."""

    answered: int = 0
    failed: int = 0

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.failed} of {self.answered} requests"


def fails_more(canary: Tally, others: Tally) -> bool:
    """Whether a canary fails more often than the others, and not by chance: bad requests fail everywhere.

    Fisher's exact test: had all the same chance to fail, so many failures would be the canary's once in `1 / LEVEL` times.
    """
    failed, every = canary.failed + others.failed, canary.answered + others.answered
    most = min(failed, canary.answered)
    tail = sum(
        exp(_ways(failed, one) + _ways(every - failed, canary.answered - one) - _ways(every, canary.answered))
        for one in range(canary.failed, most + 1)
        if canary.answered - one <= every - failed
    )
    return canary.failed > 0 and tail < LEVEL


def _ways(of: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose so many."""
    return lgamma(of + 1) - lgamma(chosen + 1) - lgamma(of - chosen + 1)
