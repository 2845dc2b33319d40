"""The rows of an experiment: read from its log, in a stream, by whoever wants all that was reported.

Who folds a log keeps a number a step (`search/curve.py`). Its history then says which rows count: those of the attempt whose
step stands in the trial's curve; what was superseded is passed over.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import msgspec

from regrow.infra.log.log import Cut, Log
from regrow.search.curve import counting
from regrow.search.events import Reported, Row, decode
from regrow.search.history import History, TrialRecord
from regrow.tasks.ports import Store

SPILL_BYTES = 16 << 20
"""So much of the sorted rows is held in memory; more goes into a temporary file."""

_rows = msgspec.json.Decoder(list[Row])


class Rows:
    """The rows that count. Each way of reading them is one pass over the log, with memory for one report at a time.

    `reports` begins to read anew each time it is called. A log that has grown since `history` was read says nothing new here.
    """

    def __init__(self, history: History, reports: Callable[[], Iterable[Reported]]) -> None:
        self.history = history
        self._reports = reports

    @classmethod
    def logged(cls, history: History, store: Store) -> Rows:
        """Those in the log of a store. Reading raises CorruptLog, and what the store raises."""
        return cls(history, lambda: reports(store))

    def __iter__(self) -> Iterator[tuple[TrialRecord, int, Sequence[Row]]]:
        """(trial, attempt, rows) of each report, in the order of the log: steps of a trial ascend, trials take turns."""
        trials = self.history.trials
        for event in self._reports():
            if event.trial < len(trials):
                trial = trials[event.trial]
                if rows := counting(trial.curve.runs, event.attempt, event.rows):
                    yield trial, event.attempt, rows

    def of(self, number: int) -> Iterator[tuple[int, Row]]:
        """(attempt, row) of each step of one trial."""
        for trial, attempt, rows in self:
            if trial.number == number:
                for row in rows:
                    yield attempt, row

    def names(self) -> list[str]:
        """Names of all metrics: those of the specification, also if they were not reported, then the others, sorted."""
        seen: dict[str, None] = {}
        for _, _, rows in self:
            _see(seen, rows)
        return _ordered(self.history, seen)

    @contextmanager
    def sorted(self, number: int | None = None) -> Iterator[Sorted]:
        """Within the block: by trial and step, all of them or those of one trial."""
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
        """Reads those rows again that a rewind took from the history, see `Curve.forgotten`."""
        due = {trial.number: steps for trial in self.history.trials if (steps := trial.curve.forgotten)}
        if not due:
            return
        for trial, _, rows in self:
            for row in rows if trial.number in due else ():
                if row.step in due[trial.number]:
                    trial.curve.recall(row)


class Sorted:
    """Rows by trial and step, as `Rows.sorted` made them, and the `names` of their metrics in the order of `Rows.names`."""

    def __init__(self, names: list[str], spill: IO[bytes], places: dict[int, array[int]]) -> None:
        self.names = names
        self._spill, self._places = spill, places

    def of(self, number: int) -> Iterator[tuple[int, Row]]:
        """(attempt, row) of each step of one trial."""
        places = self._places.get(number, array("q"))
        for place in range(0, len(places), 3):
            at, length, attempt = places[place : place + 3]
            self._spill.seek(at)
            for row in _rows.decode(self._spill.read(length)):
                yield attempt, row

    def __iter__(self) -> Iterator[tuple[int, int, Row]]:
        """(trial, attempt, row) of each step."""
        for number in sorted(self._places):
            for attempt, row in self.of(number):
                yield number, attempt, row


def reports(store: Store, after: int = 0) -> Iterator[Reported]:
    """All that was ever reported in the segments after `after`, in the order of the log. Raises CorruptLog."""

    def skip(_: Cut) -> None:
        """Who folded the log was told of it."""

    for _, lines in Log.read(store, after, on_cut=skip):
        for line in lines:
            if b'"reported"' in line[:64] and isinstance(event := decode(line), Reported):
                yield event


def _see(seen: dict[str, None], rows: Sequence[Row]) -> None:
    """Names in rows; nearly always the same in all of them."""
    before: tuple[str, ...] = ()
    for row in rows:
        if (names := tuple(row.metrics)) != before:
            before = names
            seen.update(dict.fromkeys(names))


def _ordered(history: History, seen: Iterable[str]) -> list[str]:
    first = [metric.name for metric in history.spec.metrics]
    return [*first, *sorted(set(seen) - set(first))]
