"""Converts logged rows to reports: each row that has the sweep's metric is one. Handles W&B's
steps.

A row without the metric is merged into the next one that has it; of what is logged several times
in between, each value is kept with that report. What is left at the end is a separate report, with
the last value of the metric.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from regrow.integrations.wandb.media import Keep, kept
from regrow.integrations.wandb.messages import print_once
from regrow.integrations.wandb.saved import SavedFiles
from regrow.tasks.errors import ReportError
from regrow.tasks.media.log import MediaLog
from regrow.tasks.trial.metric_values import number_of

STEPS = "_step"
"""The metric of a sweep that names none: W&B's own count of the rows."""
BETWEEN = "_steps/"
"""Before a name: its values between two reports, pairs of W&B's step and the value."""
MOST_BETWEEN = 1_000
"""Values of a name that are kept between two reports."""


@dataclass(kw_only=True)
class Rows:
    """The rows of one attempt. `room`: how many reports it may make, None for any number."""

    metric: str
    report: Callable[[Mapping[str, float]], None]
    keep: Callable[[Mapping[str, Any]], None]
    saved: SavedFiles
    media: MediaLog
    step: int = 0
    """W&B's step of the row that is being collected; logs for earlier steps are ignored."""
    known: int = 0
    """Rows that are in the log already, and repeated: the program starts from its beginning."""
    room: int | None = None
    resumes: bool = False
    """Whether the program resumes from what it saved; else the last report publishes files."""
    last: float | None = None
    """Last logged value of the metric; None before the first."""
    _row: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)
    """Values of rows without the metric."""
    _between: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """The same, each with its step."""

    def begin_again(self) -> None:
        """Count W&B's steps from 0 again: what follows are further rows."""
        self.step = 0

    def log(
        self,
        values: Mapping[str, float],
        media: Mapping[str, Keep],
        step: int | None,
        commit: bool | None,
    ) -> None:
        """Add numbers and media. A row ends when committed, or with given steps when the next one
        begins.
        """
        if step is not None and step < self.step:
            print_once(
                f"steps below {self.step} are recorded already; what is logged for them now is"
                " ignored"
            )
            return
        if step is not None and step > self.step:
            self._end_row()
            self.step = step
        if self.resumes:
            self.saved.assign_to_row()
        self._row |= values
        if self.known <= 0:  # else the media were logged with the row, by an attempt before
            self._log_media(media)
        if commit or (commit is None and step is None):
            self._end_row()
            self.step += 1

    def _log_media(self, media: Mapping[str, Keep]) -> None:
        for name, keep in media.items():
            try:
                keep(self.media, name)
            except (ReportError, OSError) as error:
                print_once(f"{name} is not recorded: {error}")

    def finish(self, summary: Mapping[str, float], media: Mapping[str, Keep]) -> None:
        """Report what is left; `summary`, `media`: what the program set in the summary."""
        self.saved.assign_to_row()
        self._log_media(media)
        self._row |= summary
        if self.metric == STEPS and self.last is None:
            self._row.setdefault(STEPS, self.step)
        self._end_row()
        if not self._before and not self.saved.waiting:
            return
        if self.last is None:
            # An error of the program, which the attempt reports with the available names.
            self.report(self._before)
        elif self.room is not None and self.room <= 0:
            print_once(
                "not recorded, as this was the last step (max_iter):"
                f" {', '.join(self._before) or 'the files saved since'}"
            )
        else:
            self._row = {self.metric: self.last}
            self._end_row()

    def _end_row(self) -> None:
        row, self._row = self._row, {}
        if self.metric == STEPS and row:
            row.setdefault(STEPS, self.step)
        for name, value in row.items() if self.known <= 0 else ():
            values = self._between.setdefault(name, [])
            values.append((self.step, value))
            if len(values) > MOST_BETWEEN:
                del values[0]
                print_once(
                    f"{name}: of its values between two logs of {self.metric}, the last"
                    f" {MOST_BETWEEN:,} are recorded"
                )
        if self.metric not in row:
            self._before |= row
            return
        row, self._before, self.last = self._before | row, {}, row[self.metric]
        if self.known > 0:
            self.known -= 1
            self.saved.discard()
            return
        between, self._between = self._between, {}
        several = {f"{BETWEEN}{name}": v for name, v in between.items() if len(v) > 1}
        if several:
            self.keep(several)
        self.saved.publish({"step": self.step + 1, "last": self.last})
        if self.room is not None:
            self.room -= 1
        self.report(row)


def plain(data: Any) -> tuple[dict[str, float], dict[str, Keep]]:
    """Return a map's numbers and its media by name, inner ones by `outer.inner`.

    Raises TypeError for no map.
    """
    if not isinstance(data, Mapping):
        raise TypeError(
            f"wandb.log takes a map, such as {{'loss': 0.5}}, not {type(data).__name__}"
        )
    found: dict[str, float] = {}
    media: dict[str, Keep] = {}
    for name, value in _leaves(data, ""):
        if more := dict(kept(name, value)):
            media |= more
            continue
        number = number_of(value)
        if number is not None:
            found[name] = int(value) if isinstance(value, numbers.Integral) else number
        else:
            kind = type(value).__name__
            print_once(f"{name}: {kind} is not recorded, only single numbers and media are")
    return found, media


def _leaves(data: Mapping[Any, Any], outer: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value
