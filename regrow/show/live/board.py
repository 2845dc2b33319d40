"""State of the live view: the history, and indexes that each picture needs. Only a fold."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from heapq import nsmallest

from regrow.search import events, schedulers
from regrow.search.history import History, TrialRecord
from regrow.search.planning import limits
from regrow.show.live import text, words
from regrow.show.live.decisions import Decisions
from regrow.show.live.incidents import DriverAbsence, Incidents

LATEST = 50
LEADERS = 16
WINDOW_SECONDS = 60.0
ENOUGH = 20
"""Moments that are kept, even if older than the window, so that slow trials have a rate."""


class Board:
    """Applies the events of a log, oldest first."""

    def __init__(self, called: str | None = None) -> None:
        self.history = History(called)
        self.leaders = Leaders(self.history)
        self.decisions = Decisions(self.history)
        self.incidents = Incidents()
        self.latest: deque[tuple[float, str]] = deque(maxlen=LATEST)
        """(time, line for people), oldest first."""
        self.ends, self.steps_done = BoardPace(), BoardPace()
        self.heard: dict[int, float] = {}
        """When each running trial last sent something."""
        self.nodes: set[str] = set()
        self.spent = 0
        """Steps that were done, including repeated ones."""
        self.began = False
        """Whether an attempt has begun in this session."""
        self._shown_best: int | None = None
        self._failed: dict[str, int] = {}
        """The first trial that failed with each message."""
        self._limit: tuple[int, int | None] = (-1, None)
        self._early = False

    # ---- reading

    @property
    def most_steps(self) -> int | None:
        """Maximum steps that the schedule can spend on all trials, None if unlimited."""
        spec, total = self.history.spec, self.history.total
        if self.history.unlimited:
            return None
        if self._limit[0] != total:
            self._limit = (total, schedulers.most_steps(spec.schedule, spec.setting, total))
        return self._limit[1]

    @property
    def exact(self) -> bool:
        """Whether exactly `most_steps` will be done, as far as is known."""
        exact = schedulers.kind(self.history.spec.schedule).exact
        return exact and not self._early and self.most_steps is not None

    @property
    def useful(self) -> int:
        """Steps that count, without lost ones."""
        return self.spent - self.history.lost_steps

    def waiting(self, now: float) -> int:
        """Return how many attempts have been waiting for a node for longer than a start takes."""
        attempts = (self.history.trials[number].attempts[-1] for number in self.history.running)
        return sum(a.t_began is None and now - a.t_started >= words.START_SECONDS for a in attempts)

    def share(self) -> float:
        """Return the completed fraction of the experiment, from 0 to 1."""
        history = self.history
        if history.unlimited:
            return limits.share(history, history.t_last)
        if self.exact:
            return min(1.0, self.useful / max(1, self.most_steps or 1))
        return min(1.0, history.ended / max(1, history.total))

    def left_seconds(self, now: float) -> float | None:
        """Estimate the remaining seconds from the recent rate; None if unknown."""
        history = self.history
        found: list[float] = []
        if self.exact and (rate := self.steps_done.rate(now)):
            found.append(max(0, (self.most_steps or 0) - self.useful) / rate)
        elif not self.exact and not history.unlimited and (rate := self.ends.rate(now)):
            total = min(history.total, history.spec.stop.trials or history.total)
            found.append(max(0, total - history.ended) / rate)
        if (steps := history.spec.budget_steps) is not None and (rate := self.steps_done.rate(now)):
            found.append(max(0, steps - self.useful) / rate)
        if (hours := history.spec.stop.hours) is not None:
            found.append(max(0.0, hours * 3600 - history.elapsed(now)))
        if (limit := limits.nearest(history, now)) is not None and limit.at < math.inf:
            found.append(max(0.0, limit.at - now))
        return min(found, default=None)

    # ---- folding

    def apply(self, event: events.AnyEvent) -> list[str]:
        """Apply an event; return lines for people about it."""
        history = self.history
        silent, slots = event.t - history.t_last, history.slots
        judged_before = text.judged(history) if isinstance(event, events.Decided) else None
        lost_before = history.lost_steps
        source = None
        if isinstance(event, events.Decided) and event.source is not None:
            source = history.trials[event.source].config
        history.apply(event)
        match event:
            case events.Reported():
                self.spent += len(event.rows)
                self.steps_done.add(event.t, len(event.rows))
                self.heard[event.trial] = event.t
                self.leaders.improved(event.trial)
            case events.Saved():
                self.heard[event.trial] = event.t
            case events.Created():
                self.decisions.created()
            case events.Proposed():
                self.decisions.proposed(event)
            case events.Decided():
                self.decisions.decided(event, source)
            case events.Started():
                self.heard[event.trial] = event.t
                self.decisions.left(event.trial, stopped=False)
            case events.Halted() if not history.trials[event.trial].state.final:
                pass
            case events.Retired() | events.Halted():
                self.decisions.left(event.trial, stopped=True)
                self.ends.add(event.t)
            case events.Revived():
                self.decisions.back(history.trials[event.trial])
                self.incidents.revived(event.trial)
            case events.Excluded():
                self.leaders.rewound(event.trial)
                self.leaders.improved(event.trial)
            case _:
                pass
        if isinstance(event, events.Capacity) and event.slots == slots:
            return []  # a larger node, but no more of them: matters to attempts of several slots
        lines = self._lines(event, silent, history.lost_steps - lost_before)
        if isinstance(event, events.Decided) and (judged := text.judged(history)) != judged_before:
            lines += [judged] if judged is not None else []
        # losses and recoveries have their own section
        lost = isinstance(event, events.Ended) and bool(event.cause)
        if not lost and not isinstance(event, events.Began | events.Opened):
            self.latest += [(event.t, line) for line in lines]
        return lines

    def _lines(self, event: events.AnyEvent, silent: float, again: int) -> list[str]:
        history = self.history
        match event:
            case events.Opened():
                return self._opened(event, silent)
            case events.Joined():
                return [words.arrival(event)]
            case events.Left():
                return [words.departure(event)]
            case events.Capacity():
                return [words.capacity(history)]
            case events.Started() if event.attempt > 1:
                trial = history.trials[event.trial]
                last = trial.attempts[-2]
                if event.config is not None:
                    self.incidents.changed(event, history.spec.on_oom)
                moved = last.withdrawn and (event.market or last.narrower)
                return [words.moved(trial)] if moved else []
            case events.Began():
                self.began = True
                self.nodes |= {event.node, *(other.node for other in event.others)}
                self.heard[event.trial] = event.t
                self.leaders.rewound(event.trial)
                loss = self.incidents.began(event, history.trials[event.trial].attempts[-1], again)
                return [] if loss is None else [words.recovery(loss)]
            case events.Ended():
                return self._ended(event)
            case events.Revived() | events.Moved() | events.Halted() | events.Excluded():
                return [words.change(event, history.trials[event.trial])]
            case events.Milestone() if event.percent >= words.SHOWN_PERCENT:
                return [limits.in_words(history, event)]
            case events.Closing():
                return [f"ending: {event.why}"] if event.why else []
            case events.Closed() if history.sessions:
                self.heard.clear()
                return []
            case _:
                return []

    def _opened(self, event: events.Opened, silent: float) -> list[str]:
        if event.by != "driver":
            return ["the coordinator was lost and is back"]
        self.ends.clear()
        self.steps_done.clear()
        self.ends.add(event.t, 0)
        self.steps_done.add(event.t, 0)
        self.began = False
        if self.history.sessions == 1:
            return [f"limits: {listed}"] if (listed := limits.describe(self.history)) else []
        if not self.history.orphans:
            return ["continues"]
        absence: DriverAbsence = self.incidents.reopened(event, max(0.0, silent))
        return [words.driver_back(absence, len(self.history.orphans))]

    def _ended(self, event: events.Ended) -> list[str]:
        history = self.history
        trial = history.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        self.heard.pop(event.trial, None)
        loss = self.incidents.ended(event, trial, attempt)
        if trial.state.final:
            self.ends.add(event.t)
            self._early |= event.outcome == "done" and trial.curve.time != history.spec.max_steps
            self.decisions.left(event.trial, stopped=False)
        elif loss is not None:
            return [words.loss(loss)]
        if not trial.state.final:
            return []
        star = history.best == event.trial and self._shown_best != event.trial
        self._shown_best = history.best if star else self._shown_best
        like = event.trial
        if event.outcome == "failed":
            like = self._failed.setdefault(trial.attempts[-1].message, event.trial)
        first = None if like == event.trial else like
        return [words.end(history, trial, event, star=star, like=first)]


class Leaders:
    """The first LEADERS trials by their best value; of equal ones the lower number is first."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._kept: list[tuple[float, int]] = []
        self._stale = False

    def improved(self, number: int) -> None:
        """Update after a report of a trial."""
        if self._stale:
            return
        key = self._key(self._history.trials[number])
        if key is None or (len(self._kept) == LEADERS and key >= self._kept[-1]):
            return
        self._kept = [pair for pair in self._kept if pair[1] != number]
        insort(self._kept, key)
        del self._kept[LEADERS:]

    def rewound(self, number: int) -> None:
        """Update after a trial went back to a checkpoint, as its best value may be gone."""
        # Recomputed on the next read, as a driver's loss takes many trials back at once.
        now = self._key(self._history.trials[number])
        self._stale |= any(pair[1] == number and pair != now for pair in self._kept)

    @property
    def trials(self) -> list[TrialRecord]:
        """Best first; trials without a value are omitted."""
        if self._stale:
            keys = (key for trial in self._history.trials if (key := self._key(trial)) is not None)
            self._kept, self._stale = nsmallest(LEADERS, keys), False
        return [self._history.trials[number] for _, number in self._kept]

    def _key(self, trial: TrialRecord) -> tuple[float, int] | None:
        if trial.best is None:
            return None
        return (self._history.objective.sign * trial.best[0], trial.number)


class BoardPace:
    """Rate of events over a recent window; events within a second are one moment."""

    def __init__(self) -> None:
        self._moments: deque[list[float]] = deque()
        """[time, amount]."""
        self._amount = 0.0

    def add(self, t: float, amount: float = 1.0) -> None:
        """Add `amount` events at time `t` (seconds since the epoch)."""
        if self._moments and t < self._moments[-1][0] + 1.0:  # also if a clock is behind
            self._moments[-1][1] += amount
        else:
            self._moments.append([t, amount])
        self._amount += amount
        while len(self._moments) > ENOUGH and self._moments[1][0] < t - WINDOW_SECONDS:
            self._amount -= self._moments.popleft()[1]

    def rate(self, now: float) -> float | None:
        """Return the rate per second, from the first moment on; None before it is known."""
        if len(self._moments) < 2:
            return None
        first, amount = self._moments[0]
        return (self._amount - amount) / max(now - first, self._moments[-1][0] - first)

    def clear(self) -> None:
        self._moments.clear()
        self._amount = 0.0
