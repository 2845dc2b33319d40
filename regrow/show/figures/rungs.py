"""Which trials were stopped at which rung, for schedulers that compare trials at rungs."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.infra.log.rows import LogRows
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.show.figures import series, style

TITLE = "Rungs"
READING = (
    "The trials at each step where the schedule compared them: their values there, and which of"
    " them continued."
)
NOTHING = "The schedule has stopped or paused no trial."
MOST = 2500
COLUMNS = 16
SPREAD = 0.56
LOOKS = {"continued": "done", "stopped here": "stopped", "waits here": "paused"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRung:
    """The trials that reached `step`, and those of them that were stopped or wait there."""

    step: int
    reached: list[TrialRecord]
    stopped: list[TrialRecord]
    waiting: list[TrialRecord]


def rungs(history: History) -> list[DrawnRung]:
    """Return the steps at which the scheduler stopped or paused trials; none for a population."""
    if any(trial.changes for trial in history.trials):
        return []
    ended: dict[int, list[TrialRecord]] = {}
    for trial in history.trials:
        last = trial.attempts[-1] if trial.attempts else None
        if last is None or not trial.decided or trial.decided > trial.curve.time:
            continue
        decided = last.stop is not None or last.leave is not None
        if trial.held or (trial.state is TrialState.STOPPED and decided):
            ended.setdefault(trial.decided, []).append(trial)
    return [
        DrawnRung(
            step=step,
            reached=[t for t in history.trials if t.curve.time >= step],
            stopped=[t for t in here if t.state is TrialState.STOPPED],
            waiting=[t for t in here if t.held],
        )
        for step, here in sorted(ended.items())
    ]


def figure(log_rows: LogRows) -> style.Figure | None:
    history = log_rows.history
    found = rungs(history)
    if not found:
        return None
    made, metric = style.blank(), style.safe(history.objective.name)
    shown = series.sample(found, COLUMNS)
    share = max(20, MOST // len(shown))
    values: list[float] = []
    groups: dict[str, list[tuple[float, float, int]]] = {}
    left_out = False
    for place, rung in enumerate(shown):
        gone = {t.number for t in (*rung.stopped, *rung.waiting)}
        on = [t for t in rung.reached if t.number not in gone]
        for name, trials in zip(LOOKS, (on, rung.stopped, rung.waiting), strict=True):
            drawn = series.sample(trials, share)
            left_out |= len(drawn) < len(trials)
            values += [t.curve.until(rung.step)[-1] for t in trials]
            groups.setdefault(name, []).extend(
                (_across(place, t), t.curve.until(rung.step)[-1], t.number) for t in drawn
            )
    for name, points in groups.items():
        if points:
            style.add_points(
                made,
                points,
                style.marker(LOOKS[name], 7 if len(values) < 600 else 5),
                f"trial %{{customdata}}, {name}<br>{metric} %{{y:.8~g}}",
                name=name,
                opacity=0.85,
            )
    _mark_best(made, history, shown)
    clock, labels = history.spec.clock, list[str]()
    for rung in shown:
        step = rung.step if clock is None else clock.value(rung.step)
        went_on = len(rung.reached) - len(rung.stopped) - len(rung.waiting)
        labels.append(f"step {step}<br>{went_on} of {len(rung.reached)}")
    axis, note = style.objective_axis(history, values)
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
    some = f"{len(shown)} of the {len(found)} steps at which trials ended are drawn."
    at_most = (
        f"At most {share:,} trials of a kind are drawn at a rung; the numbers below count all."
    )
    return style.finished(
        made,
        note,
        some if len(shown) < len(found) else "",
        at_most if left_out else "",
        min_width=64 * len(shown) + 120,
        height=440,
    )


def _across(place: int, trial: TrialRecord) -> float:
    return place + series.spread(trial.number, SPREAD)


def _mark_best(made: style.Figure, history: History, shown: list[DrawnRung]) -> None:
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
            x=[_across(place, best) for place, _ in way],
            y=[y for _, y in way],
            mode="lines+markers",
            name=f"best: trial {best.number}",
            line={"color": style.BEST, "width": 1.5},
            marker={"symbol": "star", "size": 12},
            customdata=[best.number] * len(way),
            hovertemplate=f"trial {best.number}, the best<br>%{{y:.8~g}}<extra></extra>",
        )
