"""Converts logged rows to reports: each row that has the sweep's metric is one. Handles W&B's
steps.

A row without the metric is merged into the next one that has it. What is left at the end is a
separate report, with the last value of the metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from regrow.integrations.wandb.said import say
from regrow.integrations.wandb.saved import Saved


@dataclass(kw_only=True)
class Rows:
    """The rows of one attempt. `room`: how many reports it may make, None for any number."""

    metric: str
    report: Callable[[Mapping[str, float]], None]
    saved: Saved
    step: int = 0
    """W&B's step of the row that is being collected; logs for earlier steps are ignored."""
    known: int = 0
    """Number of rows that are in the log already and will be repeated, because the program starts
    from its beginning.
    """
    room: int | None = None
    resumes: bool = False
    """Whether the program resumes from what it saved; otherwise files are published only with the
    last report.
    """
    last: float | None = None
    """Last logged value of the metric; None before the first."""
    _row: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)
    """Values of rows without the metric."""

    def begin_again(self) -> None:
        """Count W&B's steps from 0 again: what follows are further rows."""
        self.step = 0

    def log(self, numbers: Mapping[str, float], step: int | None, commit: bool | None) -> None:
        """Add numbers. A row ends when it is committed or, by default if steps are given, when the
        next one begins.
        """
        if step is not None and step < self.step:
            say(
                f"steps below {self.step} are recorded already; what is logged for them now is"
                " ignored"
            )
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
        """Report what is left; `summary`: values that the program set in the summary."""
        self.saved.ripen()
        self._row |= summary
        self._end_row()
        if not self._before and not self.saved.waiting:
            return
        if self.last is None:
            # An error of the program, which the attempt reports with the available names.
            self.report(self._before)
        elif self.room is not None and self.room <= 0:
            say(
                "not recorded, as this was the last step (max_iter):"
                f" {', '.join(self._before) or 'the files saved since'}"
            )
        else:
            self._row = {self.metric: self.last}
            self._end_row()

    def _end_row(self) -> None:
        row, self._row = self._row, {}
        if self.metric not in row:
            for name in row.keys() & self._before.keys():
                say(
                    f"{name} is logged more often than {self.metric}: of each step its last value"
                    " is recorded"
                )
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
