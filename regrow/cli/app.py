"""The list of commands, and how errors reach the user. Heavy modules are imported by commands."""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from regrow.cli.cluster import cluster
from regrow.cli.compare import compare
from regrow.cli.estimate import estimate
from regrow.cli.exit_codes import ExitCode
from regrow.cli.export import export
from regrow.cli.help import Command, GroupedCommands
from regrow.cli.join import join
from regrow.cli.keep import cp, mv, note, rm
from regrow.cli.logs import logs
from regrow.cli.ls import ls
from regrow.cli.options import option
from regrow.cli.report import report
from regrow.cli.run import resume, run
from regrow.cli.schedule import schedule, schedules
from regrow.cli.serve import serve
from regrow.cli.show import agents, best, show
from regrow.cli.simulate import schema, simulate
from regrow.cli.station import down, status, up
from regrow.cli.stop import stop
from regrow.cli.trial import trial
from regrow.cli.trials import trials
from regrow.cli.try_ import try_
from regrow.cli.tune import SETTINGS, tune
from regrow.cli.ui import ui
from regrow.cli.verify import verify
from regrow.cli.watch import watch
from regrow.infra.log.log import Contradiction, CorruptLog
from regrow.infra.machine.host_environment import a_home, causes, direct, exhausted, refused_path
from regrow.infra.machine.streams import redirect_to_null, refusal
from regrow.search.errors import SearchCodeError, SpecError
from regrow.search.history.view import NotCreated
from regrow.show.live.terminal import echo
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.output.traces import one_line, user_trace
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.process.addresses import redacted
from regrow.tasks.process.interrupted import InterruptedBySignal, check

app = typer.Typer(
    name="regrow",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Machine-learning experiments that cannot be lost.",
    cls=GroupedCommands,
)
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (run, join, try_, tune, resume, stop, watch),
    "Look": (ls, show, agents, trials, trial, best, compare, logs, report, ui, verify),
    "Keep and pass on": (note, cp, mv, rm, export, serve),
    "Before a run": (schema, simulate, estimate),
    "Station": (up, down, status, schedule, schedules),
}
"""The commands, by the heading that they stand under in `--help`. Each has its function's name."""
for heading, commands in COMMANDS.items():
    for command in commands:
        app.command(
            command.__name__.rstrip("_"),
            cls=Command,
            rich_help_panel=heading,
            context_settings=SETTINGS if command is tune else None,
        )(command)
app.add_typer(cluster, name="cluster", rich_help_panel="Clusters")


def _versions(asked: bool) -> None:
    """Print the versions of regrow and of what it runs on, without importing them; then exit."""
    if asked:
        for name in ("regrow", "ray", "prefect", "mlflow", "optuna"):
            echo(f"{name} {version(name)}")
        echo(f"python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool,
        option(
            "Print the versions of regrow and of the libraries that it runs on, and exit",
            "--version",
            callback=_versions,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    os.environ.update(a_home(os.environ))
    # For the pages and servers of commands that start no experiment.
    os.environ.update(direct(os.environ))
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except SystemExit as ended:
        if isinstance(getattr(ended.__context__, "__cause__", None), InterruptedBySignal):
            raise InterruptedBySignal from None  # Typer has turned it into an exit code
        raise
    except (UserError, SpecError, Unavailable, NotCreated) as wrong:
        _fail(ExitCode.WRONG_INPUT, wrong)
    except CorruptLog as damaged:
        restored = (
            "" if isinstance(damaged, Contradiction) else ", restore that object from a backup"
        )
        _fail(ExitCode.DAMAGED, f"{damaged}; nothing was overwritten{restored}")
    except UserCodeError as theirs:
        echo(theirs.trace, error=True, end="")
        _fail(ExitCode.WRONG_INPUT, theirs)
    except SearchCodeError as theirs:
        echo(user_trace(theirs.__cause__ or theirs), error=True, end="")
        _fail(ExitCode.WRONG_INPUT, theirs)
    except RegrowError as failed:
        _fail(ExitCode.FAILED, failed)
    except BrokenPipeError:  # raised in Typer if the reader of the output has closed it
        redirect_to_null(sys.stdout)
        sys.exit(ExitCode.FAILED)
    except Exception as error:  # noqa: BLE001 - any other exception is a bug of regrow
        _end_by(error)
    finally:
        # Skips the last garbage collection, which takes 0.4 s with the objects of Ray and Prefect.
        gc.freeze()


def _fail(code: ExitCode, why: object) -> NoReturn:
    echo(f"regrow: {redacted(one_line(str(why)))}", error=True)
    sys.exit(code)


def _end_by(error: Exception) -> NoReturn:
    """End by an error that no command expects: the machine's, the user's, or a bug of regrow."""
    check()  # a signal at the start of a command
    if _interrupted(error):
        sys.exit(128 + signal.SIGINT)
    if path := _refused(error):
        _fail(ExitCode.WRONG_INPUT, path)
    if isinstance(error, OSError) and (why := refusal(sys.stdout)) is not None:
        _fail(ExitCode.FAILED, f"standard output cannot be written: {why}")
    if lacks := exhausted(error):
        _fail(ExitCode.FAILED, f"{lacks}; nothing is lost, `regrow resume` continues")
    echo(traceback.format_exc(), error=True, end="")
    if hidden := hidden_module(error):
        _fail(ExitCode.WRONG_INPUT, hidden)
    if sys.warnoptions and any(isinstance(cause, Warning) for cause in causes(error)):
        why = "PYTHONWARNINGS, or python -W, makes errors of warnings, as of a library's above"
        _fail(ExitCode.WRONG_INPUT, f"{why}; leave that out")
    echo(
        "regrow: this is a bug of regrow; the experiment's state is intact, `regrow resume`"
        " continues",
        error=True,
    )
    sys.exit(ExitCode.FAILED)


def _interrupted(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error: Pydantic's serializers raise one of their own for it,
    which may have it in its text alone.
    """
    return any(
        isinstance(cause, KeyboardInterrupt) or "KeyboardInterrupt" in str(cause)
        for cause in causes(error)
    )


def _refused(error: BaseException) -> str:
    """Return what a user can do about a refused path or setting, "" for other errors."""
    try:
        os.getcwd()
    except FileNotFoundError:
        if isinstance(error, FileNotFoundError):
            return "the folder in which you are is gone; go to another"
    if path := refused_path(error):
        return f"{path}; name another place, or change its permissions"
    from regrow.infra.prefect import settings

    return settings.refused_setting(error)


def hidden_module(error: BaseException) -> str:
    """Return a message about such a file if it caused the error, else "". Raises nothing."""
    with suppress(Exception):  # entries of sys.modules may be anything
        seen = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
        for name, module in sorted(sys.modules.items()):
            file = module.__dict__.get("__file__")
            if "." in name or not file or _of_a_library(file):
                continue
            lacks = isinstance(error, AttributeError) and error.obj is module
            lacks |= isinstance(error, ImportError) and (error.name or "").partition(".")[0] == name
            if (lacks or file in seen) and _is_a_library(name, Path(file)):
                return (
                    f"{file} is imported in place of the library {name!r}, which others need; give"
                    " it another name"
                )
    return ""


def _is_a_library(name: str, file: Path) -> bool:
    """Return whether there is a library of this name elsewhere."""
    folder = (file.parent if file.name == "__init__.py" else file).parent.resolve()
    found = importlib.machinery.PathFinder.find_spec(
        name, [entry for entry in sys.path if Path(entry).resolve() != folder]
    )
    return found is not None and found.origin is not None and _of_a_library(found.origin)


def _of_a_library(file: str) -> bool:
    places = {Path(sys.prefix), Path(importlib.__file__).parents[1]}
    return not places.isdisjoint(Path(file).parents) or not {
        "site-packages",
        "dist-packages",
    }.isdisjoint(Path(file).parts)
