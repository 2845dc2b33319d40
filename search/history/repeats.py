"""Configurations that are repeated with other seeds: ranked by their mean, not by a lucky seed."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.search.history.fold import History
from regrow.search.history.records import TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.search.numbers import deviation, mean, readable


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The trials of one configuration that are done.

    Attributes:
        trials: in order of their numbers.
        mean: of their best values.
        sd: their standard deviation; 0 for one trial.

    """

    trials: tuple[TrialRecord, ...]
    mean: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """What an experiment has reached.

    Attributes:
        trial: with repeats, the best one of the best configuration.
        value: the trial's, at `step`.
        mean: the configuration's; None without repeats, and as long as no trial is done.

    """

    trial: TrialRecord
    value: float
    step: int
    mean: Repeated | None = None

    @property
    def counts(self) -> float:
        """The value that it is ranked by."""
        return self.value if self.mean is None else self.mean.mean

    @property
    def shown(self) -> str:
        """The value that it is ranked by, with its deviation."""
        return shown(self.counts, None if self.mean is None else self.mean.sd)


def shown(value: float, sd: float | None) -> str:
    """Format a value and, if it is a mean, its standard deviation."""
    return readable(value) if sd is None else f"{readable(value)} +- {readable(sd, 2)}"


def repeated(history: History) -> list[Repeated]:
    """Return the configurations, best mean first; those whose trials have not all ended last.
    Empty without repeats.
    """
    count, sign = history.spec.repeats, history.objective.sign
    found: list[tuple[bool, Repeated]] = []
    for first in range(0, len(history.trials) if count > 1 else 0, count):
        group = history.trials[first : first + count]
        done = [t for t in group if t.state is TrialState.DONE and t.best is not None]
        values = [t.best[0] for t in done if t.best is not None]
        if values:
            one = Repeated(trials=tuple(done), mean=mean(values), sd=deviation(values))
            found.append((len(group) < count or any(not t.state.final for t in group), one))
    found.sort(key=lambda pair: (pair[0], sign * pair[1].mean, pair[1].trials[0].number))
    return [one for _, one in found]


def best(history: History) -> Best | None:
    """Return what the experiment has reached; None before the first value."""
    means = repeated(history)
    if not means:
        leader = history.leader
        if leader is None or leader.best is None:
            return None
        return Best(trial=leader, value=leader.best[0], step=leader.best[1])
    sign = history.objective.sign
    values = {t.number: t.best for t in means[0].trials if t.best is not None}
    number = min(values, key=lambda n: (sign * values[n][0], n))
    value, step = values[number]
    return Best(trial=history.trials[number], value=value, step=step, mean=means[0])
