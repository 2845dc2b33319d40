"""Which trial took over whose weights, and when, for population-based training."""

from __future__ import annotations

from typing import Any

from regrow.infra.log.rows import LogRows
from regrow.show.figures import series, style

TITLE = "Lineage"
READING = (
    "A row for each trial of the population, the darker the better it ranks among the others at the"
    " same step. A line leads from a trial to the one that took its weights; the wide one is where"
    " the best weights come from."
)
NOTHING = "No trial took over another one's weights; population-based training does that."
ROWS = 150
CLONES = 1500
STEPS = 240
RANKS = [[0.0, "#f1f4f6"], [1.0, style.COLOURS["done"]]]
TAKEN = "#c25e0a"
"""Colour of the lines: orange contrasts with all blues, also for colour-blind readers."""


def figure(log_rows: LogRows) -> style.Figure | None:
    history = log_rows.history
    if not any(change.source is not None for trial in history.trials for change in trial.changes):
        return None
    import numpy as np

    metric = style.safe(history.objective.name)
    steps = max(trial.step for trial in history.trials)
    best = history.leader
    way = []
    if best is not None:
        until = best.step if best.best is None else best.best[1]
        way = series.ancestry(history, best.number, until)
    population = [t for t in history.trials if t.values]
    rows = series.sample(population, ROWS, keep=[history.trials[number] for number, _, _ in way])
    places = {trial.number: place for place, trial in enumerate(rows)}
    every = -(-steps // STEPS)
    columns = list(range(every, steps + 1, every))
    z = np.full((len(rows), len(columns)), np.nan, np.float32)
    for place, trial in enumerate(rows):
        values = [trial.values[step - 1] for step in columns if step <= trial.step]
        z[place, : len(values)] = values
    numbers = np.repeat(np.array([[t.number] for t in rows], np.float32), len(columns), axis=1)
    made = style.blank()
    made.add_heatmap(
        z=_ranks(history.objective.sign * z),
        x=columns,
        y=list(range(len(rows))),
        customdata=np.stack([numbers, z], axis=2),
        colorscale=RANKS,
        zmin=0,
        zmax=1,
        hoverongaps=False,
        colorbar={
            "thickness": 12,
            "outlinewidth": 0,
            "tickvals": [0, 1],
            "ticktext": ["worst", "best"],
            "tickfont": {"size": 11},
        },
        hovertemplate=(
            f"trial %{{customdata[0]}}, step %{{x}}<br>{metric} %{{customdata[1]:.8~g}}"
            "<extra></extra>"
        ),
    )
    clones = [
        (places[c.source], c.source_step or c.step, places[t.number], c.step, t.number)
        for t in rows
        for c in t.changes
        if c.source is not None and c.source in places
    ]
    drawn = series.sample(clones, CLONES)
    style.add_line(
        made,
        [x for _, a, _, b, _ in drawn for x in (a + 0.5, b + 0.5, None)],
        [y for a, _, b, _, _ in drawn for y in (a, b, None)],
        {"color": TAKEN, "width": 1.2},
        opacity=0.8,
        name=f"took the weights of another ({len(clones)})",
    )
    if drawn:
        style.add_points(
            made,
            [(b + 0.5, y, n) for _, _, y, b, n in drawn],
            {"color": TAKEN, "size": 5, "symbol": "circle"},
            "trial %{customdata} took the weights of trial %{text}",
            showlegend=False,
            text=[rows[a].number for a, *_ in drawn],
        )
    if way and all(number in places for number, _, _ in way):
        x = [x for _, first, last in reversed(way) for x in (first + 0.5, last + 0.5)]
        y = [places[number] for number, _, _ in reversed(way) for _ in range(2)]
        style.add_line(
            made, x, y, {"color": style.BEST, "width": 3}, name="where the best comes from"
        )
    every_row = 1 if len(rows) <= 40 else len(rows) // 20
    made.update_layout(
        xaxis={"title": {"text": "step"}, "showgrid": False},
        yaxis={
            "title": {"text": "trial"},
            "showgrid": False,
            "autorange": "reversed",
            "tickvals": list(range(len(rows)))[::every_row],
            "ticktext": [str(t.number) for t in rows][::every_row],
        },
    )
    return style.finished(
        made,
        style.part(
            len(rows),
            len(population),
            "trials are drawn: those the best comes from, and others evenly spread.",
        ),
        f"Every {every}th step is drawn." if every > 1 else "",
        style.part(len(drawn), len(clones), "clones are drawn."),
        height=min(900, max(320, 150 + 16 * len(rows))),
    )


def _ranks(costs: Any) -> Any:
    """Return, for each step (column), the share of the trials that reached it and that a trial is
    better than; NaN where the trial did not reach it.
    """
    import numpy as np

    order = np.argsort(np.argsort(costs, axis=0), axis=0).astype(np.float32)  # NaN sorts last
    reached = np.isfinite(costs)
    most = np.maximum(reached.sum(axis=0) - 1, 1)
    return np.where(reached, 1 - order / most, np.nan).astype(np.float32)
