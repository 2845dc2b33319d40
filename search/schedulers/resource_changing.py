"""Changing resources: if fewer trials are left than there are slots, they share the free ones.

The idea is that of Ray Tune's ResourceChangingScheduler with its DistributeResources; no paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regrow.search.errors import SpecError
from regrow.search.options import check_whole
from regrow.search.schedulers.ahead import Ahead
from regrow.search.schedulers.base import (
    Candidate,
    Decision,
    End,
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
    trial's share is slots // running trials, as far as one node has room. Before a deadline, or the
    end of the money, it is so from the moment at which a new trial could not be trained to its end
    (Liaw et al., "HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline",
    SoCC 2019): none begins then, and its slots belong to the leaders. A trial whose share
    exceeds the width of its attempt gets its share at its next decision, and continues from its own
    checkpoint. Decisions are those of `schedule`, and in addition every `interval` steps, None for
    no additional ones. A repeated or promoted attempt gets the share of that moment; the width of a
    running attempt never shrinks. Without a number of trials and without such a limit
    nothing changes.
    """

    needs_max_steps = False

    def __init__(
        self, setting: Setting, *, schedule: object = None, interval: int | None = None
    ) -> None:
        from regrow.search.schedulers import DEFAULT, kind, make

        super().__init__(setting)
        check_whole("interval", interval, 1, "it is in steps")
        self._base = make(DEFAULT if schedule is None else schedule, setting)
        if interval is None and not kind(DEFAULT if schedule is None else schedule).decides:
            problem = "is needed, as the schedule decides at no step"
            raise SpecError("interval", None, problem, "write interval: 5")
        self._interval = interval
        self._slots = self._widest = 1
        self._proposed = 0
        self._late = False
        self._widths: dict[int, int] = {}
        """Widths of the running trials."""

    def apply(self, news: News) -> None:
        """Fold in an event, for the base with its own verdict where a trial only widened."""
        match news:
            case Opening():
                # attempts left by a lost driver are repeated at once, so they keep counting
                self._slots, self._widest = news.slots, news.widest
            case Candidate():
                self._proposed += 1
            case Start():
                self._widths[news.trial] = news.width
                news = Start(trial=news.trial)  # to the base, widths are not known
            case End() | Decision(verdict=Verdict(action="pause")):
                self._widths.pop(news.trial, None)
            case Revival(held=False):
                self._widths[news.trial] = 1  # it counts as running even before it starts
        if isinstance(news, Decision):
            if not self._base_decides(news.trial, len(news.values)):
                return
            if news.verdict.action == "restart":
                own = self._base.decide(news.trial, news.values)
                news = replace(news, verdict=own) if own.action == "continue" else news
        self._base.apply(news)

    def first(self, trial: int, after: int) -> int | None:
        """Return the next decision of the base or of the interval."""
        steps = [self._base.first(trial, after)]
        if self._interval is not None:
            steps.append(self.regular(after, self._interval, self._interval))
        return min((step for step in steps if step is not None), default=None)

    def first_of_next(self, trial: int) -> int | None:
        """Ask the base."""
        return self._base.first_of_next(trial) if isinstance(self._base, Ahead) else None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Return the base's verdict, or a restart with more slots for a trial that continues."""
        step = len(values)
        verdict = Verdict(why="resources are looked at")
        if self._base_decides(trial, step):
            verdict = self._base.decide(trial, values)
        if verdict.action != "continue":
            return verdict
        has, running = self._widths.get(trial, 1), len(self._widths)
        # Others may have more than their share, from before the cluster became smaller.
        share = min(self._share(running), self._slots - sum(self._widths.values()) + has)
        until = self.first(trial, step)
        if share <= has:
            return Verdict(until=until, why=verdict.why, judged_from=verdict.judged_from)
        trials = f"{running} of {self._slots} trials run"
        why = f"goes on with {share} slots instead of {has}: {trials}"
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

    def near_end(self, *, late: bool) -> None:
        """See EndAware."""
        self._late = late

    def _share(self, running: int, but: int | None = None) -> int:
        trials = self.setting.trials
        if not self._late and (trials is None or self._proposed < trials):
            return 1
        if self._base.promote(complete=True) not in (None, but):
            return 1
        return max(1, min(self._slots // max(1, running), self._widest))

    def _base_decides(self, trial: int, step: int) -> bool:
        """Return whether the base has a decision at this step."""
        return self._base.first(trial, step - 1) == step
