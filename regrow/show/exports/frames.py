"""An experiment as two tables, the same for CSV, Parquet and pandas: one row per trial, and one row
per step.

The columns and their order do not depend on the rows: our columns, then `config.*` in the order of
the space, then `metrics.*`, first those of the specification, then the others by name. pandas is
imported only when a frame is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from regrow.infra.log.rows import LogRows, Sorted
from regrow.infra.state.places import Places
from regrow.search.events import Row
from regrow.search.history import History, TrialRecord, cost
from regrow.search.history.waste import of_trial
from regrow.search.space.domains import Choice, Constant, Domain, Int, Json
from regrow.show.views import summaries

if TYPE_CHECKING:
    from pandas import DataFrame

Kind = Literal["whole", "number", "truth", "text", "time", "any"]
"""Type of a column's cells (or None): int, float, bool, str, seconds since the epoch, any JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    kind: Kind
    cells: list[Any]


Table = list[Column]
Step = tuple[int, int, Row]
"""Trial, attempt and row."""
CELLS = 200_000
"""Maximum cells of a per-step table that are in memory at a time."""


def trials(found: LogRows, places: Places | None = None) -> Table:
    """Return a table with one row per trial, by number.

    `value` is the best of the objective, at `step`, among steps that meet the constraints; `steps`
    is how many it did. `config.*` is its current configuration. `metrics.*` are those at `step`; of
    the last step if there are several metrics, or if no step met the constraints. `seconds`: on
    nodes, over all attempts that ended; `cost`: in the currency of the prices, None if none is
    known. `places` completes addresses.
    """
    history = found.history
    shown = history.trials
    rows = [t.curve.shown(summaries.representative_step(history, t)) for t in shown]
    own: list[tuple[str, Kind, Iterable[Any]]] = [
        ("trial", "whole", (t.number for t in shown)),
        ("state", "text", (t.state.value for t in shown)),
        ("value", "number", (t.best[0] if t.best else None for t in shown)),
        ("step", "whole", (t.best[1] if t.best else None for t in shown)),
        ("steps", "whole", (t.step for t in shown)),
        ("attempts", "whole", (len(t.attempts) for t in shown)),
        (
            "wasted_steps",
            "whole",
            (sum(lost.steps for lost in of_trial(t).values()) for t in shown),
        ),
        ("started", "time", (t.attempts[0].t_started if t.attempts else None for t in shown)),
        (
            "ended",
            "time",
            ((t.attempts[-1].t_ended if t.state.final and t.attempts else None) for t in shown),
        ),
        ("seconds", "number", (t.seconds for t in shown)),
        ("cost", "number", (cost.of_trial(t, history.t_last) for t in shown)),
        ("node", "text", (_last(a.where for a in t.attempts) for t in shown)),
        ("reason", "text", (_last(a.message for a in t.attempts[-1:]) for t in shown)),
        ("checkpoint", "text", (summaries.checkpoint(history, t, places) for t in shown)),
    ]
    table = [Column(name=name, kind=kind, cells=list(cells)) for name, kind, cells in own]
    table += _settings(history, [t.config for t in shown])
    return table + [_metric(name, rows) for name in found.names()]


def steps(found: Sorted) -> Iterator[Table]:
    """Yield a row per step of each trial, with its attempt and time; in parts, at least one."""
    for part in _parts(found, columns=4):
        yield [*_own(part), *_metrics(found.names, part)]


def curves(history: History, found: Sorted) -> Iterator[Table]:
    """Yield `steps` with the additional columns for `regrow simulate`: `config.*` with which a step
    was done, and its `seconds`.

    The first step of an attempt is counted from the attempt's beginning; differing clocks of
    machines never make it less than 0.
    """
    last: tuple[int, int, float] | None = None
    for part in _parts(found, columns=5 + len(history.spec.space.parameters)):
        seconds: list[float] = []
        configs: list[Mapping[str, Json]] = []
        for number, attempt, row in part:
            trial = history.trials[number]
            began = trial.attempts[attempt - 1].t_began
            if last is not None and last[:2] == (number, attempt):
                began = last[2]
            seconds.append(max(0.0, row.t - (row.t if began is None else began)))
            configs.append(config_at(trial, row.step))
            last = number, attempt, row.t
        extra = Column(name="seconds", kind="number", cells=seconds)
        yield [*_own(part), extra, *_settings(history, configs), *_metrics(found.names, part)]


def joined(parts: Iterable[Table]) -> DataFrame:
    """Return the parts of a table as one data frame, see `frame`."""
    import pandas as pd

    return pd.concat(map(frame, parts), ignore_index=True)


def frame(table: Table) -> DataFrame:
    """Return a data frame: Int64 where a whole number is missing, times in UTC, text as str."""
    import pandas as pd

    def series(column: Column) -> Any:
        gaps = None in column.cells
        match column.kind:
            case "whole":
                return pd.array(column.cells, dtype="Int64" if gaps else "int64")
            case "truth":
                return pd.array(column.cells, dtype="boolean" if gaps else "bool")
            case "number":
                return pd.array(column.cells, dtype="float64")
            case "text":
                return pd.Series(column.cells, dtype="str")
            case "time":
                return pd.to_datetime(pd.Series(column.cells, dtype="float64"), unit="s", utc=True)
        return pd.Series(column.cells, dtype="object")

    return pd.DataFrame({column.name: series(column) for column in table})


def _metric(name: str, rows: Iterable[Mapping[str, float | None]]) -> Column:
    return Column(name=f"metrics.{name}", kind="number", cells=[row.get(name) for row in rows])


def _settings(history: History, configs: Sequence[Mapping[str, Json]]) -> Table:
    return [
        Column(
            name=f"config.{parameter.name}",
            kind=_kind(parameter.domain),
            cells=[config.get(parameter.name) for config in configs],
        )
        for parameter in history.spec.space.parameters
    ]


def _last(texts: Iterable[str | None]) -> str | None:
    """Return the last one that is not empty, None for none."""
    return next((text for text in reversed([*texts]) if text), None)


def _parts(found: Sorted, columns: int) -> Iterator[list[Step]]:
    most = max(1, CELLS // (columns + len(found.names)))
    rest = iter(found)
    part = list(islice(rest, most))
    while True:
        yield part
        if not (part := list(islice(rest, most))):
            return


def _own(part: Sequence[Step]) -> Table:
    return [
        Column(name="trial", kind="whole", cells=[number for number, _, _ in part]),
        Column(name="step", kind="whole", cells=[row.step for _, _, row in part]),
        Column(name="attempt", kind="whole", cells=[attempt for _, attempt, _ in part]),
        Column(name="time", kind="time", cells=[row.t for _, _, row in part]),
    ]


def _metrics(names: Iterable[str], part: Sequence[Step]) -> Table:
    return [_metric(name, [row.metrics for _, _, row in part]) for name in names]


def config_at(trial: TrialRecord, step: int) -> Mapping[str, Json]:
    """Return the configuration with which a step was done."""
    return next(
        (change.config for change in reversed(trial.changes) if change.step < step), trial.proposed
    )


def numeric(values: Iterable[object]) -> bool:
    """Return whether all values are numbers, which truth values are not."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _kind(domain: Domain) -> Kind:
    match domain:
        case Choice():
            return _common(domain.values)
        case Constant():
            return _common((domain.value,))
        case Int():
            return _common((domain.low, domain.high))
    return "number"


def _common(values: Collection[Json]) -> Kind:
    types = {type(value) for value in values}
    if any(type(value) is int and not -(2**63) <= value < 2**63 for value in values):
        return "any"  # larger than a 64-bit integer column can hold
    kinds: dict[type, Kind] = {bool: "truth", int: "whole", float: "number", str: "text"}
    if types == {int, float}:
        return "number"
    return kinds.get(types.pop(), "any") if len(types) == 1 else "any"
