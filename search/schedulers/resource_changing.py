"""Changing resources: if fewer trials are left than there are slots, they share the free ones.

The idea is that of Ray Tune's ResourceChangingScheduler with its DistributeResources; no paper.
"""

from __future__ import annotations

from collections.abc import Sequence

from regrow.search.errors import SpecError
from regrow.search.schedulers.base import (
    Candidate,
    Decision,
    Drop,
    End,
    Final,
    News,
    Opening,
    Revival,
    Scheduler,
    Start,
    Verdict,
)
from regrow.search.space.setting import Setting


class ResourceChanging(Scheduler):
    """Another schedule, which takes all decisions, with attempts that grow wider when slots are
    free.

    `schedule` (a name, or {name: options}; default: no trial is stopped) is the one that decides.
    Once all trials of the experiment have been proposed and no paused trial would be promoted, a
    trial's share is slots // running trials, as far as one node has room. A trial whose share
    exceeds the width of its attempt gets its share at its next decision, and continues from its own
    checkpoint. Decisions are those of `schedule`, and in addition every `interval` steps, None for
    no additional ones. A repeated or promoted attempt gets the share of that moment; the width of a
    running attempt never shrinks. Without a number of trials nothing changes.
    """

    needs_max_steps = False

    def __init__(
        self, setting: Setting, *, schedule: object = None, interval: int | None = None
    ) -> None:
        from regrow.search.schedulers import DEFAULT, kind, make

        super().__init__(setting)
        if interval is not None and (
            isinstance(interval, bool) or not isinstance(interval, int) or interval < 1
        ):
            raise SpecError("interval", interval, "is not a whole number from 1", "it is in steps")
        self._base = make(DEFAULT if schedule is None else schedule, setting)
        if interval is None and not kind(DEFAULT if schedule is None else schedule).decides:
            problem = "is needed, as the schedule decides at no step"
            raise SpecError("interval", None, problem, "write interval: 5")
        self._interval = interval
        self._slots = self._widest = 1
        self._proposed = 0
        self._widths: dict[int, int] = {}
        """Widths of the running trials."""

    # ---- the fold

    def apply(self, news: News) -> None:
        """Fold in an event.

        An attempt's actual width may be less than its trial's share, if other attempts hold more
        than theirs because the cluster has become smaller.
        """
        super().apply(news)
        if isinstance(news, Start):
            self._widths[news.trial] = news.width

    def opened(self, slots: int, widest: int) -> None:
        """Store the cluster's size. Attempts left by a lost driver are repeated at once, so they
        keep counting as running.
        """
        self._slots = slots
        self._widest = widest
        self._base.apply(Opening(slots=slots, widest=widest))

    def added(self, candidate: Candidate) -> None:
        """Count one more trial."""
        self._proposed += 1
        self._base.apply(candidate)

    def started(self, trial: int) -> None:
        """Note that the trial runs, with the width that `width` returned just before."""
        self._widths[trial] = self.width(trial)
        self._base.apply(Start(trial=trial))

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Pass the decision to the base; where this scheduler only widened the trial, pass the
        base's own verdict.
        """
        if verdict.action == "pause":
            self._widths.pop(trial, None)
        if not self._due(trial, len(values)):
            return
        if verdict.action == "restart":
            own = self._base.decide(trial, values)
            verdict = own if own.action == "continue" else verdict
        self._base.apply(Decision(trial=trial, values=values, verdict=verdict))

    def dropped(self, trial: int) -> None:
        """Pass on to the base."""
        self._base.apply(Drop(trial=trial))

    def ended(self, trial: int, how: Final) -> None:
        """Free the trial's slots."""
        self._widths.pop(trial, None)
        self._base.apply(End(trial=trial, how=how))

    def revived(self, trial: int, *, held: bool) -> None:
        """Count a trial that is to be repeated as running even before it starts."""
        if not held:
            self._widths[trial] = 1
        self._base.apply(Revival(trial=trial, held=held))

    # ---- queries

    def first(self, trial: int, after: int) -> int | None:
        """Return the next decision of the base or of the interval."""
        steps = [self._base.first(trial, after)]
        if self._interval is not None:
            step = (after // self._interval + 1) * self._interval
            steps.append(
                step if self.setting.max_steps is None or step < self.setting.max_steps else None
            )
        return min((step for step in steps if step is not None), default=None)

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Return the base's verdict, or a restart with more slots for a trial that continues."""
        step = len(values)
        verdict = (
            self._base.decide(trial, values)
            if self._due(trial, step)
            else Verdict(why="resources are looked at")
        )
        if verdict.action != "continue":
            return verdict
        has = self._widths.get(trial, 1)
        # Others may have more than their share, from before the cluster became smaller.
        share = min(self._share(len(self._widths)), self._slots - sum(self._widths.values()) + has)
        until = self.first(trial, step)
        if share <= has:
            return Verdict(until=until, why=verdict.why)
        why = (
            f"goes on with {share} slots instead of {has}: {len(self._widths)} of {self._slots}"
            " trials run"
        )
        return Verdict(action="restart", until=until, why=why)

    def promote(self, *, complete: bool) -> int | None:
        """Ask the base."""
        return self._base.promote(complete=complete)

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        """Ask the base."""
        return self._base.surplus(complete=complete)

    def width(self, trial: int) -> int:
        """Return the trial's share if it runs beside the others."""
        return self._share(len(self._widths.keys() | {trial}), but=trial)

    def _share(self, running: int, but: int | None = None) -> int:
        if self.setting.trials is None or self._proposed < self.setting.trials:
            return 1
        if self._base.promote(complete=True) not in (None, but):
            return 1
        return max(1, min(self._slots // max(1, running), self._widest))

    def _due(self, trial: int, step: int) -> bool:
        """Return whether the base has a decision at this step."""
        return self._base.first(trial, step - 1) == step
