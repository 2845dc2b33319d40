"""What the history counts beside its trials: how long steps and checkpoints take, what the cluster
has cost, the steps that a budget counts, and the trials since the last improvement. Each is a fold.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from regrow.search.events import Priced, Rehearsed, Row
from regrow.search.history.records import Attempt, TrialRecord
from regrow.search.measured import Traffic
from regrow.search.spec.parts import StorePrices

SEEN = 64
"""The last so many durations count."""
FADES = 0.7
"""A long step counts in full at first, and by this factor less with each step after it."""


def _recent() -> deque[float]:
    return deque(maxlen=SEEN)


@dataclass(slots=True)
class Pace:
    """Folds the durations of steps and checkpoints, in seconds."""

    begins: deque[float] = field(default_factory=_recent)
    """From the decision to start an attempt to its begin; not of those that had to wait."""
    first: deque[float] = field(default_factory=_recent)
    """From the begin of an attempt to its first report."""
    steps: deque[float] = field(default_factory=_recent)
    """Between two reports of an attempt; the mean of those that came together."""
    strides: deque[float] = field(default_factory=_recent)
    """By how much the step metric rose with each report; empty without one: each is one step."""
    excess: deque[float] = field(default_factory=_recent)
    """A step's duration as a multiple of `Attempt.step_seconds` before it; not of first steps."""
    saves: deque[float] = field(default_factory=_recent)
    """From the call of the user's code until a checkpoint is durable."""
    ran: float = 0.0
    """Seconds that ended attempts ran, each on its machine."""
    rehearsal: Rehearsed | None = None
    """The longest by now of what the end of a session takes; None: not tried."""
    losses: int = 0
    """Attempts that ended without being able to save."""

    def rehearsed(self, event: Rehearsed) -> None:
        """Take how long the end of a session takes; the longest counts, as machines are busy."""
        if self.rehearsal is None or event.seconds >= self.rehearsal.seconds:
            self.rehearsal = event

    def began(self, attempt: Attempt) -> None:
        """Take the begin of an attempt."""
        if attempt.t_began is not None and not attempt.waited:
            self.begins.append(attempt.t_began - attempt.t_started)

    def ended(self, attempt: Attempt) -> None:
        """Take the end of an attempt."""
        if attempt.t_began is None or attempt.t_ended is None:
            return
        self.ran += max(0.0, attempt.t_ended - attempt.t_began)
        self.losses += attempt.outcome == "lost"

    def reported(self, attempt: Attempt, before: float | None, rows: Sequence[Row]) -> None:
        """Take the reports of an attempt. `before`: when it reported last, None for never."""
        begin = attempt.t_began if before is None else before
        if begin is None or not rows:
            return
        seconds = max(0.0, rows[-1].t - begin) / len(rows)
        (self.first if before is None else self.steps).append(seconds)
        if before is not None and attempt.step_seconds > 0:
            self.excess.append(seconds / attempt.step_seconds)
        attempt.step_seconds = max(seconds, FADES * attempt.step_seconds)

    def reports(self, steps: int) -> float:
        """Return how many reports so many steps take, at least one."""
        stride = median(self.strides) if self.strides else 1.0
        return max(1.0, steps / stride) if stride > 0 else steps

    def saved(self, attempt: Attempt, seconds: float | None) -> None:
        """Take the duration of a checkpoint; None: not measured."""
        if seconds is None:
            return
        self.saves.append(seconds)
        attempt.save_seconds = max(seconds, FADES * attempt.save_seconds)

    @property
    def step(self) -> float | None:
        """The usual duration of a step; None before the first report."""
        found = self.steps or self.first
        return median(found) if found else None

    @property
    def begin(self) -> float:
        """The usual time until an attempt begins; 0: not seen."""
        return median(self.begins) if self.begins else 0.0

    @property
    def arrival(self) -> float | None:
        """The usual time from the begin of an attempt to its first report; None: not seen."""
        return median(self.first) if self.first else None

    @property
    def save(self) -> float | None:
        """The usual duration of a checkpoint; None: not measured."""
        return median(self.saves) if self.saves else None


@dataclass(slots=True)
class PlateauCounter:
    """Folds the ends of trials, in their order. A retried trial counts as not ended.

    Values are costs, of which less is better: the objective times its sign.
    """

    tolerance: float = 0.0
    _ends: dict[int, float | None] = field(default_factory=dict)
    """By ended trial, in the order of their ends, the best cost of all trials at that time."""
    _counted: tuple[float | None, int] | None = None, 0
    """The cost of the last improvement, and trials ended since. None: to be computed again."""

    def end(self, number: int, best: float | None) -> None:
        """Count a trial that ended. `best`: the best cost of all trials then, None for none."""
        self._ends[number] = best
        if self._counted is not None:
            self._counted = self._after(self._counted, best)

    def revive(self, number: int) -> None:
        """Remove a trial that is retried after its end."""
        self._ends.pop(number, None)
        self._counted = None

    def restart(self, tolerance: float) -> None:
        """Start again with another tolerance: trials that have ended so far do not count."""
        self.tolerance, self._ends, self._counted = tolerance, {}, (None, 0)

    @property
    def trials(self) -> int:
        """Trials that ended since the best value last improved."""
        if self._counted is None:
            self._counted = None, 0
            for best in self._ends.values():
                self._counted = self._after(self._counted, best)
        return self._counted[1]

    def _after(
        self, counted: tuple[float | None, int], best: float | None
    ) -> tuple[float | None, int]:
        start, since = counted
        if best is not None and (start is None or best < start - self.tolerance):
            return best, 0
        return start, since + 1


@dataclass(slots=True)
class Spending:
    """Folds the prices of the cluster. Money is in the currency of the prices."""

    per_hour: float = 0.0
    """What the nodes with a price cost an hour altogether, now; 0 between sessions."""
    nodes: int = 0
    """Number of these nodes."""
    apart: defaultdict[float | None, float] = field(default_factory=lambda: defaultdict(float))
    """Slot-seconds of ended attempts on nodes without a price, by the price of a slot and hour that
    the specification had (None: none).
    """
    traffic: Traffic = field(default_factory=Traffic)
    """What was asked of the store, as far as counted."""
    store: float = 0.0
    """What that cost, at the prices of each time."""
    asked: deque[float] = field(default_factory=_recent)
    """What each of the last parts of it cost that attempts asked: a checkpoint, mostly."""
    _last: float = 0.0
    """The last price that was not 0."""
    _paid: float = 0.0
    _since: float = 0.0

    def priced(self, event: Priced) -> None:
        """Take the price of the cluster from this moment on."""
        self.rest(event.t)
        self.per_hour, self.nodes = event.per_hour, event.nodes

    def rest(self, t: float) -> None:
        """End the time of the last price: no session runs after `t` (seconds since the epoch)."""
        self._paid, self._since = self.of_nodes(t), t
        self._last = self.per_hour or self._last
        self.per_hour, self.nodes = 0.0, 0

    def stayed(self, t: float) -> None:
        """Count the time until `t` as well, at the last price: the machines have stayed between two
        sessions.
        """
        self._paid += self._last * max(0.0, t - self._since) / 3600.0
        self._since = t

    def metered(
        self, traffic: Traffic | None, prices: StorePrices | None, *, attempt: bool
    ) -> None:
        """Take what was asked of the store, by an attempt or by the coordinator."""
        if traffic is None or prices is None:
            return
        paid = prices.of(traffic)
        self.traffic += traffic
        self.store += paid
        if attempt:
            self.asked.append(paid)

    def of_nodes(self, now: float) -> float:
        """Return what the nodes with a price have cost while sessions ran."""
        return self._paid + self.per_hour * max(0.0, now - self._since) / 3600.0


class Work:
    """Folds the steps of trials. `whole`: the steps of a full training."""

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.used = 0
        """Steps that trials have done; at least one for each that has ended."""
        self.claimed = 0
        """The same, with those up to the next decision on each trial that is to continue."""
        self._used: list[int] = []
        self._claims: list[int] = []

    @classmethod
    def of(cls, trials: Iterable[TrialRecord], whole: int) -> Work:
        """Return the work of trials so far."""
        work = cls(whole)
        for trial in trials:
            work.note(trial)
        return work

    def note(self, trial: TrialRecord) -> None:
        """Update after a change of a trial."""
        while len(self._claims) <= trial.number:
            self._used.append(0)
            self._claims.append(0)
        used, claim = _used(trial), self._claim(trial)
        self.used += used - self._used[trial.number]
        self.claimed += claim - self._claims[trial.number]
        self._used[trial.number], self._claims[trial.number] = used, claim

    def claim(self, trial: TrialRecord) -> int:
        """Return the steps, from its first one, that a trial may do before its next decision."""
        return self._claims[trial.number]

    def _claim(self, trial: TrialRecord) -> int:
        if trial.state.final:
            return _used(trial)
        if trial.held:
            return max(trial.curve.time, trial.decided)
        attempt = trial.attempts[-1] if trial.attempts else None
        if attempt is not None and attempt.verdict == "stop":
            return trial.curve.time
        until = None if attempt is None else attempt.until
        return max(trial.curve.time, self.whole if until is None else until)


def _used(trial: TrialRecord) -> int:
    # A trial that fails at its first step counts: else there would be no end of them.
    return max(trial.curve.time, int(trial.state.final and bool(trial.attempts)))
