"""`schema` and `simulate`: what a file may say, and a run of it on a table of recorded curves."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regrow.cli import options, tables
from regrow.cli.console import plain_console
from regrow.cli.options import option
from regrow.search.bounds import MOST_TOGETHER
from regrow.search.durations import on_clock
from regrow.show.live import text
from regrow.show.live.terminal import echo
from regrow.show.views import summaries

if TYPE_CHECKING:
    from regrow.search.history import History
    from regrow.search.spec import Spec

MOST_STEPS = 1_000_000
"""Most steps of a simulated trial."""


def schema() -> None:
    """Print the JSON schema of the YAML file, for editors."""
    from regrow.search.spec import Spec

    print(json.dumps(Spec.model_json_schema(), indent=2))


def check_simulable(spec: Spec, hint: str, **others: object) -> None:
    """Raise SpecError for what cannot be simulated: `others` and some keys of all specifications.
    `hint`: what to do about it.
    """
    from regrow.flows.checks import check_search
    from regrow.search.errors import SpecError

    check_search(spec)
    starts = [start.experiment for start in spec.warm_start]
    keys = {"stop.trial.function": spec.stop.trial.function, "warm_start": starts, **others}
    for key, value in keys.items():
        if value:
            raise SpecError(key, value, "cannot be simulated", hint)
    if (spec.max_steps or 0) > MOST_STEPS:
        problem = "is more than is simulated, and takes hours"
        raise SpecError("max_steps", spec.max_steps, problem, f"write {MOST_STEPS} or less")


def simulate(
    file: options.File,
    table: Annotated[
        Path,
        typer.Option(help="CSV (or CSV.gz) of recorded curves: parameters, step, metrics, seconds"),
    ],
    workers: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_TOGETHER, help="Machines, each of which runs one trial at a time"
        ),
    ] = 4,
    trace: Annotated[
        Path | None, option("JSON trace of a spot market: when the machines are there")
    ] = None,
    trials: options.OtherTrials = None,
    seed: Annotated[int | None, option("Another seed than the file's", min=0)] = None,
    scale: Annotated[
        float, typer.Option(min=0.0, help="Multiply the table's seconds by this")
    ] = 1.0,
    log: Annotated[Path | None, option("Write the events here, one JSON object a line")] = None,
    as_json: options.Json = False,
) -> None:
    """Simulate the experiment that FILE describes on recorded learning curves: hours of it in
    seconds, without training.
    """
    from regrow.cli.spec_file import located_in, read
    from regrow.search.events import encode
    from regrow.search.planning import simulator
    from regrow.show.exports.recorded import RecordedTable, read_trace
    from regrow.tasks.errors import UserError

    changes = {
        name: value for name, value in (("trials", trials), ("seed", seed)) if value is not None
    }
    spec = read(file, trials)
    if changes:
        spec = type(spec).parse({**spec.to_json(), **changes}, where=str(file))
    with located_in(file):
        check_simulable(spec, "leave it out")
        spec = _from_zero(spec)
    if not math.isfinite(scale):
        raise UserError(f"--scale: {scale} is not a finite number")
    if spec.max_steps is None:
        raise UserError(
            f"{file}: max_steps is missing; in a simulation no trainable ends by itself"
        )
    curves = RecordedTable(table, spec, scale=scale)
    machines = read_trace(trace).machines(workers) if trace is not None else ()
    began = time.perf_counter()
    try:
        run = simulator.simulate(spec, curves, workers=workers, availability=machines)
    except RuntimeError as error:
        raise UserError(f"{trace or file}: {error}") from None
    took = time.perf_counter() - began
    if log is not None:
        try:
            log.write_bytes(b"".join(encode(event) + b"\n" for event in run.events))
        except OSError as error:
            raise UserError(f"{log} cannot be written: {error.strerror}") from None
    if as_json:
        summary = summaries.show(run.history, alive=False, now=run.now)
        print(json.dumps({**summary, "workers": workers, "simulated_s": round(run.now, 3)}))
        return
    hours = on_clock(run.now) if run.now >= 60 else f"{run.now:.1f} s"
    many = f"{workers} machine{'s' if workers > 1 else ''}"
    _print(run.history, f"{hours} of experiment on {many}, simulated in {took:.1f} s")


def _from_zero(spec: Spec) -> Spec:
    """Return the specification for a clock that begins at 0: with the time that is left for a
    deadline. Raises SpecError if it is over.
    """
    from regrow.search.errors import SpecError
    from regrow.search.spec.moments import epoch

    moment = spec.stop.deadline
    if not isinstance(moment, str):
        return spec
    left = epoch(moment, 0.0) - time.time()
    if left <= 0:
        hint = "write a later time, or a span such as 8h"
        raise SpecError("stop.deadline", moment, "is over", hint)
    stop = spec.stop.model_copy(update={"deadline": left})
    return spec.model_copy(update={"stop": stop})


def _print(history: History, took: str) -> None:
    console = plain_console()
    if history.choice.why:
        echo(history.choice.describe())
    console.print(f"{history.spec.name}: {took}")
    for line in text.simulated(history):
        echo(line)
    shown = tables.trials(history, console, most=10)
    shown.caption = f"{more} more: --json" if (more := len(history.trials) - 10) > 0 else None
    console.print(shown)
