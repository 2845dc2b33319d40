"""Which commands there are, and how errors reach the user. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import gc
import os
import sys
import traceback

import typer
from rich.console import Console

from regrow.cli import look, run, services
from regrow.cli.compare import compare
from regrow.cli.cp import cp
from regrow.cli.export import export
from regrow.cli.logs import logs
from regrow.cli.mv import mv
from regrow.cli.note import note
from regrow.cli.report import report
from regrow.cli.rm import rm
from regrow.cli.simulate import simulate
from regrow.cli.trying import try_one
from regrow.cli.watch import watch
from regrow.infra.log import CorruptLog
from regrow.infra.surroundings import direct
from regrow.search.errors import SpecError
from regrow.tasks.addresses import shown
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.ports import Unavailable
from regrow.tasks.traces import one_line

app = typer.Typer(
    name="regrow", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Machine-learning experiments that cannot be lost.",
)
app.command("run")(run.run)
app.command("try")(try_one)
app.command("resume")(run.resume)
app.command("stop")(run.stop)
app.command("watch")(watch)
app.command("ls")(look.ls)
app.command("show")(look.show)
app.command("compare")(compare)
app.command("trials")(look.trials)
app.command("best")(look.best)
app.command("logs")(logs)
app.command("report")(report)
app.command("export")(export)
app.command("note")(note)
app.command("cp")(cp)
app.command("mv")(mv)
app.command("rm")(rm)
app.command("verify")(look.verify)
app.command("schema")(look.schema)
app.command("simulate")(simulate)
app.command("ui")(services.ui)
app.command("up")(services.up)
app.command("down")(services.down)


def main() -> None:
    """Runs the command line and exits."""
    error = Console(stderr=True, highlight=False, soft_wrap=True)

    def tell(what: object) -> None:
        error.print(f"regrow: {shown(one_line(str(what)))}", markup=False)

    os.environ.update(direct(os.environ))  # for the pages and servers of commands that start no experiment
    try:
        app()
    except (UserError, SpecError) as wrong:
        tell(wrong)
        sys.exit(2)
    except CorruptLog as damaged:
        tell(f"{damaged}; nothing was overwritten, restore that object from a backup")
        sys.exit(4)
    except UserCodeError as theirs:
        error.print(theirs.trace, markup=False, end="")
        tell(theirs)
        sys.exit(2)
    except Unavailable as away:
        tell(away)
        sys.exit(2)
    except RegrowError as failed:
        tell(failed)
        sys.exit(1)
    except Exception:  # noqa: BLE001 - the last line of defence: what comes here is a bug of ours
        traceback.print_exc()
        error.print("regrow: this is a bug of regrow; the experiment's state is intact, `regrow resume` goes on", markup=False)
        sys.exit(1)
    finally:
        gc.freeze()  # this process ends: looking for garbage among all that Ray and Prefect made takes it 0.4 s
