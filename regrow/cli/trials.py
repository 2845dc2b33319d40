"""`trials`: lists the trials of an experiment, or all their steps, for people and programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from regrow.cli import options, tables
from regrow.cli.console import opened, plain_console
from regrow.cli.options import option
from regrow.infra.log.rows import LogRows
from regrow.infra.state.places import Places
from regrow.show.views import summaries
from regrow.tasks.errors import UserError


def trials(
    name: options.Name,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="File for --csv (default: standard output) or --parquet; replaced if there",
            show_default=False,
        ),
    ] = None,
    state: options.State = None,
    history: Annotated[
        bool, option("Every step of every trial instead of a line a trial", "--history")
    ] = False,
    as_json: options.Json = False,
    as_csv: Annotated[bool, option("CSV, safe to open in a spreadsheet", "--csv")] = False,
    as_parquet: Annotated[bool, option("A Parquet file", "--parquet")] = False,
) -> None:
    """List the trials of an experiment, best first; with --history every reported step."""
    if as_json + as_csv + as_parquet > 1:
        raise UserError("--json, --csv and --parquet exclude each other")
    if file is not None and not (as_csv or as_parquet):
        raise UserError(f"{file}: a file goes with --csv or --parquet")
    if as_parquet and file is None:
        raise UserError(f"--parquet: name a file: regrow trials {name} {name}.parquet --parquet")
    with opened(name, state) as one:
        rows, found = one.rows, one.history
        if as_csv or as_parquet:
            _table(rows, one.places, file, history=history, parquet=as_parquet)
        elif history:
            with rows.sorted() as steps:
                if as_json:
                    for point in summaries.points(steps):
                        print(json.dumps(point))
                else:
                    for table in tables.points(steps):
                        plain_console().print(table)
        elif as_json:
            for trial in found.trials:
                print(json.dumps(summaries.trial_view(found, trial)))
        else:
            console = plain_console()
            console.print(tables.trials(found, console))


def _table(
    rows: LogRows, places: Places, file: Path | None, *, history: bool, parquet: bool
) -> None:
    from regrow.show.exports import destination, files, frames

    if file is not None:
        destination.is_stream(file)  # fails at once if it cannot be written
    lines = columns = 0

    def counted(parts: Iterable[frames.Table]) -> Iterator[frames.Table]:
        nonlocal lines, columns
        for table in parts:
            lines, columns = lines + len(table[0].cells), len(table)
            yield table

    with rows.sorted() if history else nullcontext() as steps:
        table = counted(
            [frames.trials(rows, places)] if steps is None else frames.curves(rows.history, steps)
        )
        if file is None:
            sys.stdout.buffer.writelines(files.csv_bytes(table))
            sys.stdout.buffer.flush()
            return
        destination.put(file, (files.parquet_bytes if parquet else files.csv_bytes)(table))
    destination.print_message(
        file, f"{file}: {lines} {'steps' if history else 'trials'}, {columns} columns"
    )
