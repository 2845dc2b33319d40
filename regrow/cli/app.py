"""The list of commands, and how errors reach the user. Heavy modules are imported by commands."""

from __future__ import annotations

import gc
import os
import platform
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from regrow.cli.cluster import cluster
from regrow.cli.exit_codes import ExitCode
from regrow.cli.help import GROUPS, Grouped
from regrow.cli.hidden_modules import hidden_module
from regrow.cli.options import option
from regrow.infra.log.log import Contradiction, CorruptLog
from regrow.infra.machine.host_environment import a_home, direct
from regrow.infra.machine.streams import refusal, to_nowhere
from regrow.search.errors import SearchCodeError, SpecError
from regrow.search.history.view import Uncreated
from regrow.show.live.terminal import tell
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.output.traces import one_line, user_trace
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.process.addresses import redacted
from regrow.tasks.process.interrupted import Interrupted

app = typer.Typer(
    name="regrow",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Machine-learning experiments that cannot be lost.",
    cls=Grouped,
)
_NAMES = [
    "try_" if name == "try" else name
    for names in GROUPS.values()
    for name in names
    if name != "cluster"  # a group of commands
]
"""Each is the one public function of the module with its name, whose `SETTINGS`, if there are any,
are the command's.
"""
_MODULES = {name: import_module(f"regrow.cli.{name}") for name in _NAMES}
COMMANDS: tuple[Callable[..., None], ...] = tuple(
    getattr(module, name) for name, module in _MODULES.items()
)
for command, module in zip(COMMANDS, _MODULES.values(), strict=True):
    app.command(command.__name__.rstrip("_"), context_settings=getattr(module, "SETTINGS", None))(
        command
    )
app.add_typer(cluster, name="cluster")


def _versions(asked: bool) -> None:
    """Print the versions of regrow and of what it runs on, without importing them; then exit."""
    if asked:
        for name in ("regrow", "ray", "prefect", "mlflow", "optuna"):
            tell(f"{name} {version(name)}")
        tell(f"python {platform.python_version()}")
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

    def fail(code: ExitCode, why: object) -> NoReturn:
        tell(f"regrow: {redacted(one_line(str(why)))}", error=True)
        sys.exit(code)

    os.environ.update(a_home(os.environ))
    # For the pages and servers of commands that start no experiment.
    os.environ.update(direct(os.environ))
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except SystemExit as ended:
        if isinstance(getattr(ended.__context__, "__cause__", None), Interrupted):
            raise Interrupted from None  # Typer has turned it into an exit code
        raise
    except (UserError, SpecError, Unavailable, Uncreated) as wrong:
        fail(ExitCode.WRONG_INPUT, wrong)
    except CorruptLog as damaged:
        restored = (
            "" if isinstance(damaged, Contradiction) else ", restore that object from a backup"
        )
        fail(ExitCode.DAMAGED, f"{damaged}; nothing was overwritten{restored}")
    except UserCodeError as theirs:
        tell(theirs.trace, error=True, end="")
        fail(ExitCode.WRONG_INPUT, theirs)
    except SearchCodeError as theirs:
        tell(user_trace(theirs.__cause__ or theirs), error=True, end="")
        fail(ExitCode.WRONG_INPUT, theirs)
    except RegrowError as failed:
        fail(ExitCode.FAILED, failed)
    except BrokenPipeError:  # raised in Typer if the reader of the output has closed it
        to_nowhere(sys.stdout)
        sys.exit(ExitCode.FAILED)
    except Exception as error:  # noqa: BLE001 - any other exception is a bug of regrow
        if isinstance(error, OSError) and (why := refusal(sys.stdout)) is not None:
            fail(ExitCode.FAILED, f"standard output cannot be written: {why}")
        tell(traceback.format_exc(), error=True, end="")
        if hidden := hidden_module(error):
            fail(ExitCode.WRONG_INPUT, hidden)
        tell(
            "regrow: this is a bug of regrow; the experiment's state is intact, `regrow resume`"
            " continues",
            error=True,
        )
        sys.exit(ExitCode.FAILED)
    finally:
        # Skips the last garbage collection, which takes 0.4 s with the objects of Ray and Prefect.
        gc.freeze()
