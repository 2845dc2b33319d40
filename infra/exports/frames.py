"""An experiment as two tables, the same for CSV, Parquet and pandas: a row a trial, and a row a step.

Columns come in a fixed order and are all there, whatever the rows hold: ours, then `config.*` in the order of the space, then
`metrics.*`, those of the specification first and the others by name. pandas is imported where a frame is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from regrow.infra import views
from regrow.infra.places import Places
from regrow.search.domains import Choice, Constant, Domain, Int, Json
from regrow.search.history import History, Trial
from regrow.search.waste import of_trial

if TYPE_CHECKING:
    from pandas import DataFrame

Kind = Literal["whole", "number", "truth", "text", "time", "any"]
"""What is in a column, apart from None for nothing: an int, a float, a bool, a str, seconds since the epoch, any JSON value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column under its name."""

    name: str
    kind: Kind
    cells: list[Any]


Table = list[Column]


def trials(history: History, places: Places | None = None) -> Table:
    """A row a trial, by number.

    `value` is the best of the objective, at `step`, as far as constraints are met; `steps` how many it did. `config.*` is the
    configuration that it has now. `metrics.*` are those at `step`; of the last step where there are several metrics, or
    where no step met the constraints. `seconds`: on nodes, over all attempts that ended. `places` completes addresses.
    """
    shown = history.trials
    rows = [(t.rows[step - 1].metrics if (step := views.standing_step(history, t)) else {}) for t in shown]
    own: list[tuple[str, Kind, Iterable[Any]]] = [
        ("trial", "whole", (t.number for t in shown)),
        ("state", "text", (t.state.value for t in shown)),
        ("value", "number", (t.best[0] if t.best else None for t in shown)),
        ("step", "whole", (t.best[1] if t.best else None for t in shown)),
        ("steps", "whole", (t.step for t in shown)),
        ("attempts", "whole", (len(t.attempts) for t in shown)),
        ("wasted_steps", "whole", (sum(lost.steps for lost in of_trial(t).values()) for t in shown)),
        ("started", "time", (t.attempts[0].t_started if t.attempts else None for t in shown)),
        ("ended", "time", (_ended(t) for t in shown)),
        ("seconds", "number", (_seconds(t) for t in shown)),
        ("node", "text", (next((a.node for a in reversed(t.attempts) if a.node), None) for t in shown)),
        ("reason", "text", ((t.attempts[-1].message or None) if t.attempts else None for t in shown)),
        ("checkpoint", "text", (views.checkpoint(history, t, places) for t in shown)),
    ]
    table = [Column(name=name, kind=kind, cells=list(cells)) for name, kind, cells in own]
    for parameter in history.spec.space.parameters:
        cells = [t.config.get(parameter.name) for t in shown]
        table.append(Column(name=f"config.{parameter.name}", kind=_kind(parameter.domain), cells=cells))
    return table + [_metric(name, rows) for name in metrics(history, shown)]


def steps(history: History, number: int | None = None) -> Table:
    """A row a step of each trial (or of the trial `number`), once, with the attempt that reported it and when."""
    shown = history.trials if number is None else [history.trials[number]]
    rows = [row for t in shown for row in t.rows]
    table = [
        Column(name="trial", kind="whole", cells=[t.number for t in shown for _ in t.rows]),
        Column(name="step", kind="whole", cells=[row.step for row in rows]),
        Column(name="attempt", kind="whole", cells=[attempt for t in shown for attempt in t.lineage]),
        Column(name="time", kind="time", cells=[row.t for row in rows]),
    ]
    return table + [_metric(name, [row.metrics for row in rows]) for name in metrics(history, shown)]


def metrics(history: History, shown: Iterable[Trial]) -> list[str]:
    """Names of the metrics that these trials reported: those of the specification (also if not), then the others, sorted."""
    first = [metric.name for metric in history.spec.metrics]
    seen = {name for trial in shown for name in _names(trial)}
    return [*first, *sorted(seen - set(first))]


def frame(table: Table) -> DataFrame:
    """The table as a data frame: whole numbers as Int64 where one is missing, times in UTC, text as pandas has it."""
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


def _names(trial: Trial) -> Iterator[str]:
    """Names in a trial's rows; nearly always the same in all of them."""
    before: tuple[str, ...] = ()
    for row in trial.rows:
        if (names := tuple(row.metrics)) != before:
            before = names
            yield from names


def _ended(trial: Trial) -> float | None:
    return trial.attempts[-1].t_ended if trial.state.final and trial.attempts else None


def _seconds(trial: Trial) -> float | None:
    ran = [a.t_ended - a.t_began for a in trial.attempts if a.t_began is not None and a.t_ended is not None]
    return max(0.0, sum(ran)) if ran else None


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
    if int in types and not all(-(2**63) <= value < 2**63 for value in values if type(value) is int):
        return "any"  # no column of numbers holds it
    kinds: dict[type, Kind] = {bool: "truth", int: "whole", float: "number", str: "text"}
    if types == {int, float}:
        return "number"
    return kinds.get(types.pop(), "any") if len(types) == 1 else "any"
