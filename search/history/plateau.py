"""How many trials ended since the best value last improved by more than the tolerance."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Plateau:
    """Folds the ends of trials, in their order. A retried trial counts as not ended.

    Values are costs, of which less is better: the objective times its sign.
    """

    tolerance: float = 0.0
    _ends: dict[int, float | None] = field(default_factory=dict)
    """By ended trial, in the order of their ends, the best cost of all trials at that time."""
    _counted: tuple[float | None, int] | None = None, 0
    """The cost of the last improvement, and trials ended since. None: to be computed again."""

    def end(self, number: int, best: float | None) -> None:
        """Count a trial that ended. `best`: the best cost of all trials then, None for none."""
        self._ends[number] = best
        if self._counted is not None:
            self._counted = self._after(self._counted, best)

    def revive(self, number: int) -> None:
        self._ends.pop(number, None)
        self._counted = None

    def restart(self, tolerance: float) -> None:
        """Start again with another tolerance: trials that have ended so far do not count."""
        self.tolerance, self._ends, self._counted = tolerance, {}, (None, 0)

    @property
    def trials(self) -> int:
        if self._counted is None:
            self._counted = None, 0
            for best in self._ends.values():
                self._counted = self._after(self._counted, best)
        return self._counted[1]

    def _after(
        self, counted: tuple[float | None, int], best: float | None
    ) -> tuple[float | None, int]:
        start, since = counted
        if best is not None and (start is None or best < start - self.tolerance):
            return best, 0
        return start, since + 1
