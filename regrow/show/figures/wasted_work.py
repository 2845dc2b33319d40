"""What losses cost: wasted slot-seconds, by class and by trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.infra.log.rows import Rows
from regrow.search.history import cost, waste
from regrow.show.figures.look import COLOURS, finished

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "Wasted work"
READING = (
    "Node-seconds that led to nothing, by why they were lost (left), and the trials that lost most"
    " (right)."
)
NOTHING = "No work was lost."
MOST = 15
CLASSES = {
    "preempted": COLOURS["preempted"],
    "infrastructure": COLOURS["failed"],
    "stalled": COLOURS["pending"],
    "error": COLOURS["paused"],
    "checkpoint": COLOURS["stopped"],
}


def figure(told: Rows) -> Figure | None:
    """Make the figure; None if nothing was lost."""
    history = told.history
    totals = waste.of_all(history)
    if not any(one.seconds or one.steps for one in totals.values()):
        return None
    from plotly.subplots import make_subplots

    by_trial = {trial.number: waste.of_trial(trial) for trial in history.trials}
    lost = {
        number: sum(one.seconds for one in parts.values())
        for number, parts in by_trial.items()
        if parts
    }
    worst = sorted(lost, key=lambda number: (-lost[number], number))[:MOST]
    made = make_subplots(rows=1, cols=2, column_widths=[0.38, 0.62], horizontal_spacing=0.16)
    hover = "%{customdata}<br>%{x:.1f} slot-seconds<extra></extra>"
    for kind, one in totals.items():
        times = (
            f"{one.attempts} attempt{'' if one.attempts == 1 else 's'}, {one.steps} steps done"
            " again"
        )
        made.add_bar(
            x=[one.seconds],
            y=[kind],
            orientation="h",
            marker={"color": CLASSES[kind]},
            name=kind,
            legendgroup=kind,
            text=f"{one.attempts}x",
            textposition="auto",
            insidetextfont={"color": "#ffffff"},
            customdata=[times],
            hovertemplate=hover,
            row=1,
            col=1,
        )
        made.add_bar(
            x=[by_trial[n][kind].seconds if kind in by_trial[n] else 0.0 for n in worst],
            y=[f"trial {n}" for n in worst],
            orientation="h",
            marker={"color": CLASSES[kind]},
            legendgroup=kind,
            showlegend=False,
            row=1,
            col=2,
            customdata=[f"trial {n}, {kind}" for n in worst],
            hovertemplate=hover,
        )
    made.update_layout(barmode="stack", bargap=0.3)
    made.update_yaxes(type="category", showgrid=False)
    for column, bars in enumerate((len(totals), len(worst)), start=1):
        # Keeps a single bar from filling the plot.
        made.update_yaxes(range=[max(bars, 5) - 0.5, -0.5], row=1, col=column)
    made.update_xaxes(title={"text": "slot-seconds"}, rangemode="tozero")
    seconds = sum(one.seconds for one in totals.values())
    spent = cost.of(history, history.t_last).hours * 3600
    note = (
        f"{seconds:,.1f} of {spent:,.1f} slot-seconds, {seconds / spent:.1%}, and"
        f" {history.lost_steps} steps."
        if spent
        else ""
    )
    return finished(
        made,
        note,
        f"{len(lost)} trials lost something; the {MOST} that lost most are drawn."
        if len(lost) > MOST
        else "",
        height=max(260, 120 + 24 * max(len(worst), len(totals))),
        min_width=520,
    )
