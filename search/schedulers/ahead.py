"""Optional parts of a scheduler that look ahead: to the first decision on a trial that is not
proposed yet, without which a new trial is taken to run to its end; and to the experiment's end.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Ahead(Protocol):
    """Optional part of a scheduler that knows when the first decision on a new trial is due."""

    def first_of_next(self, trial: int) -> int | None:
        """Return the step of the first decision on the trial that is proposed next, `trial`; None
        for none before its end.
        """
        ...


@runtime_checkable
class EndAware(Protocol):
    """Optional part of a scheduler for which the end of the money or time belongs to the best: no
    new trial begins that could not be trained to its end.
    """

    def near_end(self, *, late: bool) -> None:
        """Fold in whether a new trial could not be trained to its end any more."""
        ...
