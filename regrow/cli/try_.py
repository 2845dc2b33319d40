"""`try`: one trial in this process, where a debugger works. The underscore is there because `try` is a word of Python's."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regrow.cli.exit_codes import ExitCode
from regrow.live.text import ends, number, settings
from regrow.search.errors import SpecError
from regrow.search.events import Ended, Row, Saved
from regrow.tasks.errors import UserError
from regrow.tasks.traces import one_line

if TYPE_CHECKING:
    from regrow.one_trial import OneTrial
    from regrow.search.spec import Spec

_MOST_FILES = 5


def try_(
    file: Annotated[Path, typer.Argument(help="The experiment's YAML file", readable=False)],
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter's value; NAME is dotted, as in model.layers=3"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps at most [default: max_steps of the file]", show_default=False)
    ] = None,
    trial: Annotated[int, typer.Option(min=0, help="Another draw: that of this trial's number")] = 0,
    restore: Annotated[bool, typer.Option(help="Afterwards, go on from a checkpoint as after a loss, and compare")] = True,
    keep: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Leave the last checkpoint's files here")] = None,
) -> None:
    """Try one trial of the experiment that FILE describes here and now: nothing is recorded, print and breakpoint() work."""
    from regrow.cli.spec_file import read
    from regrow.launch import check_rllib, glance_at
    from regrow.one_trial import OneTrial, cluster_for, configuration, temporary_store

    if keep is not None and keep.exists():
        raise UserError(f"--keep: {keep} exists already; name a folder that is to be made")
    spec = read(file, trials=1)
    most = spec.max_steps if steps is None else steps if spec.max_steps is None else min(steps, spec.max_steps)
    try:
        config = configuration(spec, trial, _parse_settings(spec, given or []))
        glance_at(spec)
        looked_at = check_rllib(spec)
    except SpecError as wrong:
        raise (wrong if wrong.key.startswith("--") else wrong.at(str(file))) from None
    print(f"trial {trial} of {spec.name}: {settings(config) or 'no parameters'}", flush=True)
    logs = logging.getLogger("regrow.trial")
    logs.addHandler(logging.StreamHandler())
    logs.setLevel(logging.INFO)
    with cluster_for(looked_at if looked_at is not spec else None), temporary_store() as store:
        printer = _StepPrinter(spec.objective.name)
        one = OneTrial(spec=spec, config=config, number=trial, store=store, told=printer.show)
        try:
            ended = one.run(most)
            rows = one.rows
            _print_ending(one, ended, printer.seconds)
            _print_checkpoints(one, keep)
            if restore and one.saved:
                _go_on(one, printer, rows, spec)
        except KeyboardInterrupt:
            print(f"\nended by Ctrl-C after step {one.rows[-1].step if one.rows else 0}")
            sys.exit(ExitCode.INTERRUPTED)


class _StepPrinter:
    """Prints steps as they are reported, each with the seconds since the one before."""

    def __init__(self, objective: str) -> None:
        self._objective = objective
        self._last = time.time()
        self.seconds: list[float] = []
        self.before: dict[int, float | None] = {}
        """The objective in an earlier run, by step, to compare with."""

    def begin(self, before: list[Row]) -> None:
        """Notes that another run begins, which is to be compared with the rows of the one before."""
        self._last, self.before = time.time(), {row.step: row.metrics[self._objective] for row in before}

    def show(self, row: Row) -> None:
        """Prints one step."""
        took, self._last = row.t - self._last, row.t
        self.seconds.append(took)
        metrics = "  ".join(f"{name} {number(value)}" for name, value in row.metrics.items())
        print(f"step {row.step:<4} {metrics}  ({took:.2f} s){self._comparison(row)}", flush=True)

    def _comparison(self, row: Row) -> str:
        if row.step not in self.before:
            return ""
        earlier, now = self.before[row.step], row.metrics[self._objective]
        return ", as before" if earlier == now else f", but {self._objective} {number(earlier)} before"


def _parse_settings(spec: Spec, texts: list[str]) -> dict[str, Any]:
    """Returns the values of `--set`, each of the type that its domain has. Raises UserError."""
    domains = {parameter.name: parameter.domain for parameter in spec.space.parameters}
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        if not equals or not name:
            raise UserError(f"--set {text}: write NAME=VALUE, such as lr=0.01")
        try:
            value = json.loads(written)
        except ValueError:
            value = written
        if name in domains and not domains[name].contains(value) and domains[name].contains(written):
            value = written  # a choice of texts, one of which looks like a number
        found[name] = value
    return found


def _print_ending(one: OneTrial, ended: Ended, seconds: list[float]) -> None:
    """Prints how a run ended. Exits unless it ended well."""
    if ended.message.startswith("BdbQuit"):
        print(f"left by the debugger after step {ended.step}")
        sys.exit(ExitCode.INTERRUPTED)
    if ended.outcome == "failed":
        sys.stdout.flush()  # what it printed came before
        if not one.spec.command:  # whose trace is what it printed
            print(ended.trace, end="", file=sys.stderr)
        print(f"regrow: the trial failed after step {ended.step}: {one_line(ended.message)}", file=sys.stderr)
        sys.exit(ExitCode.FAILED)
    each = f", {sum(seconds[1:]) / len(seconds[1:]):.3g} s a step after the first" if len(seconds) > 1 else ""
    print(f"done after {len(one.rows)} step{ends(len(one.rows))}{each}{f' ({ended.message})' if ended.message else ''}")


def _print_checkpoints(one: OneTrial, keep: Path | None) -> None:
    """Prints what was saved, and leaves the last checkpoint's files in the folder `keep`."""
    if not one.saved:
        print("no checkpoint was saved: after a loss such a trial begins anew at step 1")
        return
    last = one.saved[-1]
    with tempfile.TemporaryDirectory(prefix="regrow-try-") as folder:
        files = one.files(last, keep or Path(folder, "checkpoint"))
    names = ", ".join(f"{name} ({size:,} bytes)" for name, size in files[:_MOST_FILES])
    more = f" and {len(files) - _MOST_FILES} more" if len(files) > _MOST_FILES else ""
    print(f"checkpoints: {len(one.saved)}, the last at step {last.step}: {names}{more}")
    if keep is not None:
        print(f"its files are in {keep}")


def _go_on(one: OneTrial, printer: _StepPrinter, rows: list[Row], spec: Spec) -> None:
    """Runs a second attempt from a checkpoint before the last step, so that a step can be compared; else one step more."""
    last = rows[-1].step
    origin: Saved = next((saved for saved in reversed(one.saved) if saved.step < last), one.saved[-1])
    most = max(last, origin.step + 1)
    if spec.max_steps is not None:
        most = min(most, spec.max_steps)
    print(f"once more from the checkpoint of step {origin.step}, as after a loss:", flush=True)
    printer.begin(rows)
    ended = one.run(most, after=origin)
    if ended.outcome == "failed":
        _print_ending(one, ended, [])
    elif not one.rows:
        print("its checkpoint was loaded; no step is left to do")
