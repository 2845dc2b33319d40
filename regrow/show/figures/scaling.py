"""Scaling: how fast attempts were, by their number of workers.

If a trainable reports a metric `samples` (of that step, over all workers), the figure also shows
samples per second per worker, and the scaling efficiency. Without it the work of a step is unknown:
with the same batch for each worker, a step of more workers is more work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from regrow.infra.log.rows import LogRows
from regrow.show.figures import series
from regrow.show.figures.style import BEST, COLOURS, Figure, add_points, finished, panels

TITLE = "Scaling"
READING = (
    "How fast attempts were, by their number of workers, and what of each worker's speed is left"
    " with more of them."
)
NOTHING = "No attempt of several workers has reported two steps."
SAMPLES = "samples"
"""Metric with the number of samples of all workers in a step."""
MOST = 400
"""Maximum attempts that are drawn for a number of workers."""


@dataclass(slots=True, kw_only=True)
class AttemptPace:
    """An attempt's speed, from its first report that counts to its last."""

    trial: int
    attempt: int
    workers: int
    steps: int = 0
    seconds: float = 0.0
    samples: float = 0.0
    sampled: float = 0.0
    """Seconds of those steps whose samples are known."""

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds

    @property
    def each(self) -> float | None:
        """Samples per second per worker; None if they were not reported."""
        return self.samples / self.sampled / self.workers if self.sampled else None


def paces(log_rows: LogRows) -> list[AttemptPace]:
    """Return the speed of all attempts with two reports or more. The time before the first report
    (imports, the first batch) does not count.
    """
    found: dict[tuple[int, int], AttemptPace] = {}
    last: dict[tuple[int, int], float] = {}
    for trial, number, rows in log_rows:
        key = trial.number, number
        pace = found.setdefault(
            key, AttemptPace(trial=key[0], attempt=number, workers=trial.attempts[number - 1].width)
        )
        for row in rows:
            if key in last:
                spent = max(0.0, row.t - last[key])
                pace.steps, pace.seconds = pace.steps + 1, pace.seconds + spent
                if (samples := row.metrics.get(SAMPLES)) is not None:
                    pace.samples, pace.sampled = pace.samples + samples, pace.sampled + spent
            last[key] = row.t
    return [pace for pace in found.values() if pace.seconds > 0]


def efficiencies(each: Mapping[int, float]) -> dict[int, float]:
    """Return samples per second per worker by number of workers, relative to the fewest."""
    base = each[min(each)]
    return {workers: value / base for workers, value in sorted(each.items())} if base > 0 else {}


def figure(log_rows: LogRows) -> Figure | None:
    if not log_rows.history.spec.resources.ranked:
        return None
    found = paces(log_rows)
    if not any(pace.workers > 1 for pace in found):
        return None
    sizes = sorted({pace.workers for pace in found})
    sampled = [pace for pace in found if pace.each is not None]
    each = _medians([(pace.workers, pace.each or 0.0) for pace in sampled])
    shares = efficiencies(each) if len(each) > 1 else {}
    columns = 1 + bool(sampled) + bool(shares)
    made = panels(1, columns, horizontal_spacing=0.11)
    _draw(made, 1, sizes, found, [pace.rate for pace in found], "steps a second")
    if sampled:
        values = [pace.each or 0.0 for pace in sampled]
        _draw(made, 2, sizes, sampled, values, "samples a second a worker")
    if shares:
        made.add_bar(
            x=[sizes.index(workers) for workers in shares],
            y=list(shares.values()),
            width=0.5,
            showlegend=False,
            marker={"color": COLOURS["done"]},
            text=[f"{share:.0%}" for share in shares.values()],
            textposition="auto",
            insidetextfont={"color": "#ffffff"},
            cliponaxis=False,
            customdata=[_workers(workers) for workers in shares],
            hovertemplate="%{customdata}: %{y:.1%}<extra></extra>",
            row=1,
            col=3,
        )
        most = 1.1 * max(1.0, *shares.values())
        title = {"text": "scaling efficiency"}
        made.update_yaxes(title=title, tickformat=".0%", range=[0, most], row=1, col=3)
    made.update_xaxes(
        tickvals=list(range(len(sizes))),
        ticktext=[str(size) for size in sizes],
        range=[-0.6, len(sizes) - 0.4],
        showgrid=False,
        title={"text": "workers"},
    )
    left_out = any(sum(pace.workers == size for pace in found) > MOST for size in sizes)
    return finished(
        made,
        _note(sizes, shares, sampled=bool(sampled)),
        f"At most {MOST} attempts of a size are drawn; the medians are of all." if left_out else "",
        min_width=120 + 240 * columns,
        height=360,
    )


def _draw(
    made: Figure,
    column: int,
    sizes: Sequence[int],
    drawn: Sequence[AttemptPace],
    values: Sequence[float],
    title: str,
) -> None:
    """Draw a point per attempt, those of one size side by side, and a line through the medians."""
    cell = {"row": 1, "col": column}
    points: list[tuple[float, float, str]] = []
    for place, size in enumerate(sizes):
        of_size = [n for n, pace in enumerate(drawn) if pace.workers == size]
        shown = series.sample(of_size, MOST)
        for at, n in enumerate(shown):
            who = f"trial {drawn[n].trial}, attempt {drawn[n].attempt}: {_workers(size)}"
            points.append((place + 0.4 * ((at + 0.5) / len(shown) - 0.5), values[n], who))
    many = len(points) > 200
    add_points(
        made,
        points,
        {"color": COLOURS["done"], "size": 5 if many else 8},
        f"%{{customdata}}<br>%{{y:.8~g}} {title}",
        name="an attempt",
        legendgroup="attempts",
        showlegend=column == 1,
        opacity=0.5 if many else 0.8,
        **cell,
    )
    medians = _medians([(pace.workers, value) for pace, value in zip(drawn, values, strict=True)])
    made.add_scatter(
        x=[sizes.index(size) for size in medians],
        y=list(medians.values()),
        mode="lines+markers",
        name="median",
        legendgroup="median",
        showlegend=column == 1,
        line={"color": BEST, "width": 2},
        marker={"symbol": "line-ew-open", "size": 22, "color": BEST, "line": {"width": 3}},
        customdata=[_workers(size) for size in medians],
        hovertemplate=f"%{{customdata}}<br>median %{{y:.8~g}} {title}<extra></extra>",
        **cell,
    )
    made.update_yaxes(title={"text": title}, range=[0, 1.08 * max(values) or 1.0], **cell)


def _medians(pairs: Sequence[tuple[int, float]]) -> dict[int, float]:
    return {
        size: median(value for other, value in pairs if other == size)
        for size in sorted({size for size, _ in pairs})
    }


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _note(sizes: Sequence[int], shares: Mapping[int, float], *, sampled: bool) -> str:
    if shares:
        fewest = _workers(min(shares))
        return (
            f"Efficiency: samples a second a worker, by those of {fewest}; medians of attempts,"
            " whatever their configurations."
        )
    if not sampled:
        return (
            f"What a worker does is known where the trainable reports the metric {SAMPLES}: how"
            " many all had in the step."
        )
    return f"All attempts that are measured had {_workers(sizes[0])}." if len(sizes) == 1 else ""
