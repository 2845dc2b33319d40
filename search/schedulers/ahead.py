"""When the first decision on a trial is due that is not proposed yet. Without this part of a
scheduler a new trial is taken to run to its end.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Ahead(Protocol):
    """Optional part of a scheduler that knows when the first decision on a new trial is due."""

    def opening(self, trial: int) -> int | None:
        """Return the step of the first decision on the trial that is proposed next, `trial`; None
        for none before its end.
        """
        ...
