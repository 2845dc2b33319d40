"""What a program logs, as reports: each row that has the sweep's metric is one. Steps of W&B's are told apart here.

A row without the metric goes with the next one that has it. What is left at the end is a report of its own, with the metric as it
was last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from regrow.tasks.wandb.said import say
from regrow.tasks.wandb.saved import Saved


@dataclass(kw_only=True)
class Rows:
    """The rows of one attempt. `room` is how many reports it may make, None for any number."""

    metric: str
    report: Callable[[Mapping[str, float]], None]
    saved: Saved
    step: int = 0
    """W&B's step of the row that is being gathered; what is logged for an earlier one is ignored."""
    known: int = 0
    """Rows that stand in the log already and come once more, as the program begins anew."""
    room: int | None = None
    resumes: bool = False
    """Whether the program goes on from what it saved; else files are kept at the end alone."""
    last: float | None = None
    """The metric as it was logged last; None before."""
    _row: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)
    """Of rows that had no metric."""

    def begin_again(self) -> None:
        """Steps of W&B's count from 0 again: what follows are further rows."""
        self.step = 0

    def log(self, numbers: Mapping[str, float], step: int | None, commit: bool | None) -> None:
        """Takes numbers in; a row ends when it is committed or, by default where steps are given, when the next one begins."""
        if step is not None and step < self.step:
            say(f"steps below {self.step} are recorded already; what is logged for them now is ignored")
            return
        if step is not None and step > self.step:
            self._end_row()
            self.step = step
        if self.resumes:
            self.saved.ripen()
        self._row |= numbers
        if commit or (commit is None and step is None):
            self._end_row()
            self.step += 1

    def finish(self, summary: Mapping[str, float]) -> None:
        """Reports what is left; `summary` is what the program set there itself."""
        self.saved.ripen()
        self._row |= summary
        self._end_row()
        if not self._before and not self.saved.waiting:
            return
        if self.last is None:
            self.report(self._before)  # an error of the program's, which the attempt tells with what is there
        elif self.room is not None and self.room <= 0:
            say(f"not recorded, as this was the last step (max_iter): {', '.join(self._before) or 'the files saved since'}")
        else:
            self._row = {self.metric: self.last}
            self._end_row()

    def _end_row(self) -> None:
        row, self._row = self._row, {}
        if self.metric not in row:
            for name in row.keys() & self._before.keys():
                say(f"{name} is logged more often than {self.metric}: of each step its last value is recorded")
            self._before |= row
            return
        row, self._before, self.last = self._before | row, {}, row[self.metric]
        if self.known > 0:
            self.known -= 1
            self.saved.discard()
            return
        self.saved.publish({"step": self.step + 1, "last": self.last})
        if self.room is not None:
            self.room -= 1
        self.report(row)
