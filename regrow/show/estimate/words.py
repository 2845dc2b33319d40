"""An estimate for people: the cells of its table, what was assumed, what is recommended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from regrow.search.bounds import MOST
from regrow.search.durations import in_words
from regrow.search.numbers import readable
from regrow.search.planning.budget import describe as budget_in_words
from regrow.search.planning.estimating import HORIZON, LIKELY, Rates, Span
from regrow.show.estimate.estimate import Estimate, rows
from regrow.show.estimate.sources import BOOT_SECONDS
from regrow.show.live.text import ends
from regrow.tasks.output.traces import one_line

KINDS = {
    "spot": "spot",
    "on-demand": "on-demand",
    "fall-back": "spot first",
    "as they are": "as they are",
}
DIGITS = 3
"""Significant digits of what is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A line of the table: columns by name, each whole and in short."""

    cells: dict[str, tuple[str, str]]
    chosen: bool


def table(found: Estimate) -> Iterator[TableRow]:
    """Yield the lines of the table. An empty column is left out."""
    metric = one_line(found.inputs.spec.objective.name)
    every = list(rows(found))
    money = all(one.cost is not None for one in every)
    for one in every:
        scenario = one.scenario
        budget = "" if scenario.dollars is None else f"{scenario.dollars:,.10g}"
        name = f"{scenario.machines} {KINDS[scenario.kind]}"
        cost = _span(one.cost, _money) if money else _span(one.hours, _amount)
        cells = {
            "machines": (name, f"{name} {budget}".rstrip()),
            "budget": (budget, ""),
            "cost" if money else "machine-hours": cost,
            "hours": _span(
                Span(
                    low=one.seconds.low / 3600,
                    median=one.seconds.median / 3600,
                    high=one.seconds.high / 3600,
                ),
                _amount,
            ),
            f"best {metric}": _span(one.best, _number),
            "on time": (_share(one.on_time),) * 2,
            "in budget": (_share(one.within),) * 2,
        }
        yield TableRow(cells=cells, chosen=one is found.choice)


def _span(span: Span | None, form: Callable[[float], str]) -> tuple[str, str]:
    """Return the median with the interval, and the interval alone."""
    if span is None:
        return "none", "none"
    low, median, high = form(span.low), form(span.median), form(span.high)
    if low == high:
        return median, median
    return f"{median} ({low} to {high})", f"{low} to {high}"


def _money(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _amount(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _number(value: float) -> str:
    return readable(value, DIGITS)


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def head(found: Estimate) -> str:
    """Return the first line: what was simulated, from what."""
    spec, count = found.inputs.spec, found.count
    trials = "as many trials as the limits allow"
    if spec.budget is not None:
        trials = budget_in_words(spec.budget)
    elif spec.trials is not None:
        trials = f"{spec.trials:,} trial{ends(spec.trials)}"
    curves = ", ".join(f"{n} of {one_line(name)}" for name, n in found.sources.names)
    return f"{spec.name}: {trials}, simulated {count:,} times a line, from curves: {curves}"


def assumptions(found: Estimate) -> Iterator[str]:
    """Yield what is not measured, a line each."""
    inputs = found.inputs
    kinds = inputs.offered.kinds
    if "spot" in kinds and isinstance(inputs.spot, Rates):
        up, away = in_words(inputs.spot.up), in_words(inputs.spot.away)
        yield (
            f"a spot machine is up for {up}, then away for {away}, on average, exponentially"
            " distributed (--trace: recorded ones)"
        )
    needed = inputs.offered.on_need is not None
    if needed or not all(one.permanent for one in kinds.values()):
        yield f"a machine takes trials {in_words(BOOT_SECONDS)} after it was asked for"
    if any(not outcome.ended for one in rows(found) for outcome in one.outcomes):
        yield f"a simulation ends after {in_words(HORIZON)}, and some were not done by then"
    limit, most = inputs.spec.concurrency, max(one.scenario.machines for one in found.plans)
    if limit is not None and limit < most:
        yield f"the file's concurrency, {limit}: more machines than that have no trials"
    if inputs.timing.save is None:
        yield "a checkpoint takes no time: none was measured"
    if found.sources.stopped:
        count = found.sources.stopped
        yield (
            f"{count} curve{ends(count)} of stopped trials continue as the nearest longer one does"
        )
    if all(one.cost is None for one in found.plans):
        yield "no prices are known: `prices` in the cluster file, price_per_hour in the experiment"


def recommendations(found: Estimate) -> Iterator[tuple[str, str]]:
    """Yield what is recommended: a heading and a sentence."""
    choice = found.choice
    yield "machines", _machines(found)
    yield "market", _market(found)
    yield "checkpoint", _checkpoint(found)
    if found.more is not None:
        without, more = found.more
        spec = found.inputs.spec
        if without.best is not None and more.best is not None:
            name = one_line(spec.objective.name)
            before, after = _number(without.best.median), _number(more.best.median)
            low, high = _number(more.best.low), _number(more.best.high)
            trials = round(more.trials.median - without.trials.median)
            many = f"{trials:,} trial{ends(trials)}"
            brings = f"{after} ({low} to {high}) instead of {before}: about {many} more"
            yield (
                f"{found.extra:,.10g} more",
                f"{name} {brings}" if trials > 0 else f"no more trials, {name} {before}",
            )
    if choice.likely < LIKELY:
        yield (
            "warning",
            f"this plan did all trials within the limits in {choice.likely:.0%} of the simulations",
        )


def _machines(found: Estimate) -> str:
    choice = found.choice
    took = f"{choice.scenario.machines}: done in {in_words(choice.seconds.median)}"
    same = [f for f in found.plans if f.scenario.kind == choice.scenario.kind and f is not choice]
    others = [f"{in_words(f.seconds.median)} with {f.scenario.machines}" for f in same]
    beside = f" ({', '.join(others)})" if others else ""
    return f"{took}{beside}"


def _market(found: Estimate) -> str:
    choice, other = found.choice, found.cheapest_other()
    kind = KINDS[choice.scenario.kind]
    lost = f"{choice.wasted:.1%} of the work is lost with machines" if choice.wasted else ""
    if other is None or choice.cost is None or other.cost is None or not other.cost.median:
        return "; ".join(part for part in (kind, lost) if part)
    less = 1.0 - choice.cost.median / other.cost.median
    cheaper = f"{abs(less):.0%} {'less' if less >= 0 else 'more'} than on-demand"
    return "; ".join(part for part in (kind, cheaper, lost) if part)


def _checkpoint(found: Estimate) -> str:
    save, every, between = found.inputs.timing.save, found.checkpoint, found.losses
    if between is None:
        return "no machine is lost, so only pauses need one"
    if save is None or every is None:
        return (
            f"a machine is lost every {in_words(between)}; how long a checkpoint takes is not"
            " known, a run or --pilot measures it"
        )
    steps = max(1, round(min(every / found.step, MOST))) if found.step else 1
    return (
        f"every {in_words(every)} (every_steps: {steps}, or every: auto): one takes"
        f" {in_words(save)}, a machine is lost every {in_words(between)}"
    )
