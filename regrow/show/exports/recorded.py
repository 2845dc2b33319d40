"""Recorded learning curves as a simulated experiment's objective; recorded spot machines."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from regrow.infra.machine.given_files import checked
from regrow.search.bounds import LONGEST
from regrow.search.planning.curves import Neighbours, RecordedCurve
from regrow.search.planning.machines import Trace
from regrow.search.space.domains import Choice, Constant, Float, Int, Json
from regrow.search.spec import Spec
from regrow.show.exports.files import as_written
from regrow.tasks.errors import UserError

_MOST_BYTES = 4 << 30
"""Most bytes of a table or a trace."""


class RecordedTable:
    """A table of curves: a CSV file, gzipped if its name ends so, one line per configuration and
    step.

    Its columns are the parameters by their (dotted) names, `step` from 1, the metrics, and
    `seconds`, the duration of each step (1 if that column is missing). The output of `regrow trials
    NAME --history --csv` is such a table: there parameters and metrics have the prefixes `config.`
    and `metrics.`, each trial is a curve, and other columns are ignored.

    A configuration that is not in the table gets its nearest neighbour: as many choices in common
    as possible (constants that have a column count as choices), then the smallest Euclidean
    distance in the unit cube of the space, with logarithmic ranges measured by their logarithm;
    then the one that comes first. Raises UserError for a file that cannot be used, naming line and
    column.
    """

    def __init__(self, path: Path, spec: Spec, *, scale: float = 1.0) -> None:
        """Read the table; `scale` multiplies its seconds."""
        self._scale = scale
        self._ranges = [p for p in spec.space.flat if not isinstance(p.domain, Choice | Constant)]
        self._choices = [p for p in spec.space.flat if isinstance(p.domain, Choice)]
        self._most = spec.max_steps
        self._first = spec.metrics[0].name
        self._path = path
        self.curves: list[RecordedCurve] = []
        """In the order of the file."""
        with _opened(path) as file:
            reader = csv.DictReader(file)
            named = reader.fieldnames or []
            if twice := [name for name, count in Counter(named).items() if count > 1]:
                raise UserError(f"{path}: there are two columns {twice[0]!r}; name each once")
            exported = any(name.startswith("metrics.") for name in named)
            self._above, above = ("config.", "metrics.") if exported else ("", "")
            # A constant with a column also selects curves.
            self._choices += [
                p
                for p in spec.space.flat
                if isinstance(p.domain, Constant) and self._above + p.name in named
            ]
            columns = [self._above + p.name for p in (*self._ranges, *self._choices)]
            wanted = {m.name for m in spec.metrics} | {limit.metric for limit in spec.limits}
            for name in (*columns, "step", *(above + n for n in sorted(wanted))):
                if name not in named:
                    raise UserError(
                        f"{path}: there is no column {name!r} (there are: {', '.join(named)})"
                    )
            own = {*columns, "step", "seconds"}
            metrics = {
                name.removeprefix(above): name
                for name in named
                if name not in own and name.startswith(above)
            }
            same = ["trial"] if "trial" in named and exported else columns
            lines = enumerate(reader, start=2)
            for _, rows in itertools.groupby(lines, key=lambda one: [one[1][n] for n in same]):
                self.curves.append(self._curve(list(rows), columns, metrics))
        if not self.curves:
            raise UserError(f"{path}: there is no configuration in it")
        fixed = [p.name for p in self._choices]
        configs = (curve.config for curve in self.curves)
        self._neighbours = Neighbours(spec.space, configs, fixed=fixed)
        self._found: dict[tuple[str, ...], int] = {}

    def __len__(self) -> int:
        return len(self.curves)

    def at(
        self, config: Mapping[str, Json], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        """See Objective. A shorter curve is extended by its last step; the seed is ignored."""
        key = self._neighbours.key(config)
        if key not in self._found:
            differ, distance = self._neighbours.distances(config)
            self._found[key] = int(np.lexsort((distance, differ))[0])
        curve = self.curves[self._found[key]]
        place = min(step, len(curve.rows)) - 1
        return curve.rows[place], curve.seconds[place]

    def best(self, metric: str, *, most: bool) -> float:
        """Return the best value of a metric in the whole table."""
        rows = (row for curve in self.curves for row in curve.rows[: self._most])
        values = [row[metric] for row in rows if metric in row]
        return max(values) if most else min(values)

    def _curve(
        self,
        rows: list[tuple[int, dict[str, str]]],
        columns: Sequence[str],
        metrics: Mapping[str, str],
    ) -> RecordedCurve:
        """Return the curve of these rows, each with its line. `columns`: of the parameters."""
        first = rows[0]
        for line, row in rows:
            if None in row:  # DictReader's key of what has no column
                raise UserError(f"{self._path}, line {line}: has more cells than there are columns")
            if any(row[name] != first[1][name] for name in columns):
                raise UserError(
                    f"{self._path}, line {line}: trial {row['trial']} changes its configuration;"
                    " only trials that keep theirs are curves of a table"
                )
        steps = [self._step(place, *row, metrics) for place, row in enumerate(rows, 1)]
        return RecordedCurve(
            config=self._config(*first),
            rows=[values for values, _ in steps],
            seconds=[seconds for _, seconds in steps],
        )

    def _step(
        self, place: int, line: int, row: Mapping[str, str], metrics: Mapping[str, str]
    ) -> tuple[dict[str, float], float]:
        if self._number(line, row, "step") != place:
            raise UserError(
                f"{self._path}, line {line}: step {row['step']} where {place} should come (steps"
                " ascend from 1)"
            )
        seconds = self._number(line, row, "seconds") if row.get("seconds") else 1.0
        if not seconds >= 0:
            raise UserError(f"{self._path}, line {line}: seconds is {seconds:g}, below 0")
        seconds *= self._scale
        if seconds > LONGEST:
            scaled = f"with the scale of {self._scale:g}, " if self._scale != 1 else ""
            raise UserError(
                f"{self._path}, line {line}: {scaled}seconds is {seconds:g}, more than 100 years"
            )
        # A metric that was not reported at a step, or not finite, is an empty cell: it is omitted
        # unless it is the one that governs the search.
        values = {
            name: self._number(line, row, column)
            for name, column in metrics.items()
            if name == self._first or row[column] != ""
        }
        return values, seconds

    def _number(self, line: int, row: Mapping[str, str], name: str) -> float:
        if row[name] is None:
            raise UserError(f"{self._path}, line {line}: {name} is missing")
        try:
            number = float(row[name])
        except (TypeError, ValueError):
            raise UserError(
                f"{self._path}, line {line}: {name} is {row[name]!r}, not a number"
            ) from None
        if not math.isfinite(number):
            raise UserError(
                f"{self._path}, line {line}: {name} is {row[name]}, not a finite number"
            )
        return number

    def _config(self, line: int, row: Mapping[str, str]) -> dict[str, Json]:
        """Return the configuration of a row; an inactive parameter has an empty cell."""
        found: dict[str, Json] = {}
        for parameter in self._ranges:
            name, domain = self._above + parameter.name, parameter.domain
            if not row[name]:
                continue
            found[parameter.name] = number = self._number(line, row, name)
            if isinstance(domain, Float | Int) and domain.log and number <= 0:
                raise UserError(
                    f"{self._path}, line {line}: {name} is {number:g}, which has no logarithm"
                )
        for parameter in self._choices:
            if cell := as_written(row[self._above + parameter.name] or ""):
                found[parameter.name] = cell
        return found


def read_trace(path: Path) -> Trace:
    """Return a recorded trace of a spot market.

    The file is JSON with `metadata.gap_seconds` and `data`, the number of available instances at
    each point. Raises UserError for a file of another form.
    """
    try:
        trace = json.loads(checked(path, _MOST_BYTES).read_text(encoding="utf-8"))
        counts = tuple(int(count) for count in trace["data"])
        found = Trace(counts=counts, gap_seconds=float(trace["metadata"]["gap_seconds"]))
        found.machines(1)  # raises
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        form = '{"metadata": {"gap_seconds": 60}, "data": [1, 1, 0, ...]}'
        raise UserError(
            f"{path} is no trace: {type(error).__name__}: {error}; its form is {form}"
        ) from None
    return found


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        checked(path, _MOST_BYTES)
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", newline="")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig", newline="")
        ) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read: {why}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text, so no table") from None
    except csv.Error as error:
        raise UserError(f"{path} is no table: {error}") from None
