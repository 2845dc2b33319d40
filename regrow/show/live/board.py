"""State of the live view: the history, and indexes that would take too long to compute for each
picture. Only a fold lives here.
"""

from __future__ import annotations

from collections import deque

from regrow.search import schedulers
from regrow.search.events import (
    AnyEvent,
    Began,
    Capacity,
    Closed,
    Closing,
    Created,
    Decided,
    Ended,
    Opened,
    Proposed,
    Reported,
    Retired,
    Revived,
    Saved,
    Started,
)
from regrow.search.history import History
from regrow.show.live import words
from regrow.show.live.decisions import Decisions
from regrow.show.live.incidents import Absence, Incidents
from regrow.show.live.leaders import Leaders
from regrow.show.live.pace import Pace

LATEST = 50


class Board:
    """Applies the events of a log, oldest first."""

    def __init__(self, called: str | None = None) -> None:
        self.history = History(called)
        self.leaders = Leaders(self.history)
        self.decisions = Decisions(self.history)
        self.incidents = Incidents()
        self.latest: deque[tuple[float, str]] = deque(maxlen=LATEST)
        """(time, line for people), oldest first."""
        self.ends, self.steps_done = Pace(), Pace()
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
        if self._limit[0] != total:
            self._limit = (total, schedulers.most_steps(spec.schedule, spec.setting, total))
        return self._limit[1]

    @property
    def exact(self) -> bool:
        """Whether exactly `most_steps` will be done, as far as is known."""
        return (
            schedulers.kind(self.history.spec.schedule).exact
            and not self._early
            and self.most_steps is not None
        )

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
        if self.exact:
            return min(1.0, self.useful / max(1, self.most_steps or 1))
        return min(1.0, history.ended / max(1, history.total))

    def left_seconds(self, now: float) -> float | None:
        """Estimate the remaining seconds from the recent rate; None if unknown."""
        history = self.history
        found: list[float] = []
        if self.exact and (rate := self.steps_done.rate(now)):
            found.append(max(0, (self.most_steps or 0) - self.useful) / rate)
        elif not self.exact and (rate := self.ends.rate(now)):
            total = min(history.total, history.spec.stop.trials or history.total)
            found.append(max(0, total - history.ended) / rate)
        if (hours := history.spec.stop.hours) is not None:
            found.append(max(0.0, hours * 3600 - history.elapsed(now)))
        return min(found, default=None)

    # ---- folding

    def apply(self, event: AnyEvent) -> list[str]:
        """Apply an event; return lines for people about it."""
        history = self.history
        silent, slots = event.t - history.t_last, history.slots
        lost_before = history.lost_steps
        source = None
        if isinstance(event, Decided) and event.source is not None:
            source = history.trials[event.source].config
        history.apply(event)
        match event:
            case Reported():
                self.spent += len(event.rows)
                self.steps_done.add(event.t, len(event.rows))
                self.heard[event.trial] = event.t
                self.leaders.improved(event.trial)
            case Saved():
                self.heard[event.trial] = event.t
            case Created():
                self.decisions.created()
            case Proposed():
                self.decisions.proposed(event)
            case Decided():
                self.decisions.decided(event, source)
            case Started():
                self.heard[event.trial] = event.t
                self.decisions.left(event.trial, stopped=False)
            case Retired():
                self.decisions.left(event.trial, stopped=True)
                self.ends.add(event.t)
            case Revived():
                self.decisions.back(history.trials[event.trial])
                self.incidents.revived(event.trial)
            case _:
                pass
        if isinstance(event, Capacity) and event.slots == slots:
            return []  # a larger node, but no more of them: matters to attempts of several slots
        lines = self._told(event, silent, history.lost_steps - lost_before)
        if not self._is_loss(event):
            self.latest += [(event.t, line) for line in lines]
        return lines

    @staticmethod
    def _is_loss(event: AnyEvent) -> bool:
        """Return whether it is a loss or a recovery, which have their own section."""
        return isinstance(event, Began | Opened) or (isinstance(event, Ended) and bool(event.cause))

    def _told(self, event: AnyEvent, silent: float, again: int) -> list[str]:
        history = self.history
        match event:
            case Opened():
                return self._opened(event, silent)
            case Capacity():
                return [words.capacity(history)]
            case Started() if (
                event.attempt > 1 and (last := history.trials[event.trial].attempts[-2]).withdrawn
            ):
                moved = event.market or last.narrower
                return [words.moved(history.trials[event.trial])] if moved else []
            case Began():
                self.began = True
                self.nodes |= {event.node, *(other.node for other in event.others)}
                self.heard[event.trial] = event.t
                self.leaders.rewound(event.trial)
                loss = self.incidents.began(event, history.trials[event.trial].attempts[-1], again)
                return [] if loss is None else [words.recovery(loss)]
            case Ended():
                return self._ended(event)
            case Revived():
                return [words.revival(history.trials[event.trial])]
            case Closing():
                return [f"ending: {event.why}"] if event.why else []
            case Closed() if history.sessions:
                self.heard.clear()
                return []
            case _:
                return []

    def _opened(self, event: Opened, silent: float) -> list[str]:
        if event.by != "driver":
            return ["the coordinator was lost and is back"]
        self.ends.clear()
        self.steps_done.clear()
        self.ends.add(event.t, 0)
        self.steps_done.add(event.t, 0)
        self.began = False
        if self.history.sessions == 1:
            return []
        if not self.history.orphans:
            return ["continues"]
        absence: Absence = self.incidents.reopened(event, max(0.0, silent))
        return [words.driver_back(absence, len(self.history.orphans))]

    def _ended(self, event: Ended) -> list[str]:
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
        like = (
            self._failed.setdefault(trial.attempts[-1].message, event.trial)
            if event.outcome == "failed"
            else event.trial
        )
        return [
            words.end(history, trial, event, star=star, like=None if like == event.trial else like)
        ]
