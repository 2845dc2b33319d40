"""The output of a trial for people: what its attempts printed, from the store, and how they ended,
from the log.

No server is needed. While the experiment runs, it can be polled repeatedly, and yields what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regrow.infra.log.log import CorruptLog, Log
from regrow.infra.log.reading import fold
from regrow.search.history import Attempt, History
from regrow.show.views import summaries
from regrow.tasks.errors import UserError
from regrow.tasks.output import parts
from regrow.tasks.output.parts import OutputLine
from regrow.tasks.ports.store import Missing, Store

LATE_SECONDS = 3.0
"""How long the last lines of an attempt may follow its end, which it reports first."""


class TrialLogs:
    """A trial's output, in order. Raises UserError without such a trial, and CorruptLog."""

    def __init__(self, store: Store, trial: int, attempt: int | None = None) -> None:
        """Read the log; `attempt`: only that one; None: all."""
        self._store, self._trial, self._only = store, trial, attempt
        self._history, self._segment = History(), 0
        self._read: set[str] = set()
        self._announced: set[int] = set()
        self._ended: set[int] = set()
        self.damage: CorruptLog | None = None
        """Damage of its log; None: none was found so far. Everything before it is available."""
        self.lines = 0
        """Number of lines printed or logged so far."""
        self._update()
        if self.damage is not None and not self._history.trials:
            raise self.damage
        attempts = len(summaries.trial(self._history, trial).attempts)
        if attempt is not None and not 1 <= attempt <= attempts:
            raise UserError(
                f"there is no attempt {attempt} of trial {trial}; it has {attempts} by now"
            )

    @property
    def over(self) -> bool:
        """Whether nothing more comes: trial or attempt has ended, and its end was yielded."""
        trial = self._history.trials[self._trial]
        over = trial.state.final
        if self._only is not None:
            over = trial.attempts[self._only - 1].outcome is not None
        return over and all(a.number in self._ended for a in self._attempts())

    def new(self, now: float | None) -> Iterator[tuple[int, OutputLine]]:
        """Yield what is new since the last call, each with its attempt's number. `now` (seconds
        since the epoch): the last lines of an attempt may still arrive; None: do not wait for them.
        """
        self._update()
        keys = self._keys()
        for attempt in self._attempts():
            found = [key for key in keys.get(attempt.number, []) if key not in self._read]
            if attempt.number not in self._announced and (
                attempt.t_began is not None or attempt.outcome is not None
            ):
                self._announced.add(attempt.number)
                yield attempt.number, _began(attempt)
            for key in found:
                for line in self._lines(key):
                    self.lines += 1
                    yield attempt.number, line
            if attempt.outcome is not None and attempt.number not in self._ended:
                ended = attempt.t_ended or 0.0
                if now is not None and now - ended < LATE_SECONDS:
                    return
                self._ended.add(attempt.number)
                if trace := attempt.trace.rstrip():
                    yield attempt.number, OutputLine(t=ended, stream="traceback", text=trace)
                yield attempt.number, _ended(attempt, ended)

    def _attempts(self) -> list[Attempt]:
        attempts = self._history.trials[self._trial].attempts
        return [a for a in attempts if self._only in (None, a.number)]

    def _update(self) -> None:
        def noted(damage: CorruptLog) -> None:
            self.damage = damage

        def segments() -> Iterator[tuple[int, Sequence[bytes]]]:
            # what a killed writer did not finish is ignored
            for number, lines in Log.read(self._store, self._segment, on_cut=lambda _: None):
                yield number, lines
                self._segment = number

        if self.damage is None:
            fold(self._store, self._history.apply, segments(), on_damage=noted)

    def _keys(self) -> dict[int, list[str]]:
        """Return the keys of the output, by attempt, in order."""
        found: dict[int, list[str]] = {}
        for key in sorted(self._store.list(parts.prefix(self._trial, self._only))):
            attempt = key.removeprefix(parts.prefix(self._trial)).partition("/")[0]
            if attempt.isdecimal():
                found.setdefault(int(attempt), []).append(key)
        return found

    def _lines(self, key: str) -> list[OutputLine]:
        self._read.add(key)
        try:
            return parts.decode(self._store.read(key))
        except (Missing, ValueError) as error:
            return [OutputLine(t=0.0, stream="regrow", text=f"{key} cannot be read: {error}")]


def _began(attempt: Attempt) -> OutputLine:
    where = f" on {attempt.where}" if attempt.where else ""
    text = f"attempt {attempt.number}{where}, from the beginning"
    if attempt.from_step:
        text = f"attempt {attempt.number}{where}, continues after step {attempt.from_step}"
    if attempt.t_began is None:
        text = f"attempt {attempt.number} never began"
    return OutputLine(t=attempt.t_began or attempt.t_started, stream="regrow", text=text)


def _ended(attempt: Attempt, t: float) -> OutputLine:
    why = f": {attempt.message}" if attempt.message else ""
    text = f"attempt {attempt.number} {attempt.outcome} at step {attempt.to_step}{why}"
    return OutputLine(t=t, stream="regrow", text=text)
