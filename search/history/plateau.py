"""The plateau of an experiment: how many trials ended since the best value last improved by more than the tolerance."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Plateau:
    """Folds the ends of trials, in their order. A trial that is tried again after its end has not ended.

    Values are costs, of which less is better: the objective times its sign.
    """

    tolerance: float = 0.0
    _ends: dict[int, float | None] = field(default_factory=dict)
    """Of each trial that ended, in that order, the best cost of all by then; None: there was none."""
    _counted: tuple[float | None, int] | None = None, 0
    """The cost from which it is counted, and how many trials ended since; None: not known, for one of them was revived."""

    def end(self, number: int, best: float | None) -> None:
        """A trial ended for good; `best`: the best cost of all trials then."""
        self._ends[number] = best
        if self._counted is not None:
            self._counted = self._after(self._counted, best)

    def revive(self, number: int) -> None:
        """A trial that had ended is tried again."""
        self._ends.pop(number, None)
        self._counted = None

    def restart(self, tolerance: float) -> None:
        """What counts as better is another thing from here on: the trials that ended by now do not count."""
        self.tolerance, self._ends, self._counted = tolerance, {}, (None, 0)

    @property
    def trials(self) -> int:
        """Trials that ended since the best value last improved."""
        if self._counted is None:
            self._counted = None, 0
            for best in self._ends.values():
                self._counted = self._after(self._counted, best)
        return self._counted[1]

    def _after(self, counted: tuple[float | None, int], best: float | None) -> tuple[float | None, int]:
        start, since = counted
        if best is not None and (start is None or best < start - self.tolerance):
            return best, 0
        return start, since + 1
