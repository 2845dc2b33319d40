"""The rows of an experiment, streamed from its log for readers that need every report.

The folded history keeps only one number per step (`search/curve.py`). It decides which rows count:
those of the attempt whose step is in the trial's curve. Superseded rows are skipped.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import msgspec

from regrow.infra.log.log import Contradiction, CorruptLog, Cut, Log
from regrow.search.curve import counting
from regrow.search.events import Reported, Row, decode
from regrow.search.history import History, TrialRecord
from regrow.tasks.ports.store import Store

SPILL_BYTES = 16 << 20
"""Bytes of sorted rows that are held in memory; more goes into a temporary file."""

_rows = msgspec.json.Decoder(list[Row])


class LogRows:
    """The rows that count. Each way of reading them is one pass over the log, with one report in
    memory at a time.

    `reports` starts reading from the beginning on each call. Lines that were added to the log after
    `history` was read are ignored.
    """

    def __init__(self, history: History, reports: Callable[[], Iterable[Reported]]) -> None:
        self.history = history
        self._reports = reports

    @classmethod
    def logged(cls, history: History, store: Store, damage: CorruptLog | None = None) -> LogRows:
        """Return the rows in the log of a store. Reading raises CorruptLog, and what the store
        raises.

        `damage`: the damage up to which the history was read; None: the whole log was read.
        """
        return cls(history, lambda: reports(store, damage=damage))

    def __iter__(self) -> Iterator[tuple[TrialRecord, int, Sequence[Row]]]:
        """Yield (trial, attempt, rows) of each report, as logged: the steps of a trial ascend."""
        for trial, event, rows in self.events():
            yield trial, event.attempt, rows

    def events(self) -> Iterator[tuple[TrialRecord, Reported, Sequence[Row]]]:
        """Yield (trial, event, its rows that count) of each report, as logged."""
        trials = self.history.trials
        for event in self._reports():
            if 0 <= event.trial < len(trials):
                trial = trials[event.trial]
                if rows := counting(trial.curve.runs, event.attempt, event.rows):
                    yield trial, event, rows

    def of(self, number: int) -> Iterator[tuple[int, Row]]:
        """Yield (attempt, row) of each step of one trial."""
        for trial, attempt, rows in self:
            if trial.number == number:
                for row in rows:
                    yield attempt, row

    def names(self) -> list[str]:
        """Return the names of all metrics: the specification's, then the others, sorted."""
        seen: dict[str, None] = {}
        for _, _, rows in self:
            _see(seen, rows)
        return _ordered(self.history, seen)

    @contextmanager
    def sorted(self, number: int | None = None) -> Iterator[Sorted]:
        """Provide the rows sorted by trial and step, of all trials or one, within the block."""
        seen: dict[str, None] = {}
        with tempfile.SpooledTemporaryFile(max_size=SPILL_BYTES) as spill:
            places: dict[int, array[int]] = {}
            at = 0
            for trial, attempt, rows in self:
                if number in (None, trial.number):
                    _see(seen, rows)
                    data = msgspec.json.encode(rows)
                    spill.write(data)
                    places.setdefault(trial.number, array("q")).extend((at, len(data), attempt))
                    at += len(data)
            yield Sorted(_ordered(self.history, seen), spill, places)

    def recall(self) -> None:
        """Read again the rows that a rewind dropped from the history, see `Curve.forgotten`."""
        due = {
            trial.number: steps for trial in self.history.trials if (steps := trial.curve.forgotten)
        }
        if not due:
            return
        for trial, _, rows in self:
            for row in rows if trial.number in due else ():
                if row.step in due[trial.number]:
                    trial.curve.recall(row)


class Sorted:
    """Rows by trial and step, as made by `LogRows.sorted`. `names`: of metrics, as in `LogRows`."""

    def __init__(self, names: list[str], spill: IO[bytes], places: dict[int, array[int]]) -> None:
        self.names = names
        self._spill, self._places = spill, places

    def of(self, number: int) -> Iterator[tuple[int, Row]]:
        """Yield (attempt, row) of each step of one trial."""
        places = self._places.get(number, array("q"))
        for place in range(0, len(places), 3):
            at, length, attempt = places[place : place + 3]
            self._spill.seek(at)
            for row in _rows.decode(self._spill.read(length)):
                yield attempt, row

    def __iter__(self) -> Iterator[tuple[int, int, Row]]:
        """Yield (trial, attempt, row) of each step."""
        for number in sorted(self._places):
            for attempt, row in self.of(number):
                yield number, attempt, row


def reports(
    store: Store, after: int = 0, *, damage: CorruptLog | None = None
) -> Iterator[Reported]:
    """Yield all reports in the segments after `after`, in the order of the log, up to `damage`.
    Superseded reports are included. Raises CorruptLog.
    """

    def skip(_: Cut) -> None:
        """Ignore the cut: it was reported when the log was folded."""

    end = (damage.segment, damage.line) if isinstance(damage, Contradiction) else None
    try:
        for number, lines in Log.read(store, after, on_cut=skip):
            for place, line in enumerate(lines, start=1):
                if (number, place) == end:
                    return
                if b'"reported"' in line[:64] and isinstance(event := decode(line), Reported):
                    yield event
    except CorruptLog:
        if damage is None:
            raise


def _see(seen: dict[str, None], rows: Sequence[Row]) -> None:
    """Add the metric names of the rows to `seen`. Nearly always all rows have the same names."""
    before: tuple[str, ...] = ()
    for row in rows:
        if (names := tuple(row.metrics)) != before:
            before = names
            seen.update(dict.fromkeys(names))


def _ordered(history: History, seen: Iterable[str]) -> list[str]:
    first = [metric.name for metric in history.spec.metrics]
    return [*first, *sorted(set(seen) - set(first))]
