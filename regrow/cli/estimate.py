"""`estimate`: what an experiment would cost, take and reach, before it runs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from regrow.cli import options, tables
from regrow.cli.console import plain_console
from regrow.cli.options import option
from regrow.cli.simulate import check_simulable
from regrow.infra.state.places import Places
from regrow.search.bounds import MOST_TOGETHER
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.infra.clusters.description import Cluster
    from regrow.search.spec import Spec
    from regrow.show.estimate.estimate import Estimate
    from regrow.show.estimate.sources import Sources

MACHINES = (4, 8, 16)
MOST_MACHINES, MOST_BUDGETS, MOST_SIMULATIONS = 1_000, 12, 10_000
WIDE = 100
"""Cells of a terminal in which medians stand beside intervals."""


def estimate(
    file: options.File,
    on: Annotated[
        Path | None,
        option("The cluster's YAML file: its machines and prices", metavar="CLUSTER"),
    ] = None,
    pilot: Annotated[
        int | None, option("First run this many trials here, as the experiment NAME-pilot", min=1)
    ] = None,
    origins: Annotated[
        list[str] | None,
        option(
            "Take the curves of this experiment [default: of all with the same parameters and"
            " metric]; may be repeated",
            "--from",
            metavar="EXPERIMENT",
        ),
    ] = None,
    table: Annotated[
        Path | None, option("Take the curves of this table, as `regrow simulate` does")
    ] = None,
    budget: Annotated[
        str | None, option("Also with at most this much money", metavar="AMOUNT,...")
    ] = None,
    machines: Annotated[
        str | None,
        option("Numbers of machines [default: 4,8,16, or those there are]", metavar="COUNT,..."),
    ] = None,
    per_machine: Annotated[
        int | None,
        option(
            "Trials that a machine runs at a time [default: 1, or as many as fit a pod]",
            min=1,
            max=MOST_TOGETHER,
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        option("JSON trace of a spot market, as for `regrow simulate`; may be repeated"),
    ] = None,
    scale: Annotated[
        float, typer.Option(min=0.0, help="Multiply the recorded seconds by this")
    ] = 1.0,
    simulations: Annotated[
        int | None,
        option(
            "Simulations of each line [default: what fits into a minute]",
            min=1,
            max=MOST_SIMULATIONS,
        ),
    ] = None,
    trials: options.OtherTrials = None,
    state: options.State = None,
    as_json: options.Json = False,
    page: Annotated[
        Path | None, option("Also write this page with figures, as HTML", metavar="FILE")
    ] = None,
) -> None:
    """Estimate what the experiment that FILE describes would cost, how long it would take and what
    it would reach, by simulations of its planner on recorded curves.
    """
    from regrow.cli.report import check_page
    from regrow.cli.spec_file import located_in, read
    from regrow.infra.clusters.cluster_file import read_cluster
    from regrow.search.options import chosen
    from regrow.search.planning.estimating import EstimateInputs, Rates
    from regrow.show.estimate import simulations as simulated
    from regrow.show.estimate import sources
    from regrow.show.estimate.estimate import as_data
    from regrow.show.estimate.estimate import estimate as estimated
    from regrow.show.exports import destination
    from regrow.show.exports.recorded import read_trace

    if not 0 < scale < math.inf:
        raise UserError(f"--scale: {scale} is no number above 0")
    if sum(one is not None for one in (pilot, table, origins or None)) > 1:
        raise UserError("--pilot, --from and --table each say where the curves are from; give one")
    spec = read(file, trials)
    cluster = None if on is None else read_cluster(on)
    counts = _machines(machines, cluster)
    amounts = _numbers("--budget", budget, MOST_BUDGETS)
    if page is not None:
        check_page(page, "--page")
    with located_in(file):
        ask = spec.search if chosen(spec.search) == "define_by_run" else None
        hint = "leave it out for the estimate"
        count = None if spec.step_metric is None else spec.step_metric.name
        check_simulable(spec, hint, step_metric=count, search=ask)
        places = Places.at(state or spec.state)
        origin = _sources(spec, file, places, table, origins, pilot, scale=scale)
        spec = _as_planned(spec, origin)
        offered = sources.offered(spec, cluster, each=per_machine)
        priced = all(one.price is not None for one in offered.kinds.values())
        if amounts and spec.price_per_hour is None and not priced:
            raise UserError(
                "--budget: no prices are known; give `prices` in the cluster file, or"
                " price_per_hour in the experiment"
            )
        least, each = spec.resources.widths[0], next(iter(offered.kinds.values())).slots
        if least > counts[0] * each:
            raise UserError(
                f"--machines {counts[0]}: a trial needs {least} workers; --per-machine sets how"
                " many of them a machine runs"
            )
        inputs = EstimateInputs(
            spec=spec,
            curves=origin.curves,
            offered=offered,
            timing=origin.timing,
            spot=[read_trace(path) for path in trace] if trace else Rates(),
        )
        with simulated.running(inputs, simulations) as running:
            found = estimated(running, origin, machines=counts, budgets=amounts)
    if page is not None:
        from regrow.show.estimate.page import html

        written = html(found).encode()
        destination.put(page, [written])
        echo(f"{page} ({len(written) / 1e6:.1f} MB)", error=True)
    if as_json:
        print(json.dumps(as_data(found)))
        return
    _print(found)


def _machines(given: str | None, cluster: Cluster | None) -> list[int]:
    from regrow.show.estimate.sources import most

    limit = most(cluster)
    if given is None:
        return [limit] if limit is not None else list(MACHINES)
    numbers = _numbers("--machines", given, MOST_BUDGETS)
    found = [int(one) for one in numbers]
    if found != numbers or max(found) > MOST_MACHINES:
        raise UserError(f"--machines {given}: write whole numbers up to {MOST_MACHINES:,}")
    if limit is not None and max(found) > limit:
        raise UserError(f"--machines {given}: the cluster has {limit}")
    return found


def _numbers(name: str, given: str | None, most: int) -> list[float]:
    try:
        found = sorted({float(word) for word in given.split(",")} if given is not None else ())
    except ValueError:
        found = [0.0]
    if any(not 0 < one < math.inf for one in found):
        raise UserError(f"{name} {given}: write numbers above 0 with commas between them")
    if len(found) > most:
        raise UserError(f"{name} {given}: at most {most} numbers")
    return found


def _sources(
    spec: Spec,
    file: Path,
    places: Places,
    table: Path | None,
    origins: Sequence[str] | None,
    pilot: int | None,
    *,
    scale: float,
) -> Sources:
    from regrow.show.estimate import sources

    if table is not None:
        return sources.from_table(table, spec, scale=scale)
    if pilot is not None:
        name = f"{spec.name}-pilot"
        _run_pilot(spec, file, name, pilot, places)
        return sources.from_experiments(places, spec, [name], scale=scale, key="--pilot")
    return sources.from_experiments(places, spec, list(origins or ()), scale=scale)


def _run_pilot(spec: Spec, file: Path, name: str, trials: int, places: Places) -> None:
    """Run the first trials to their ends, as an experiment of its own. Raises UserError."""
    echo(f"the pilot: {trials} trials of {spec.name} as {name}", error=True, flush=True)
    words = ["run", str(file.absolute()), "--name", name, "--state", places.root]
    words += ["--trials", str(trials), "--set", "schedule=fifo"]
    # limits of the whole search, machines that are not here, and what is for its result alone
    keys = ("budget", "serve", "register", "notify", "when", "market")
    own = [key for key in keys if getattr(spec, key)]
    own += [f"stop.{key}" for key in ("dollars", "deadline") if getattr(spec.stop, key) is not None]
    for key in own:
        words += ["--set", f"{key}=null"]
    done = subprocess.run([sys.executable, "-m", "regrow", *words], stdout=2, check=False)
    if done.returncode:
        raise UserError(f"the pilot {name} did not finish (exit code {done.returncode})")


def _as_planned(spec: Spec, sources: Sources) -> Spec:
    """Return the specification to simulate: with an end for each trial, and a deadline that counts
    from now on.
    """
    from regrow.search.spec.moments import epoch

    plain, now = spec.to_json(), time.time()
    if spec.max_steps is None:
        plain["max_steps"] = max(len(curve.rows) for curve in sources.curves)
    for key, moment in (
        ("stop", spec.stop.deadline),
        ("market", None if spec.market is None else spec.market.deadline),
    ):
        if isinstance(moment, str):
            left = epoch(moment, now) - now
            if left <= 0:
                raise UserError(f"{key}.deadline: {moment} is over")
            plain[key] = {**plain[key], "deadline": left}
    return type(spec).parse(plain)


def _print(found: Estimate) -> None:
    from regrow.show.estimate import words

    console = plain_console()
    wide = console.width >= WIDE
    echo(words.head(found))
    rows = list(words.table(found))
    which = 0 if wide else 1
    columns = [name for name in rows[0].cells if any(row.cells[name][which] for row in rows)]
    made = tables.plain_table(*columns)
    for row in rows:
        style = "bold green" if row.chosen else ""
        made.add_row(*(Text(row.cells[name][which], style=style) for name in columns))
    made.caption = "80 % of the simulations lie within each interval"
    console.print(made)
    for title, sentence in words.recommendations(found):
        echo(f"{title}: {sentence}")
    for line in words.assumptions(found):
        echo(f"assumed: {line}")
