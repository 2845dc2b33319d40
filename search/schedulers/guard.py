"""The guard of schedulers that stop trials early: nobody is stopped at an early step whose ranks
were not seen to agree with later ones, nor at a later one whose ranks were seen not to.

Agreement is Kendall's tau over pairs of trials: the order of two trials at a step against that of
their best values by the latest later step that both reached and that is trusted itself. A trial
that was stopped has no later values, so it is compared at the step where it was stopped, which was
trusted. A pair that is compared before the end says as much as the step where it is compared: it
counts by the agreement of that step with the end. Two trials that were both selected at a step say
nothing about it: among the best of a selection ranks agree less than among all. Estimates from few
trials are drawn towards what is expected beforehand, which grows with the step's share of
`max_steps`.

That a trial was stopped in error is never seen. So some that would be stopped run to their ends as
probes: the first of them, and later a part of all steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from regrow.search.errors import SpecError
from regrow.search.options import check_within
from regrow.search.schedulers.base import Decision, End, Exclusion, News, Scheduler, Verdict
from regrow.search.step_metric import stretches

LEAST: Final = 0.3
"""Least agreement of a step at which trials are stopped, with `guard: true`."""
EXPECTED: Final = 0.6
"""The agreement expected beforehand is this times the root of the step's share of `max_steps`: a
quarter of the steps is enough for LEAST without evidence.
"""
DOUBT: Final = 0.36
"""Variance of what is expected beforehand."""
ENOUGH: Final = 4
"""Fewest trials with later values by which a step may come to be trusted."""
NEWEST: Final = 48
"""Number of the newest trials with later values that are compared; time grows with its square."""
PROBED: Final = 1.0
"""Trainings that the first probes may cost together."""
PROBED_BUDGET: Final = 0.1
"""Share of a budget that the first probes may cost."""
PROBED_SHARE: Final = 0.03
"""Share of all steps so far that later probes may cost."""


class Agreement:
    """How far ranks at some steps agree with later ones, as a fold of what was observed.

    Args:
        steps: those at which trials are judged, in ascending order, below `last`.
        last: the last step.
        least: the least agreement of a step at which trials are stopped.

    """

    def __init__(self, steps: Sequence[int], last: int, least: float = LEAST) -> None:
        self._least = least
        self._steps = [*steps, last]
        self._last = last
        self._costs: dict[int, list[tuple[float, float]]] = {}
        """By trial, its cost at each step that it has reached, and the least one by then."""
        self._reached: list[list[float]] = [[] for _ in self._steps]
        """By step, the costs of all trials there in ascending order."""
        self._selected: dict[int, set[int]] = {}
        """Steps at which the trial was judged while they were trusted."""
        self._excluded: set[int] = set()
        self._known: dict[int, tuple[float, int]] | None = None
        """By step, agreement and number of trials; None if it is to be computed again."""

    def observe(self, trial: int, costs: Sequence[float], sign: float = 1.0) -> None:
        """Note a trial's values, by step from 1 on; `sign` makes them costs."""
        reached = bisect_right(self._steps, len(costs))
        known = self._costs.setdefault(trial, [])
        while len(known) < reached:
            before, step = self._steps[len(known) - 1] if known else 0, self._steps[len(known)]
            least = min(_least(costs, before, step, sign), known[-1][1] if known else math.inf)
            insort(self._reached[len(known)], sign * costs[step - 1])
            known.append((sign * costs[step - 1], least))
            if reached > 1:
                self._known = None

    def select(self, trial: int, step: int, cost: float) -> None:
        """Note that a trial was judged at a step, if that is trusted and the trial is among the
        better half there: a worse one that continues was not selected.
        """
        if self.trusted(step):
            place = bisect_right(self._steps, step) - 1
            reached = self._reached[place]
            if bisect_left(reached, cost) <= len(reached) / 2:
                self._selected.setdefault(trial, set()).add(self._steps[place])

    def exclude(self, trial: int, *, excluded: bool) -> None:
        """Leave a trial out, or take it in again."""
        (self._excluded.add if excluded else self._excluded.discard)(trial)
        self._known = None

    def trusted(self, step: int) -> bool:
        """Return whether trials may be stopped at a step: as at the last of `steps` up to it."""
        at = bisect_right(self._steps, step)
        return at > 0 and self.at(self._steps[at - 1])[0] >= self._least

    def first_trusted(self) -> int:
        """Return the first step at which trials are stopped; the last one for none before."""
        return next(step for step in self._steps if self.trusted(step))

    def describe(self, step: int) -> str:
        """Return in words what is known of a step's agreement with later ones."""
        agreement, n = self._before(step)
        if not n:
            return ""
        return f" (agreement {agreement:.2f} in {n} trials, least {self._least:g})"

    def is_known(self, step: int) -> bool:
        """Return whether trials have shown how far a step agrees with later ones."""
        return self._before(step)[1] > 0

    def _before(self, step: int) -> tuple[float, int]:
        """Return agreement and number of trials at the last of `steps` up to a step."""
        return self.at(self._steps[max(0, bisect_right(self._steps, step) - 1)])

    def at(self, step: int) -> tuple[float, int]:
        """Return the agreement of one of the steps with later ones, and by how many trials."""
        if self._known is None:
            self._known = self._computed()
        return self._known[step]

    def _computed(self) -> dict[int, tuple[float, int]]:
        """Compute from the last step to the first, as a step is compared with trusted ones."""
        numbers = sorted(
            number
            for number, costs in self._costs.items()
            if len(costs) > 1 and number not in self._excluded
        )[-NEWEST:]
        found = {self._last: (1.0, 0)}
        trusted = {len(self._steps) - 1: 1.0}
        """Agreement of trusted steps with the end by place, the latest first."""
        for place in reversed(range(len(self._steps) - 1)):
            step = self._steps[place]
            found[step] = self._agreement_at(place, trusted, numbers)
            agreement, _ = found[step]
            if agreement >= self._least:
                trusted[place] = agreement
        return found

    def _agreement_at(
        self, place: int, trusted: Mapping[int, float], numbers: Sequence[int]
    ) -> tuple[float, int]:
        """Return agreement and number of trials. `trusted`: agreement by place."""
        step = self._steps[place]
        later = []
        for number in numbers:
            costs = self._costs[number]
            if any(place < at < len(costs) for at in trusted):
                later.append((costs, step in self._selected.get(number, ())))
        score, pairs = 0.0, 0
        for i, (one, chosen) in enumerate(later):
            for other, too in later[:i]:
                if chosen and too:
                    continue
                both = min(len(one), len(other))
                at = next((at for at in trusted if place < at < both), None)
                if at is None or one[at][1] == other[at][1]:
                    continue
                pairs += 1
                if one[place][0] != other[place][0]:
                    alike = (one[place][0] < other[place][0]) == (one[at][1] < other[at][1])
                    score += trusted[at] if alike else -trusted[at]
        expected = EXPECTED * (step / self._last) ** 0.5
        n = len(later)
        if not pairs or n < ENOUGH:
            return expected, 0
        noise = 2 * (2 * n + 5) / (9 * n * (n - 1))
        weight = DOUBT / (DOUBT + noise)
        return weight * score / pairs + (1 - weight) * expected, n


def _least(values: Sequence[float], before: int, step: int, sign: float) -> float:
    """Return the least cost after step `before` up to `step`."""
    least, place = math.inf, before
    for value, count in stretches(values, before):
        if place >= step:
            break
        least, place = min(least, sign * value), place + count
    return least


class Probes:
    """Trials that run to their ends though they would have been stopped, and how many there may be,
    as a fold of what was observed. `trainings`: the budget, None for none.
    """

    def __init__(self, max_steps: int, trainings: float | None) -> None:
        self._max_steps = max_steps
        first = PROBED if trainings is None else min(PROBED, PROBED_BUDGET * trainings)
        self._first = first * max_steps
        self._trials: set[int] = set()
        self._cost = 0
        """Steps of probes after those at which they would have been stopped."""
        self._done: dict[int, int] = {}
        """By trial, the steps that it is known to have done."""
        self._all_done = 0

    def __contains__(self, trial: int) -> bool:
        return trial in self._trials

    def observe(self, trial: int, steps: int) -> None:
        """Note the steps that a trial has done."""
        before = self._done.get(trial, 0)
        self._done[trial] = max(before, steps)
        self._all_done += self._done[trial] - before

    def has_room(self, step: int) -> bool:
        """Return whether a trial at a step may become a probe."""
        cost = self._cost + self._max_steps - step
        return cost <= self._first + PROBED_SHARE * self._all_done

    def add(self, trial: int, step: int) -> None:
        """Make a trial a probe from a step on."""
        self._trials.add(trial)
        self._cost += self._max_steps - step


class Guarded(Scheduler):
    """Base class of schedulers that have the guard as an option. Subclasses override `judge` in
    place of `decide`.
    """

    agreement: Agreement | None = None
    """None: no guard."""

    def guard(self, steps: Sequence[int], option: bool | float | None) -> None:
        """Switch the guard on, unless the option is False or None. Raises SpecError.

        Args:
            steps: those at which trials are judged.
            option: the least agreement of a step at which trials are stopped; True for LEAST, False
                and None for no guard.

        """
        if option is None or option is False:
            return
        least = LEAST if option is True else option
        check_within("guard", least, 0, 1, "write true, or the least agreement: 0.2")
        if self.setting.max_steps is None:
            raise SpecError("guard", option, "needs max_steps", "write max_steps: 27")
        self.agreement = Agreement(sorted(set(steps)), self.setting.max_steps, least)
        self._probes = Probes(self.setting.max_steps, self.setting.trainings)

    def apply(self, news: News) -> None:
        """Fold in an event, also into what is known of the agreement."""
        if self.agreement is not None:
            match news:
                case Decision():
                    self._note(news)
                    self._observe(news.trial, news.values)
                case End():
                    self._observe(news.trial, news.values)
                case Exclusion():
                    self.agreement.exclude(news.trial, excluded=news.excluded)
                case _:
                    pass
        super().apply(news)

    def _note(self, news: Decision) -> None:
        """Note whether the trial was selected, or continues as a probe."""
        assert self.agreement is not None
        step = len(news.values)
        if news.verdict.action == "continue" and self._probing(news.trial, news.values):
            self._probes.add(news.trial, step)
        if news.trial not in self._probes and not self.is_recheck(news.trial, step):
            self.agreement.select(news.trial, step, self.setting.sign * news.values[-1])

    def _observe(self, trial: int, values: Sequence[float]) -> None:
        assert self.agreement is not None
        self.agreement.observe(trial, values, self.setting.sign)
        self._probes.observe(trial, len(values))

    def _probing(self, trial: int, values: Sequence[float]) -> bool:
        """Return whether a trial that would be stopped now is to continue as a probe."""
        assert self.agreement is not None
        return (
            trial not in self._probes
            and self._probes.has_room(len(values))
            and self.agreement.trusted(len(values))
            and self.judge(trial, values).action == "stop"
        )

    def is_recheck(self, trial: int, step: int) -> bool:
        """Return whether the trial is judged at this step by its place at an earlier one."""
        return False

    def least_continuing(self, step: int) -> int:
        """Return how many trials continue at least after they were judged again: so many as show
        whether ranks at the step tell the end, until that was seen.
        """
        return 1 if self.agreement is None or self.agreement.is_known(step) else ENOUGH

    def judge(self, trial: int, values: Sequence[float]) -> Verdict:
        """See SchedulerPort.decide; without regard to the guard."""
        raise NotImplementedError

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Return the judgement; "continue" if the step's ranks were not seen to tell the end."""
        verdict, step = self.judge(trial, values), len(values)
        if self.agreement is None:
            return verdict
        first = self.agreement.first_trusted()
        if verdict.action == "stop" and (trial in self._probes or self._probing(trial, values)):
            why = f"{verdict.why}, but it is to be seen how it ends"
            return Verdict(until=self.first(trial, step), why=why, judged_from=first)
        if verdict.action in ("stop", "pause") and not self.agreement.trusted(step):
            why = f"step {step} is not seen to tell the end{self.agreement.describe(step)}"
            why += f": first judged at {first}"
            return Verdict(until=self.first(trial, step), why=why, judged_from=first)
        return replace(verdict, judged_from=first)
