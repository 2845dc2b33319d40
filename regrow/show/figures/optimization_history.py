"""The best value of each trial, in the order in which they were proposed, and the best so far."""

from __future__ import annotations

from regrow.infra.log.rows import LogRows
from regrow.search.numbers import readable
from regrow.show.figures import series, style

TITLE = "Optimisation history"
READING = (
    "Each point is a trial at its best value, the line the best so far. Where it stays flat, more"
    " trials bring little."
)
NOTHING = "No trial has reported a value yet."
MOST = 3000
"""Maximum points: each is an element of the page."""


def figure(log_rows: LogRows) -> style.Figure | None:
    history = log_rows.history
    leader = history.leader
    if leader is None or leader.best is None:
        return None
    made, metric = style.blank(), style.safe(history.objective.name)
    steps = series.best_so_far(history)
    leaders = [history.trials[number] for number, _ in steps]
    values = [t.best[0] for t in history.trials if t.best]
    for outcome, group in series.counted(history).items():
        reached = [t for t in group if t.best]
        shown = series.sample(
            reached, max(1, MOST * len(reached) // max(1, len(values))), keep=leaders
        )
        if shown:
            style.add_points(
                made,
                [(t.number, t.best[0], t.number) for t in shown if t.best],
                style.marker(outcome, 8 if len(values) < 400 else 6),
                f"trial %{{x}}, {outcome}<br>{metric} %{{y:.8~g}}",
                name=f"{outcome} ({len(group)})",
            )
    end = len(history.trials) - 1
    x, y = [*(n for n, _ in steps), end], [*(v for _, v in steps), steps[-1][1]]
    style.add_line(made, x, y, {"shape": "hv", "color": style.GREY, "width": 2}, name="best so far")
    style.add_points(
        made,
        [(leader.number, leader.best[0], leader.number)],
        style.marker("best", 15),
        f"trial %{{x}}, the best<br>{metric} %{{y:.8~g}}",
        name=f"best: trial {leader.number}, {readable(leader.best[0])}",
    )
    axis, note = style.objective_axis(history, values)
    edge = max(0.5, 0.02 * end)
    made.update_layout(xaxis={"title": {"text": "trial"}, "range": [-edge, end + edge]}, yaxis=axis)
    spread = "trials are drawn, evenly spread, and each that was the best so far."
    return style.finished(made, style.part(MOST, len(values), spread), note)
