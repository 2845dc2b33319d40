"""Which trials were stopped at which rung, for schedulers that compare trials at rungs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from regrow.infra.log.rows import Rows
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.show.figures import series
from regrow.show.figures.look import BEST, finished, marker, objective_axis, safe

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "Rungs"
READING = (
    "The trials at each step where the schedule compared them: their values there, and which of"
    " them continued."
)
NOTHING = "The schedule has stopped or paused no trial."
MOST = 2500
COLUMNS = 16
SPREAD = 0.56


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """The trials that reached `step`, and those of them that were stopped or wait there."""

    step: int
    reached: list[TrialRecord]
    stopped: list[TrialRecord]
    waiting: list[TrialRecord]


def rungs(history: History) -> list[Rung]:
    """Return the steps at which the scheduler stopped or paused any trial. Empty for
    population-based training, which stops none.
    """
    if any(trial.changes for trial in history.trials):
        return []
    ends = {trial.number: _end(trial) for trial in history.trials}
    steps = sorted({step for trial in history.trials if (step := ends[trial.number]) is not None})
    found = []
    for step in steps:
        here = [t for t in history.trials if ends[t.number] == step]
        found.append(
            Rung(
                step=step,
                reached=[t for t in history.trials if t.curve.time >= step],
                stopped=[t for t in here if t.state is TrialState.STOPPED],
                waiting=[t for t in here if t.held],
            )
        )
    return [rung for rung in found if rung.stopped or rung.waiting]


def _end(trial: TrialRecord) -> int | None:
    """Return the step at which the scheduler stopped or paused the trial, None if it did not."""
    last = trial.attempts[-1] if trial.attempts else None
    if last is None or not trial.decided or trial.decided > trial.curve.time:
        return None
    retired = trial.state is TrialState.STOPPED and last.leave is not None
    return (
        trial.decided
        if (last.stop is not None and trial.state is TrialState.STOPPED) or retired or trial.held
        else None
    )


def figure(told: Rows) -> Figure | None:
    """Make the figure; None if the scheduler stopped and paused no trial."""
    history = told.history
    found = rungs(history)
    if not found:
        return None
    from plotly import graph_objects as go

    made, metric = go.Figure(), safe(history.objective.name)
    shown = found if len(found) <= COLUMNS else series.sample(found, COLUMNS)
    share = max(20, MOST // len(shown))
    values: list[float] = []
    groups: dict[str, tuple[list[float], list[float], list[int]]] = {}
    left_out = False
    for place, rung in enumerate(shown):
        gone = {t.number for t in (*rung.stopped, *rung.waiting)}
        parts = {
            "continued": [t for t in rung.reached if t.number not in gone],
            "stopped here": rung.stopped,
            "waits here": rung.waiting,
        }
        for name, trials in parts.items():
            drawn = series.sample(trials, share)
            left_out |= len(drawn) < len(trials)
            x, y, numbers = groups.setdefault(name, ([], [], []))
            x += [place + series.spread(t.number, SPREAD) for t in drawn]
            y += [t.curve.until(rung.step)[-1] for t in drawn]
            numbers += [t.number for t in drawn]
            values += [t.curve.until(rung.step)[-1] for t in trials]
    looks = {"continued": "done", "stopped here": "stopped", "waits here": "paused"}
    for name, (x, y, numbers) in groups.items():
        if x:
            made.add_scatter(
                x=x,
                y=y,
                customdata=numbers,
                mode="markers",
                name=name,
                opacity=0.85,
                marker=marker(looks[name], 7 if len(values) < 600 else 5),
                hovertemplate=(
                    f"trial %{{customdata}}, {name}<br>{metric} %{{y:.5g}}<extra></extra>"
                ),
            )
    _mark_best(made, history, shown)
    on = [len(rung.reached) - len(rung.stopped) - len(rung.waiting) for rung in shown]
    clock = history.spec.clock
    steps = [rung.step if clock is None else clock.value(rung.step) for rung in shown]
    labels = [
        f"step {step}<br>{count} of {len(rung.reached)}"
        for step, rung, count in zip(steps, shown, on, strict=True)
    ]
    axis, note = objective_axis(history, values)
    made.update_layout(
        xaxis={
            "tickvals": list(range(len(shown))),
            "ticktext": labels,
            "range": [-0.6, len(shown) - 0.4],
            "showgrid": False,
            "title": {"text": "rung, and how many continued from it"},
        },
        yaxis=axis,
    )
    return finished(
        made,
        note,
        f"{len(shown)} of the {len(found)} steps at which trials ended are drawn."
        if len(shown) < len(found)
        else "",
        f"At most {share:,} trials of a kind are drawn at a rung; the numbers below count all."
        if left_out
        else "",
        min_width=64 * len(shown) + 120,
        height=440,
    )


def _mark_best(made: Figure, history: History, shown: list[Rung]) -> None:
    """Draw the best trial's course through the rungs."""
    best = history.leader
    if best is None:
        return
    way = [
        (place, best.curve.until(rung.step)[-1])
        for place, rung in enumerate(shown)
        if best.curve.time >= rung.step
    ]
    if way:
        made.add_scatter(
            x=[x + series.spread(best.number, SPREAD) for x, _ in way],
            y=[y for _, y in way],
            mode="lines+markers",
            name=f"best: trial {best.number}",
            line={"color": BEST, "width": 1.5},
            marker={"symbol": "star", "size": 12},
            customdata=[best.number] * len(way),
            hovertemplate=f"trial {best.number}, the best<br>%{{y:.5g}}<extra></extra>",
        )
