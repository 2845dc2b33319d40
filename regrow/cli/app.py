"""The list of commands, and how errors reach the user. Heavy modules are imported only by the
commands that need them.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import typer

from regrow.cli.best import best
from regrow.cli.cluster import cluster
from regrow.cli.compare import compare
from regrow.cli.cp import cp
from regrow.cli.down import down
from regrow.cli.exit_codes import ExitCode
from regrow.cli.export import export
from regrow.cli.hidden_modules import hidden_module
from regrow.cli.logs import logs
from regrow.cli.ls import ls
from regrow.cli.mv import mv
from regrow.cli.note import note
from regrow.cli.report import report
from regrow.cli.resume import resume
from regrow.cli.rm import rm
from regrow.cli.run import run
from regrow.cli.schedule import schedule
from regrow.cli.schedules import schedules
from regrow.cli.schema import schema
from regrow.cli.serve import serve
from regrow.cli.show import show
from regrow.cli.simulate import simulate
from regrow.cli.status import status
from regrow.cli.stop import stop
from regrow.cli.trials import trials
from regrow.cli.try_ import try_
from regrow.cli.tune import tune
from regrow.cli.ui import ui
from regrow.cli.up import up
from regrow.cli.verify import verify
from regrow.cli.watch import watch
from regrow.infra.log.log import Contradiction, CorruptLog
from regrow.infra.machine.host_environment import a_home, direct
from regrow.infra.machine.streams import refusal, to_nowhere
from regrow.search.errors import SpecError
from regrow.search.history.view import Uncreated
from regrow.show.live.terminal import PlainConsole, tell
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.output.traces import one_line
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
)
COMMANDS: tuple[Callable[..., None], ...] = (
    run,
    try_,
    tune,
    resume,
    stop,
    watch,
    ls,
    show,
    compare,
    trials,
    best,
    logs,
    report,
    export,
    serve,
    note,
    cp,
    mv,
    rm,
    verify,
    schema,
    simulate,
    ui,
    up,
    down,
    status,
    schedule,
    schedules,
)
"""In the order of `regrow --help`. Each is the one public function of the module with its name."""

for command in COMMANDS:
    settings = getattr(sys.modules[command.__module__], "SETTINGS", None)
    app.command(command.__name__.rstrip("_"), context_settings=settings)(command)
app.add_typer(cluster, name="cluster")


def main() -> None:
    """Run the command line and exit."""
    errors = PlainConsole(stderr=True, soft_wrap=True)

    def fail(code: ExitCode, why: object) -> NoReturn:
        errors.print(f"regrow: {redacted(one_line(str(why)))}", markup=False)
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
        errors.print(theirs.trace, markup=False, end="")
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
        errors.print(
            "regrow: this is a bug of regrow; the experiment's state is intact, `regrow resume`"
            " continues",
            markup=False,
        )
        sys.exit(ExitCode.FAILED)
    finally:
        # Skips the last garbage collection, which takes 0.4 s with the objects of Ray and Prefect.
        gc.freeze()
