"""`try` (a keyword, so `try_`): runs one trial in this process, so that a debugger works."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from regrow.cli import options
from regrow.cli.exit_codes import ExitCode
from regrow.cli.options import option
from regrow.search.errors import SpecError
from regrow.search.events import Ended, Row
from regrow.show.live.terminal import echo
from regrow.show.live.text import ends, number, settings
from regrow.show.views import machine_use
from regrow.tasks.errors import Interrupted, UserError
from regrow.tasks.output.traces import one_line
from regrow.tasks.process.forking import handling

if TYPE_CHECKING:
    from regrow.flows.one_trial import OneTrial
    from regrow.search.spec import Spec

_MOST_FILES = 5


def try_(
    file: options.File,
    given: Annotated[
        list[str] | None,
        option(
            "A parameter's value; NAME is dotted, as in model.layers=3",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = None,
    steps: Annotated[
        int | None, option("Steps at most [default: max_steps of the file]", min=1)
    ] = None,
    trial: Annotated[
        int, typer.Option(min=0, help="Another draw: that of this trial's number")
    ] = 0,
    restore: Annotated[
        bool,
        typer.Option(help="Afterwards, continue from a checkpoint as after a loss, and compare"),
    ] = True,
    keep: Annotated[
        Path | None, option("Leave the last checkpoint's files here", metavar="FOLDER")
    ] = None,
) -> None:
    """Try one trial of the experiment that FILE describes in this process: nothing is recorded,
    print and breakpoint() work.
    """
    from regrow.cli.spec_file import read
    from regrow.flows.checks import check_frameworks, precheck
    from regrow.flows.one_trial import OneTrial, cluster_for, configuration, temporary_store

    if keep is not None and keep.exists():
        raise UserError(f"--keep: {keep} exists already; name a folder that is to be made")
    spec = read(file, trials=1)
    most = min((one for one in (steps, spec.max_steps) if one is not None), default=None)
    try:
        config = configuration(spec, trial, _parse_settings(spec, given or []))
        precheck(spec)
        looked_at = check_frameworks(spec)
    except SpecError as wrong:
        raise (wrong if wrong.key.startswith("--") else wrong.at(str(file))) from None
    echo(f"trial {trial} of {spec.name}: {settings(config) or 'no parameters'}", flush=True)
    logs = logging.getLogger("regrow.trial")
    logs.addHandler(logging.StreamHandler())
    logs.setLevel(logging.INFO)
    with cluster_for(looked_at if looked_at is not spec else None), temporary_store() as store:
        printer = _StepPrinter(spec.objective.name)
        one = OneTrial(spec=spec, config=config, number=trial, store=store, show=printer.show)
        try:
            with handling({signal.SIGINT: _interrupt}), _exits_shown(one):
                ended = one.run(most)
                rows = one.rows
                _print_ending(one, ended, printer.seconds)
                _print_checkpoints(one, keep)
                if restore and one.saved:
                    _repeat_steps(one, printer, rows, spec)
        except KeyboardInterrupt:
            echo(f"\nended by Ctrl-C after step {one.rows[-1].step if one.rows else 0}")
            sys.exit(ExitCode.INTERRUPTED)


def _interrupt(*_: object) -> None:
    raise Interrupted


@contextmanager
def _exits_shown(one: OneTrial) -> Iterator[None]:
    """Within the block, let `os._exit` end this process as a trial that failed: an experiment
    loses the trial's process, whatever the code.
    """
    leave, process = os._exit, os.getpid()

    def leave_shown(status: int) -> NoReturn:
        if os.getpid() != process:  # of a child that the trial has forked
            leave(status)
        try:
            sys.stdout.flush()
            after = one.rows[-1].step if one.rows else 0
            echo(
                f"regrow: the trial ended its process after step {after}, by os._exit({status}):"
                " an experiment counts that as lost, and tries again; return, or raise",
                error=True,
                flush=True,
            )
        finally:
            leave(ExitCode.FAILED)

    os._exit = leave_shown
    try:
        yield
    finally:
        os._exit = leave


class _StepPrinter:
    """Prints steps as they are reported, each with the seconds since the previous one."""

    def __init__(self, objective: str) -> None:
        self._objective = objective
        self._last = time.time()
        self.seconds: list[float] = []
        self.before: dict[int, float | None] = {}
        """The objective in an earlier run, by step, for comparison."""
        self.differs = False

    def begin(self, before: list[Row]) -> None:
        """Start another run, which is compared with the rows of the previous one."""
        self._last = time.time()
        self.before = {row.step: row.metrics[self._objective] for row in before}

    def show(self, row: Row) -> None:
        took, self._last = row.t - self._last, row.t
        self.seconds.append(took)
        metrics = "  ".join(f"{name} {number(value)}" for name, value in row.metrics.items())
        echo(f"step {row.step:<4} {metrics}  ({took:.2f} s){self._comparison(row)}", flush=True)

    def _comparison(self, row: Row) -> str:
        if row.step not in self.before:
            return ""
        earlier, now = self.before[row.step], row.metrics[self._objective]
        if earlier == now:
            return ", as before"
        self.differs = True
        return f", but {self._objective} {number(earlier)} before"


def _parse_settings(spec: Spec, texts: list[str]) -> dict[str, Any]:
    """Return the values of `--set`, each with its domain's type. Raises UserError."""
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
        domain = domains.get(name)
        if domain is not None and not domain.contains(value) and domain.contains(written):
            value = written  # a choice of texts, one of which looks like a number
        found[name] = value
    return found


def _print_ending(one: OneTrial, ended: Ended, seconds: list[float]) -> None:
    """Print how a run ended, and what it used. Exits unless it succeeded."""
    if ended.message.startswith("BdbQuit"):
        echo(f"left by the debugger after step {ended.step}")
        sys.exit(ExitCode.INTERRUPTED)
    if ended.outcome == "failed":
        sys.stdout.flush()  # so that the trial's output comes first
        if not one.spec.command:  # a command has printed its traceback already
            echo(ended.trace, end="", error=True)
        echo(
            f"regrow: the trial failed after step {ended.step}: {one_line(ended.message)}",
            error=True,
        )
        sys.exit(ExitCode.FAILED)
    each, why = "", f" ({ended.message})" if ended.message else ""
    if len(seconds) > 1:
        each = f", {sum(seconds[1:]) / len(seconds[1:]):.3g} s a step after the first"
    echo(f"done after {len(one.rows)} step{ends(len(one.rows))}{each}{why}")
    if ended.usage is not None:
        echo(f"machine use: {machine_use.in_words(ended.usage)}")


def _print_checkpoints(one: OneTrial, keep: Path | None) -> None:
    """Print what was saved, and copy the last checkpoint's files into the folder `keep`."""
    if not one.saved:
        echo("no checkpoint was saved: after a loss such a trial begins anew at step 1")
        return
    last = one.saved[-1]
    with tempfile.TemporaryDirectory(prefix="regrow-try-") as folder:
        files = one.files(last, keep or Path(folder, "checkpoint"))
    names = ", ".join(f"{name} ({size:,} bytes)" for name, size in files[:_MOST_FILES])
    more = f" and {len(files) - _MOST_FILES} more" if len(files) > _MOST_FILES else ""
    echo(f"checkpoints: {len(one.saved)}, the last at step {last.step}: {names}{more}")
    if keep is not None:
        echo(f"its files are in {keep}")


def _repeat_steps(one: OneTrial, printer: _StepPrinter, rows: list[Row], spec: Spec) -> None:
    """Run a second attempt from a checkpoint before the last step, so that a step can be compared;
    if there is none, run one step more.
    """
    last = rows[-1].step
    origin = next((saved for saved in reversed(one.saved) if saved.step < last), one.saved[-1])
    most = max(last, origin.step + 1)
    if spec.max_steps is not None:
        most = min(most, spec.max_steps)
    echo(f"once more from the checkpoint of step {origin.step}, as after a loss:", flush=True)
    printer.begin(rows)
    ended = one.run(most, after=origin)
    if ended.outcome == "failed":
        _print_ending(one, ended, [])
    elif not one.rows:
        echo("its checkpoint was loaded; no step is left to do")
    elif printer.differs:  # not an error: where training is not deterministic, all may be well
        echo(
            "a difference: the checkpoint lacks what training depends on (as the optimizer's state"
            " or that of random numbers), or training is not deterministic"
        )
