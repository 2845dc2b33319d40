"""Runs an experiment's scheduler: translates the log's events for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy

from regrow.search import schedulers
from regrow.search.errors import SearchCodeError, SpecError
from regrow.search.events import (
    AnyEvent,
    Capacity,
    Created,
    Decided,
    Ended,
    Excluded,
    Halted,
    Opened,
    Proposed,
    Retired,
    Revived,
    Started,
)
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove
from regrow.search.options import chosen
from regrow.search.planning import limits
from regrow.search.planning.widths import widest
from regrow.search.schedulers.ahead import EndAware
from regrow.search.schedulers.base import (
    FINAL,
    Candidate,
    Decision,
    Drop,
    End,
    Exclusion,
    Final,
    News,
    Opening,
    Revival,
    SchedulerPort,
    Start,
    Verdict,
)
from regrow.search.spec import Spec

_TOLD = frozenset(
    {Opened, Capacity, Proposed, Started, Decided, Retired, Revived, Excluded, Halted, Ended}
)
"""Events that a scheduler receives. Most events of a log are of other kinds: 1 us each."""


class Scheduling:
    """Passes events to a scheduler, after the history has applied them."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._scheduler: SchedulerPort | None = None
        self._put_off: list[News] = []
        """Events for a user's scheduler that is not built yet."""

    @property
    def scheduler(self) -> SchedulerPort:
        """The scheduler. A user's is built at its first use: reading a log imports no user code."""
        if self._scheduler is None:
            self._scheduler = schedulers.make(self._history.spec.schedule, self._history.setting)
            for news in self._put_off:
                self._scheduler.apply(news)
            self._put_off.clear()
            self._note_end(self._history.t_last)
        return self._scheduler

    def apply(self, event: AnyEvent) -> None:
        """Pass on an event. Raises SearchCodeError if the user's scheduler raises."""
        if isinstance(event, Created) and not self._history.spec.own_scheduler:
            _ = self.scheduler
        if type(event) not in _TOLD:
            return
        found = list(self._news(event))
        if self._scheduler is None:
            self._put_off += found
            return
        with naming_user_code(self._history.spec):
            for news in found:
                self._scheduler.apply(news)
            self._note_end(event.t)

    def _note_end(self, now: float) -> None:
        """Let the scheduler know whether the end belongs to the best at `now`."""
        # `limited` first: a check against a protocol takes a third of the time of reading a log
        if self._history.spec.limited and isinstance(self._scheduler, EndAware):
            self._scheduler.near_end(late=limits.is_late(self._history, now, None))

    def _news(self, event: AnyEvent) -> Iterator[News]:
        match event:
            case Opened() | Capacity():
                yield Opening(slots=self._history.slots, widest=widest(self._history))
            case Proposed():
                yield Candidate(trial=event.trial, config=event.config, state=event.state)
            case Started():
                yield Start(trial=event.trial, width=event.width)
            case Decided():
                yield self._decision(event)
            case Retired():
                yield Drop(trial=event.trial)
            case Revived():
                yield Revival(trial=event.trial, held=self._history.trials[event.trial].held)
            case Excluded():
                yield Exclusion(trial=event.trial, excluded=event.excluded)
            case _:
                pass
        if isinstance(event, Retired | Revived | Halted | Ended):
            state = self._history.trials[event.trial].state
            if state.final:
                yield self._end(event.trial, FINAL[state])

    def _end(self, trial: int, how: Final) -> End:
        curve = self._history.trials[trial].curve
        return End(trial=trial, how=how, values=self._values(trial, curve.time))

    def _values(self, trial: int, step: int) -> Sequence[float]:
        """Return a trial's objective by step; a copy if the scheduler gets it later."""
        values = self._history.trials[trial].curve.until(step)
        return copy(values) if self._scheduler is None else values

    def _decision(self, event: Decided) -> Decision:
        values = self._values(event.trial, event.step)
        verdict = Verdict(
            action=event.verdict,
            until=event.until,
            why=event.why,
            source=event.source,
            config=event.config,
            judged_from=event.judged_from,
        )
        return Decision(trial=event.trial, values=values, verdict=verdict)


@contextmanager
def naming_user_code(spec: Spec) -> Iterator[None]:
    """Report the user's sampler's or scheduler's exceptions as SearchCodeError, naming it."""
    try:
        yield
    except (SpecError, IllegalMove, KeyboardInterrupt):
        raise
    except BaseException as error:
        own = [chosen(spec.search)] * spec.own_sampler + [
            chosen(spec.schedule)
        ] * spec.own_scheduler
        if not own:
            raise
        message = f"{' or '.join(own)} raised {type(error).__name__}: {error}; fix it, then resume"
        raise SearchCodeError(message) from error
