"""An estimate as one self-contained HTML file, made and secured as the report is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from regrow.search.durations import in_words
from regrow.search.planning.estimating import Span
from regrow.show import web
from regrow.show.estimate import words
from regrow.show.estimate.estimate import Estimate, rows
from regrow.show.figures.style import (
    BEST,
    COLOURS,
    GREY,
    Figure,
    blank,
    drawn,
    finished,
    safe,
    template,
)

SCRIPTS = ("times.js", "figures.js", "estimate.js")
VALUE = (
    "Each mark is a plan: its cost and the best value, with the intervals that 80 % of the"
    " simulations lie in. The number is that of its machines."
)
TIME = (
    "The share of simulations that had done all trials by then, with as many machines as"
    " recommended."
)
"""How to read the figures."""
_STYLES = {
    "spot": (COLOURS["done"], "circle", "bottom left"),
    "on-demand": (COLOURS["stopped"], "square", "top right"),
    "fall-back": (COLOURS["running"], "diamond", "top left"),
    "as they are": (COLOURS["paused"], "circle", "top right"),
}
"""By kind of machines: colour, mark, and where its number stands."""


def html(found: Estimate) -> str:
    """Make the page."""
    from regrow.show.figures.embedded import plotly_as_text  # imports Plotly

    figures = [
        {"name": name, "title": title, "reading": reading, "whole": False, **drawn(made)}
        for name, title, reading, made in (
            ("value", "Cost against value", VALUE, _value(found)),
            ("time", "Chance of being done", TIME, _time(found)),
        )
    ]
    spec = found.inputs.spec
    lines = list(words.table(found))
    columns = [name for name in lines[0].cells if any(one.cells[name][0] for one in lines)]
    page = web.templates("regrow.show.estimate").get_template("estimate.html.j2")
    return page.render(
        policy=web.policy("regrow.show.estimate", SCRIPTS),
        version=version("regrow"),
        scripts=SCRIPTS,
        plotly=plotly_as_text(),
        data={
            "name": f"{spec.name}-estimate",
            "figures": {one["name"]: one.pop("figure") for one in figures},
            "light": template(),
            "dark": template(dark=True),
        },
        name=spec.name,
        goal=", ".join(f"{metric.mode} {metric.name}" for metric in spec.metrics),
        head=words.head(found),
        now=web.moment(time.time()),
        numbers=list(_tiles(found)),
        recommendations=list(words.recommendations(found)),
        drawn=figures,
        columns=columns,
        rows=[
            {"cells": [one.cells[name][0] for name in columns], "chosen": one.chosen}
            for one in lines
        ],
        assumed=list(words.assumptions(found)),
    )


def _tiles(found: Estimate) -> Iterator[dict[str, str]]:
    choice, line = found.choice, next(one for one in words.table(found) if one.chosen)
    name = f"{choice.scenario.machines} {words.KINDS[choice.scenario.kind]}"
    yield {"label": "Machines", "number": name, "more": "recommended"}
    for label in line.cells:
        if label.startswith(("cost", "machine-hours", "best")):
            median, _, interval = line.cells[label][0].partition(" (")
            more = f"80 %: {interval.rstrip(')')}" if interval else "in all simulations"
            yield {"label": label.capitalize(), "number": median, "more": more}
    took = choice.seconds
    more = f"80 %: {in_words(took.low)} to {in_words(took.high)}"
    yield {"label": "Time", "number": in_words(took.median), "more": more}
    if choice.on_time is not None:
        more = f"within {in_words(_deadline(found) or 0.0)}"
        yield {"label": "On time", "number": f"{choice.on_time:.0%}", "more": more}
    if choice.within is not None:
        yield {"label": "In budget", "number": f"{choice.within:.0%}", "more": "of simulations"}


def _deadline(found: Estimate) -> float | None:
    deadline = found.inputs.spec.stop.deadline
    return deadline if isinstance(deadline, float) else None


def _value(found: Estimate) -> Figure:
    made, every = blank(), list(rows(found))
    money = all(one.cost is not None for one in every)
    metric = safe(found.inputs.spec.objective.name, 40)
    for kind, style in _STYLES.items():
        own = [one for one in every if one.scenario.kind == kind and one.best is not None]
        if own:
            colour, symbol, beside = style
            costs = [(one.cost if money and one.cost is not None else one.hours) for one in own]
            bests = [one.best for one in own if one.best is not None]
            limited = [one.scenario.dollars is not None for one in own]
            texts = [
                f"{one.scenario.machines} machines"
                + ("" if one.scenario.dollars is None else f", at most {one.scenario.dollars:g}")
                for one in own
            ]
            made.add_scatter(
                x=[one.median for one in costs],
                y=[one.median for one in bests],
                error_x=_intervals(costs),
                error_y=_intervals(bests),
                text=[
                    "" if some else f"{one.scenario.machines}"
                    for one, some in zip(own, limited, strict=True)
                ],
                textposition=beside,
                customdata=texts,
                mode="markers+text",
                name=words.KINDS[kind],
                marker={"color": colour, "symbol": symbol, "size": 9},
                hovertemplate="%{customdata}<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
            )
    made.update_xaxes(title={"text": "cost" if money else "machine-hours"}, rangemode="tozero")
    made.update_yaxes(title={"text": f"best {metric} ({found.inputs.spec.objective.mode})"})
    made.update_layout(legend={"orientation": "h"})
    return finished(made)


def _intervals(spans: Sequence[Span]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 1,
        "width": 3,
        "array": [one.high - one.median for one in spans],
        "arrayminus": [one.median - one.low for one in spans],
    }


def _time(found: Estimate) -> Figure:
    made, size = blank(), found.choice.scenario.machines
    for one in found.plans:
        if one.scenario.machines != size:
            continue
        done = sorted(o.seconds / 3600 for o in one.outcomes if o.ended and not o.cut)
        colour, *_ = _STYLES[one.scenario.kind]
        made.add_scatter(
            x=[0.0, *done],
            y=[place / len(one.outcomes) for place in range(len(done) + 1)],
            mode="lines",
            line={"shape": "hv", "color": colour, "width": 3 if one is found.choice else 2},
            name=words.KINDS[one.scenario.kind],
            hovertemplate="%{y:.0%} within %{x:.3~g} h<extra></extra>",
        )
    if (deadline := _deadline(found)) is not None:
        made.add_vline(
            x=deadline / 3600,
            line={"color": BEST, "dash": "dash", "width": 2},
            annotation={"text": "deadline", "font": {"color": GREY}},
        )
    made.update_xaxes(title={"text": "hours"}, rangemode="tozero")
    made.update_yaxes(title={"text": "simulations done"}, tickformat=".0%", range=[0, 1.03])
    made.update_layout(legend={"orientation": "h"}, showlegend=True)
    return finished(made)
