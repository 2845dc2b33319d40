"""What losses cost: wasted slot-seconds, by class and by trial."""

from __future__ import annotations

from regrow.infra.log.rows import LogRows
from regrow.search.history import cost, waste
from regrow.show.figures.style import COLOURS, Figure, finished, panels

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
    "oom": COLOURS["running"],
    "checkpoint": COLOURS["stopped"],
}


def figure(log_rows: LogRows) -> Figure | None:
    history = log_rows.history
    totals = waste.of_all(history)
    if not any(one.seconds or one.steps for one in totals.values()):
        return None
    by_trial = {t.number: parts for t in history.trials if (parts := waste.of_trial(t))}
    lost = {n: sum(one.seconds for one in parts.values()) for n, parts in by_trial.items()}
    worst = sorted(lost, key=lambda number: (-lost[number], number))[:MOST]
    made = panels(1, 2, column_widths=[0.38, 0.62], horizontal_spacing=0.16)
    hover = "%{customdata}<br>%{x:.1f} slot-seconds<extra></extra>"
    for kind, one in totals.items():
        attempts = f"{one.attempts} attempt{'' if one.attempts == 1 else 's'}"
        look_of = {"orientation": "h", "marker": {"color": CLASSES[kind]}, "legendgroup": kind}
        made.add_bar(
            x=[one.seconds],
            y=[kind],
            **look_of,
            name=kind,
            text=f"{one.attempts}x",
            textposition="auto",
            insidetextfont={"color": "#ffffff"},
            customdata=[f"{attempts}, {one.steps} steps done again"],
            hovertemplate=hover,
            row=1,
            col=1,
        )
        made.add_bar(
            x=[by_trial[n][kind].seconds if kind in by_trial[n] else 0.0 for n in worst],
            y=[f"trial {n}" for n in worst],
            **look_of,
            showlegend=False,
            customdata=[f"trial {n}, {kind}" for n in worst],
            hovertemplate=hover,
            row=1,
            col=2,
        )
    made.update_layout(barmode="stack", bargap=0.3)
    made.update_yaxes(type="category", showgrid=False)
    for column, bars in enumerate((len(totals), len(worst)), start=1):
        # Keeps a single bar from filling the plot.
        made.update_yaxes(range=[max(bars, 5) - 0.5, -0.5], row=1, col=column)
    made.update_xaxes(title={"text": "slot-seconds"}, rangemode="tozero")
    seconds = sum(one.seconds for one in totals.values())
    spent = cost.of(history, history.t_last).hours * 3600
    share = f"{seconds:,.1f} of {spent:,.1f} slot-seconds, {seconds / spent:.1%}" if spent else ""
    most = f"{len(lost)} trials lost something; the {MOST} that lost most are drawn."
    return finished(
        made,
        f"{share}, and {history.lost_steps} steps." if spent else "",
        most if len(lost) > MOST else "",
        height=max(260, 120 + 24 * max(len(worst), len(totals))),
        min_width=520,
    )
