"""The scheduler of `search: dehb`, whose proposals come with a budget."""

from __future__ import annotations

from collections.abc import Sequence

from regrow.search.schedulers.base import Candidate, Final, Scheduler, Verdict
from regrow.search.space.setting import Setting


class DehbScheduler(Scheduler):
    """Stops a trial after the steps that its sampler gave it, state["budget"]; without, never."""

    needs_max_steps = False
    takes_budgets = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._budgets: dict[int, int] = {}

    def added(self, candidate: Candidate) -> None:
        """Store the trial's budget."""
        budget = candidate.state.get("budget")
        if isinstance(budget, int):
            self._budgets[candidate.trial] = budget

    def ended(self, trial: int, how: Final) -> None:
        """Remove the trial, unless it may be retried."""
        if how != "failed":
            self._budgets.pop(trial, None)

    def first(self, trial: int, after: int) -> int | None:
        """Return the end of the trial's budget, if that is below max_steps."""
        budget = self._budgets.get(trial)
        if budget is None or budget <= after or budget == self.setting.max_steps:
            return None
        return budget

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Stop the trial."""
        return Verdict(action="stop", why=f"its budget of {len(values)} steps is used")
