"""An estimate: which scenarios are judged, what is recommended, and all of it as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.planning import estimating
from regrow.search.planning.estimating import (
    EstimateInputs,
    Rates,
    Scenario,
    ScenarioForecast,
    Span,
    recommended,
)
from regrow.search.spec.keys import UNLIMITED
from regrow.show.estimate.simulations import Simulations
from regrow.show.estimate.sources import Sources

MORE = 50.0
"""What the last line adds, in the currency of the prices, or the price of the search itself if
that is less than half of this.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of an experiment before it runs.

    Attributes:
        inputs: what was simulated.
        sources: where the curves are from.
        count: simulations of each scenario.
        plans: forecasts by kind and number of machines.
        choice: the one that is recommended.
        budgets: the recommended machines with less money, or more.
        more: as many trials as are paid for by what the choice costs, and by `extra` in addition;
            None without prices, and if there are no further trials.
        extra: see `more`.

    """

    inputs: EstimateInputs
    sources: Sources
    count: int
    plans: Sequence[ScenarioForecast]
    choice: ScenarioForecast
    budgets: Sequence[ScenarioForecast]
    more: tuple[ScenarioForecast, ScenarioForecast] | None
    extra: float

    @property
    def losses(self) -> float | None:
        """Mean seconds that a spot machine is up; None: nothing is lost."""
        used = self.choice.scenario.kind in ("spot", "fall-back")
        return estimating.between_losses(self.inputs.spot) if used else None

    @property
    def checkpoint(self) -> float | None:
        """Seconds between checkpoints with the least loss; None: not measured, or no losses."""
        save, between = self.inputs.timing.save, self.losses
        if save is None or between is None:
            return None
        return estimating.checkpoint_interval(save, between)

    @property
    def step(self) -> float:
        """Mean duration of a recorded step, in seconds."""
        found = [one for curve in self.inputs.curves for one in curve.seconds]
        return sum(found) / len(found)

    def cheapest_other(self) -> ScenarioForecast | None:
        """Return the forecast for on-demand machines, as many as recommended, for comparison."""
        size, kind = self.choice.scenario.machines, "on-demand"
        found = (f for f in self.plans if f.scenario.kind == kind and f is not self.choice)
        return next((one for one in found if one.scenario.machines == size), None)


def estimate(
    simulations: Simulations,
    sources: Sources,
    *,
    machines: Sequence[int],
    budgets: Sequence[float],
) -> Estimate:
    """Simulate everything."""
    inputs = simulations.inputs
    scenarios = [
        Scenario(kind=kind, machines=count) for kind in inputs.offered.choices for count in machines
    ]
    plans = simulations.forecasts(scenarios, more=len(budgets) + 2)
    choice = recommended(plans)
    kind, count = choice.scenario.kind, choice.scenario.machines
    found = simulations.forecasts(
        [Scenario(kind=kind, machines=count, dollars=one) for one in budgets]
    )
    more, extra = None, MORE
    if choice.cost is not None and _can_have_more_trials(inputs):
        paid = max(choice.cost.median, 0.01)
        extra = MORE if paid >= MORE / 2 else round(paid, 2)
        pair = [
            Scenario(kind=kind, machines=count, dollars=dollars, more=True)
            for dollars in (paid, paid + extra)
        ]
        first, second = simulations.forecasts(pair)
        more = first, second
    return Estimate(
        inputs=inputs,
        sources=sources,
        count=simulations.count or 0,
        plans=plans,
        choice=choice,
        budgets=found,
        more=more,
        extra=extra,
    )


def _can_have_more_trials(inputs: EstimateInputs) -> bool:
    """Return whether the search could have more trials than the file's."""
    spec = inputs.spec
    if spec.trials is None:
        return spec.total >= UNLIMITED
    try:
        type(spec).parse({**spec.to_json(), "trials": spec.trials + spec.repeats})
    except SpecError:
        return False  # the cells of a grid are all there are
    return True


def as_data(found: Estimate) -> dict[str, Any]:
    """Return everything, for `--json`. Times in seconds, costs in the currency of the prices."""
    spec, spot = found.inputs.spec, found.inputs.spot
    more = None
    if found.more is not None:
        more = {
            "extra": found.extra,
            "without": _forecast(found.more[0]),
            "with": _forecast(found.more[1]),
        }
    return {
        "experiment": spec.name,
        "metric": spec.objective.name,
        "mode": spec.objective.mode,
        "simulations": found.count,
        "sources": [{"name": name, "curves": count} for name, count in found.sources.names],
        "stopped_curves": found.sources.stopped,
        "timing": asdict(found.inputs.timing),
        "spot": asdict(spot) if isinstance(spot, Rates) else {"traces": len(spot)},
        "prices": {kind: one.price for kind, one in found.inputs.offered.kinds.items()},
        "plans": [_forecast(one) for one in found.plans],
        "budgets": [_forecast(one) for one in found.budgets],
        "recommended": {
            **asdict(found.choice.scenario),
            "checkpoint_seconds": found.checkpoint,
            "loss_every_seconds": found.losses,
        },
        "more": more,
    }


def _forecast(one: ScenarioForecast) -> dict[str, Any]:
    spans = ("seconds", "cost", "hours", "best", "trials")
    found: dict[str, Any] = asdict(one.scenario)
    for name in spans:
        span: Span | None = getattr(one, name)
        found[name] = None if span is None else asdict(span)
    return {**found, "on_time": one.on_time, "within": one.within, "wasted": one.wasted}


def rows(found: Estimate) -> Iterator[ScenarioForecast]:
    """Yield the forecasts of the table: all plans, then the budgets."""
    yield from found.plans
    yield from found.budgets
