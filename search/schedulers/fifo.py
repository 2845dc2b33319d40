"""First in, first out: every trial runs to its end."""

from __future__ import annotations

from regrow.search.schedulers.base import Verdict


class Fifo:
    """No trial is stopped early."""

    def first(self, after: int) -> int | None:
        """No decision is ever due."""
        return None

    def decide(self, trial: int, step: int, value: float) -> Verdict:
        """Goes on."""
        return Verdict(go_on=True)

    def tell(self, trial: int, step: int, value: float) -> None:
        """Nothing to remember."""
