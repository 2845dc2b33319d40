"""What an experiment would cost, how long it would take and how good it would get, before it runs:
the planner itself under the simulator, many times over, on machines that come and go.

Pure functions: curves, prices and traces are given. What is simulated differs from a run in this:
an attempt on a machine that goes is lost without a notice, on-demand machines can always be had,
and the cluster ends with the search.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from regrow.search.chance import seed_for
from regrow.search.history import cost, waste
from regrow.search.planning.curves import Drawn, RecordedCurve
from regrow.search.planning.machines import Availability, Machine, Trace, shifted
from regrow.search.planning.simulator import Simulation
from regrow.search.planning.sizes import KEPT
from regrow.search.spec import Spec

Kind: TypeAlias = Literal["spot", "on-demand", "fall-back", "as they are"]
"""Machines: of one market, spot first with on-demand as a fall-back, or those that are there."""
HORIZON = 30 * 86400.0
"""Seconds after which a simulation ends unfinished."""
LIKELY = 0.9
"""A chance that is enough for a recommendation."""
CHEAP = 1.1
"""What costs up to this many times the least is as cheap, for a recommendation."""
LOW, HIGH = 0.1, 0.9
"""Quantiles of the interval: 80 % of the outcomes lie in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A spot market by two means, in seconds: a machine is up, then away, each for an exponentially
    distributed time.
    """

    up: float = 6 * 3600.0
    away: float = 20 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What a cluster offers.

    Attributes:
        kinds: one machine of each market that it has; "": machines that are there.
        market: for the fall-back, the specification's key `market`.
        on_need: for the fall-back, seconds without a trial after which an on-demand machine that
            came on need is stopped, and all but those that stay do; None: as `kinds` has them.

    """

    kinds: Mapping[str, Machine]
    market: Mapping[str, Any] | None = None
    on_need: float | None = None

    @property
    def choices(self) -> list[Kind]:
        """The kinds of machines to choose from."""
        if "" in self.kinds:
            return ["as they are"]
        found: list[Kind] = [kind for kind in ("spot", "on-demand") if kind in self.kinds]
        return [*found, "fall-back"] if self.market is not None and len(found) == 2 else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations that trials have shown, in seconds.

    Attributes:
        startup: from the placement of an attempt to its beginning.
        save: of a checkpoint; None: not measured.

    """

    startup: float = 0.0
    save: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A plan to be judged.

    Attributes:
        kind: of its machines.
        machines: most at a time.
        dollars: instead of the file's `stop.dollars`; None: the file's.
        more: as many trials as the money pays for, instead of the file's `trials` and `budget`.

    """

    kind: Kind
    machines: int
    dollars: float | None = None
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one simulation ended.

    Attributes:
        seconds: until its end.
        cost: in the currency of the prices; None without a price.
        hours: for which trials had their slots, times their number.
        best: the objective; None if nothing was reached.
        trials: that ended.
        wasted: seconds of trials, times their slots, that were lost with machines.
        cut: the limit that ended it before all trials had, `stop.dollars` or `stop.deadline`, or
            `budget`; else empty.
        ended: False if nothing could happen any more, or the horizon was reached.
        events: of its log.

    """

    seconds: float
    cost: float | None
    hours: float
    best: float | None
    trials: int
    wasted: float
    cut: str
    ended: bool
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What 80 % of the outcomes lie between, and their median."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioForecast:
    """A scenario's outcomes.

    Attributes:
        cost: None without a price.
        hours: of trials, times their slots.
        best: None if most simulations reached nothing.
        on_time: share that did all trials before the deadline; None without one.
        within: share that did all trials within the money; None without a limit.
        wasted: mean share of the hours that was lost with machines.
        outcomes: as they were simulated.

    """

    scenario: Scenario
    seconds: Span
    cost: Span | None
    hours: Span
    best: Span | None
    trials: Span
    on_time: float | None
    within: float | None
    wasted: float
    outcomes: Sequence[Outcome]

    @property
    def likely(self) -> float:
        """The chance that it is done on time and within the money."""
        return min(1.0 if one is None else one for one in (self.on_time, self.within))


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateInputs:
    """What every simulation of an estimate is made of.

    Attributes:
        spec: the specification, whose `stop.deadline` counts from the creation.
        curves: the recorded curves, at least one.
        offered: the cluster.
        timing: durations.
        spot: recorded spot markets, one of which is drawn for each simulation, or rates.

    """

    spec: Spec
    curves: Sequence[RecordedCurve]
    offered: Offered
    timing: Timing
    spot: Sequence[Trace] | Rates

    def specified(self, scenario: Scenario, seed: int) -> Spec:
        """Return the specification under which a scenario runs, by another chance."""
        found = {**self.spec.to_json(), "seed": seed}
        stop = {**found.get("stop", {})}
        if scenario.dollars is not None:
            stop["dollars"] = scenario.dollars
        fall_back = self.offered.market if scenario.kind == "fall-back" else None
        changes = {"stop": stop, "market": None if fall_back is None else dict(fall_back)}
        if scenario.more:
            changes |= {"trials": None, "budget": None}
        return Spec.parse({**found, **changes})

    def fleet(self, scenario: Scenario, chance: random.Random) -> Iterator[Machine]:
        """Yield the machines of a scenario, as they come and go by chance."""
        many = scenario.machines
        if scenario.kind in ("spot", "fall-back"):
            for one in self._spot(many, chance):
                yield replace(self.offered.kinds["spot"], availability=one)
        if scenario.kind in ("on-demand", "fall-back"):
            steady, idle = self.offered.kinds["on-demand"], self.offered.on_need
            if scenario.kind == "on-demand" or idle is None:
                yield from [steady] * many
            else:
                yield from [steady] * KEPT
                yield from [replace(steady, permanent=False, idle=idle)] * (many - KEPT)
        if scenario.kind == "as they are":
            yield from [self.offered.kinds[""]] * many

    def _spot(self, many: int, chance: random.Random) -> list[Availability]:
        if isinstance(self.spot, Rates):
            return [_exponential(self.spot, chance) for _ in range(many)]
        trace = chance.choice(self.spot)
        offset = chance.random() * trace.seconds
        return [shifted(one, offset, trace.seconds, HORIZON) for one in _machines_of(trace, many)]

    def slots(self, scenario: Scenario) -> int:
        """Return how many slots trials have at a time."""
        spec = self.spec
        each = next(iter(self.offered.kinds.values())).slots
        most = scenario.machines * each
        return most if spec.concurrency is None else min(most, spec.concurrency * _width(spec))


def _width(spec: Spec) -> int:
    return spec.resources.widths[1]


@cache
def _machines_of(trace: Trace, many: int) -> list[Availability]:
    """Return the machines of a trace, which takes a while to make."""
    return trace.machines(many)


def _exponential(rates: Rates, chance: random.Random) -> Availability:
    begins_up = chance.random() < rates.up / (rates.up + rates.away)
    up, t, changes = begins_up, 0.0, [0.0]
    while t < HORIZON:
        t += chance.expovariate(1.0 / (rates.up if up else rates.away))
        changes.append(t)
        up = not up
    return Availability(changes=tuple(changes), begins_up=begins_up)


def simulated(inputs: EstimateInputs, scenario: Scenario, number: int) -> Outcome:
    """Return the outcome of simulation `number` of a scenario. The same arguments give the same.

    Simulations of the same number have the same seed, curves and market in every scenario. The seed
    is not the file's: what its proposals would meet is known from no more than their neighbours.
    """
    seed = seed_for(inputs.spec.seed, number, "forecast")
    spec = inputs.specified(scenario, seed)
    chance = random.Random(seed_for(seed, 0, "market"))  # noqa: S311 - no secret
    save = inputs.timing.save or 0.0
    run = Simulation(
        spec=spec,
        objective=Drawn(
            inputs.curves,
            spec.space,
            spec.objective.name,
            seed_for(spec.seed, number, "forecast"),
        ),
        machines=list(inputs.fleet(scenario, chance)),
        slots=inputs.slots(scenario),
        startup=inputs.timing.startup,
        save=save,
        restore=save,
    ).open()
    try:
        run.run(most_seconds=HORIZON)
    except RuntimeError:  # every machine is gone for good
        run.now = HORIZON
    return outcome(run)


def outcome(run: Simulation) -> Outcome:
    """Return how a simulation ended."""
    history, now = run.history, run.now
    paid = cost.of(history, now)
    leader = history.leader
    as_many = history.unlimited and history.spec.budget is None
    return Outcome(
        seconds=now,
        cost=paid.total,
        hours=paid.hours,
        best=None if leader is None or leader.best is None else leader.best[0],
        trials=history.ended,
        wasted=sum(one.seconds for one in waste.of_all(history).values()),
        cut="" if as_many or history.closing is None else history.closing.limit,
        ended=history.closed is not None,
        events=len(run.events),
    )


def span(values: Sequence[float]) -> Span:
    """Return the interval that 80 % of the values lie in."""
    # of quarters, as the difference of two numbers may be beyond the largest float
    quarters = np.quantile(np.array(values, dtype=float) / 4, [LOW, 0.5, HIGH])
    low, median, high = (float(q) * 4 for q in quarters)
    return Span(low=low, median=median, high=high)


def summary(
    inputs: EstimateInputs, scenario: Scenario, outcomes: Sequence[Outcome]
) -> ScenarioForecast:
    """Return what the outcomes of a scenario tell."""
    costs = [one.cost for one in outcomes if one.cost is not None]
    bests = [one.best for one in outcomes if one.best is not None]
    stop = inputs.spec.stop
    count = len(outcomes)
    done = {key: sum(one.ended and one.cut != key for one in outcomes) / count for key in _LIMITS}
    hours = sum(one.hours for one in outcomes)
    limited = stop.dollars is not None or scenario.dollars is not None
    return ScenarioForecast(
        scenario=scenario,
        seconds=span([one.seconds for one in outcomes]),
        cost=span(costs) if len(costs) == count else None,
        hours=span([one.hours for one in outcomes]),
        best=span(bests) if len(bests) * 2 > count else None,
        trials=span([one.trials for one in outcomes]),
        on_time=done["stop.deadline"] if stop.deadline is not None else None,
        within=done["stop.dollars"] if limited else None,
        wasted=sum(one.wasted for one in outcomes) / 3600.0 / hours if hours else 0.0,
        outcomes=outcomes,
    )


_LIMITS = ("stop.dollars", "stop.deadline")


def recommended(forecasts: Sequence[ScenarioForecast]) -> ScenarioForecast:
    """Return the scenario to choose: of those that are likely to be done on time and within the
    money (else: most likely), and of these the cheap ones, the fastest; the fall-back if it is
    equal.
    """
    most = max(one.likely for one in forecasts)
    fit = [one for one in forecasts if one.likely >= min(LIKELY, most)]
    least = min(map(_price, fit))
    cheap = [one for one in fit if _price(one) <= CHEAP * least]
    return min(cheap, key=lambda f: (f.seconds.median, f.scenario.kind != "fall-back"))


def _price(forecast: ScenarioForecast) -> float:
    return (forecast.cost or forecast.hours).median


def between_losses(spot: Sequence[Trace] | Rates) -> float | None:
    """Return the mean time that a machine is up before it goes, in seconds; None: it never goes."""
    if isinstance(spot, Rates):
        return spot.up
    up = losses = 0.0
    for trace in spot:
        for one in _machines_of(trace, max(1, *trace.counts)):
            times = [*one.changes, trace.seconds]
            for place, (begin, end) in enumerate(itertools.pairwise(times)):
                if (place % 2 == 0) == one.begins_up:
                    up += end - begin
                    losses += end < trace.seconds
    return up / losses if losses else None


def checkpoint_interval(save: float, between: float) -> float:
    """Return the seconds between checkpoints with the least loss: sqrt(2 C M), with the duration C
    of a checkpoint and the mean time M between losses (Young, "A first order approximation to the
    optimum checkpoint interval", CACM 1974; Daly, FGCS 2006).
    """
    return math.sqrt(2.0 * save * between)
