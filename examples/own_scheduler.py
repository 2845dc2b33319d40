"""A scheduler of one's own: a trial stops once it is far behind the best one at the same step.

Named in a specification as `schedule: {"own_scheduler:Gap": {most: 0.2}}` (see own_search.yaml);
checked by `python -c 'from regrow.testing import check_scheduler;
check_scheduler("own_scheduler:Gap")'`.
"""

from __future__ import annotations

from collections.abc import Sequence

from regrow.testing import Scheduler, Setting, Verdict


class Gap(Scheduler):
    """Every `interval` steps, a trial that is worse than the best at that step by more than `most`
    is stopped.
    """

    def __init__(self, setting: Setting, *, most: float = 0.2, interval: int = 3) -> None:
        super().__init__(setting)
        self._most, self._interval = most, interval
        self._best: dict[int, float] = {}  # cost by step

    def first(self, trial: int, after: int) -> int | None:
        """The next multiple of the interval before the trial's end."""
        step = (after // self._interval + 1) * self._interval
        return step if self.setting.max_steps is None or step < self.setting.max_steps else None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Compares with the best that any trial had at this step."""
        step, cost = len(values), self.setting.sign * values[-1]
        behind = cost - self._best.get(step, cost)
        why = f"{behind:.3g} behind the best at step {step}"
        return (
            Verdict(action="stop", why=why)
            if behind > self._most
            else Verdict(until=self.first(trial, step), why=why)
        )

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """All that it remembers, so that it can be rebuilt from the log."""
        step, cost = len(values), self.setting.sign * values[-1]
        self._best[step] = min(cost, self._best.get(step, cost))
