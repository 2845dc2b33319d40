"""Which attempt ran on which node and when, what was lost, and where it continued."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regrow.infra.log.rows import LogRows
from regrow.search.durations import duration
from regrow.search.history import Attempt, History
from regrow.show.figures import style

TITLE = "Timeline"
READING = (
    "A bar for each attempt on its node. A cross is a loss or a failure, and a dotted line leads"
    " from it to where the trial continued. Empty places are slots that nothing used."
)
NOTHING = "No attempt has begun yet."
BARS = 1500
UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
ENDS = ("done", "stopped", "paused", "preempted", "lost", "failed", "running")
BAD = ("preempted", "lost", "failed")


@dataclass(slots=True, kw_only=True)
class Bar:
    """One or more attempts of a lane, in seconds of the axis. `trial` is the first one's."""

    trial: int
    lane: int
    begin: float
    end: float
    outcome: str
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time on the axis: seconds since the first attempt, without pauses in which nothing ran."""

    zero: float
    pauses: Sequence[tuple[float, float]]
    """Beginning and end of each pause, seconds since the epoch, in order."""

    def at(self, t: float) -> float:
        """Return the position of a time."""
        return (
            t - self.zero - sum(min(until, t) - since for since, until in self.pauses if since < t)
        )


def clock(spans: Sequence[tuple[float, float]]) -> Clock:
    """Make the clock for attempts that ran during `spans`. A pause is at least a minute, and a
    fiftieth of the time in which something ran.
    """
    ordered = sorted(spans)
    gaps, until, busy = list[tuple[float, float]](), ordered[0][0], 0.0
    for begin, end in ordered:
        if begin > until:
            gaps.append((until, begin))
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return Clock(
        zero=ordered[0][0], pauses=[gap for gap in gaps if gap[1] - gap[0] > max(60.0, busy / 50)]
    )


def figure(log_rows: LogRows) -> style.Figure | None:
    history = log_rows.history
    attempts = [(trial.number, a) for trial in history.trials for a in trial.attempts]
    begun = [(number, a) for number, a in attempts if a.t_began is not None]
    if not begun:
        return None
    begun.sort(key=lambda one: (one[1].t_began or 0.0, one[0]))
    time = clock([_span(history, a) for _, a in begun])
    lanes, nodes = _lanes(history, begun)
    bars = [_bar(history, time, number, a, lanes[number, a.number]) for number, a in begun]
    last = max(bar.end for bar in bars)
    unit, name = next(((u, n) for u, n in reversed(UNITS) if last >= 2 * u), UNITS[0])
    drawn = bars if len(bars) <= BARS else _merged(bars, last * sum(nodes.values()) / BARS)
    made = style.blank()
    for outcome in ENDS:
        group = [bar for bar in drawn if bar.outcome == outcome]
        if group:
            made.add_bar(
                base=[bar.begin / unit for bar in group],
                x=[(bar.end - bar.begin) / unit for bar in group],
                y=[bar.lane for bar in group],
                width=0.78,
                orientation="h",
                customdata=[bar.trial for bar in group],
                text=[bar.text for bar in group],
                textposition="none",
                name=f"{outcome} ({sum(bar.count for bar in group)})",
                marker={"color": style.COLOURS[outcome], "line": {"width": 0}},
                opacity=0.9,
                hovertemplate="%{text}<extra></extra>",
            )
    _losses(made, history, time, lanes, unit)
    for since, until in time.pauses:
        made.add_vline(
            x=time.at(since) / unit,
            line={"color": style.GREY, "width": 1, "dash": "dash"},
            annotation={
                "text": f"{duration(until - since)} pause",
                "font": {"size": 11, "color": style.GREY},
                "yref": "paper",
                "y": 1,
            },
        )
    top, ticks, labels = 0, list[float](), list[str]()
    for node, width in nodes.items():
        ticks.append(top + (width - 1) / 2)
        labels.append(style.safe(node))
        top += width
        if top < sum(nodes.values()):
            made.add_hline(y=top - 0.5, line={"color": style.GREY, "width": 0.5})
    every = len(ticks) // 20 if len(ticks) > 40 else 1
    made.update_layout(
        barmode="overlay",
        xaxis={"title": {"text": f"time since the first attempt, {name}"}, "rangemode": "tozero"},
        yaxis={
            "tickvals": ticks[::every],
            "ticktext": labels[::every],
            "range": [top - 0.4, -0.6],
            "showgrid": False,
            "title": {"text": "node"},
        },
    )
    never = sum(a.t_began is None and a.outcome is not None for _, a in attempts)
    unbegun = f"{never:,} attempt{'' if never == 1 else 's'}"
    alike = "short ones that follow each other and ended alike are one bar."
    return style.finished(
        made,
        "" if drawn is bars else f"{len(bars):,} attempts: {alike}",
        f"Not drawn: {unbegun} that ended before beginning on a node." if never else "",
        height=min(900, max(260, 140 + 24 * top)),
        min_width=480,
    )


def _span(history: History, attempt: Attempt) -> tuple[float, float]:
    """Return when it began and ended. A running attempt ends at the experiment's last event; the
    end is never before the beginning, since clocks of nodes differ.
    """
    begin = attempt.t_began or attempt.t_started
    return begin, max(begin, attempt.t_ended if attempt.t_ended is not None else history.t_last)


def _lanes(
    history: History, begun: Sequence[tuple[int, Attempt]]
) -> tuple[dict[tuple[int, int], int], dict[str, int]]:
    """Return a lane for each attempt, in order, and the number of lanes of each node."""
    places: dict[tuple[int, int], tuple[str, int]] = {}
    used: dict[str, int] = {}
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[float, int]]] = {}
    for number, attempt in begun:
        node = attempt.node or "?"
        begin, end = _span(history, attempt)
        running, free_lanes = busy.setdefault(node, []), free.setdefault(node, [])
        while running and running[0][0] <= begin:
            heapq.heappush(free_lanes, heapq.heappop(running)[1])
        if free_lanes:
            lane = heapq.heappop(free_lanes)
        else:
            lane, used[node] = used.get(node, 0), used.get(node, 0) + 1
        heapq.heappush(running, (end, lane))
        places[number, attempt.number] = (node, lane)
    nodes = {node: used[node] for node in sorted(used, key=_natural)}
    offset, offsets = 0, {}
    for node, width in nodes.items():
        offsets[node] = offset
        offset += width
    return {key: offsets[node] + lane for key, (node, lane) in places.items()}, nodes


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key with worker-2 before worker-10."""
    import re

    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]


def _bar(history: History, time: Clock, number: int, attempt: Attempt, lane: int) -> Bar:
    begin, end = _span(history, attempt)
    outcome = attempt.outcome or "running"
    steps = "no step"
    if attempt.to_step > attempt.from_step:
        steps = f"steps {attempt.from_step + 1} to {attempt.to_step}"
    cause = f" ({attempt.cause})" if attempt.cause and attempt.cause != attempt.outcome else ""
    why = f"<br>{style.safe(attempt.message)}" if attempt.message else ""
    again = f"<br>{attempt.superseded} steps were done again" if attempt.superseded else ""
    text = (
        f"trial {number}, attempt {attempt.number}<br>{steps},"
        f" {duration(end - begin)}<br>{outcome}{cause}{why}{again}"
    )
    return Bar(
        trial=number,
        lane=lane,
        begin=time.at(begin),
        end=time.at(end),
        outcome=outcome,
        text=text,
    )


def _merged(bars: Sequence[Bar], resolution: float) -> list[Bar]:
    """Merge a lane's neighbours with the same good outcome into bars of `resolution` seconds."""
    found: list[Bar] = []
    open_: dict[tuple[int, str], Bar] = {}
    for bar in bars:
        before = open_.get((bar.lane, bar.outcome))
        if bar.outcome not in BAD and before is not None and bar.end - before.begin < resolution:
            before.end, before.count = bar.end, before.count + 1
            before.text = (
                f"{before.count} attempts, the first one of trial {before.trial}<br>{bar.outcome}"
            )
        else:
            found.append(replace(bar))
            open_[bar.lane, bar.outcome] = found[-1]
    return found


def _losses(
    made: style.Figure,
    history: History,
    time: Clock,
    lanes: dict[tuple[int, int], int],
    unit: float,
) -> None:
    marks: list[tuple[float, int, int, str]] = []
    ways: list[tuple[Any, Any]] = []
    for trial in history.trials:
        for attempt, after in zip(trial.attempts, [*trial.attempts[1:], None], strict=True):
            if attempt.outcome not in BAD or attempt.t_began is None:
                continue
            _, end = _span(history, attempt)
            x, y = time.at(end) / unit, lanes[trial.number, attempt.number]
            which = f"trial {trial.number}, attempt {attempt.number}"
            text = f"{which}: {attempt.outcome} after step {attempt.to_step}"
            if attempt.message:
                text += f"<br>{style.safe(attempt.message)}"
            if after is not None and after.t_began is not None:
                away, node = duration(after.t_began - end), style.safe(after.where)
                text += f"<br>continued after {away} on {node}, from step {after.from_step + 1}"
                end_point = time.at(after.t_began) / unit, lanes[trial.number, after.number]
                ways += [(x, y), end_point, (None, None)]
            marks.append((x, y, trial.number, text))
    if ways:
        dotted = {"color": style.GREY, "width": 1.2, "dash": "dot"}
        style.add_line(made, [x for x, _ in ways], [y for _, y in ways], dotted, name="continued")
    if marks:
        edge = {"color": "#ffffff", "width": 1}
        style.add_points(
            made,
            [(x, y, number) for x, y, number, _ in marks],
            {"symbol": "x", "size": 9, "color": style.COLOURS["failed"], "line": edge},
            "%{text}",
            text=[text for *_, text in marks],
            name=f"loss or failure ({len(marks)})",
        )
