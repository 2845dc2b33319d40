"""The command line. `main` is the `regrow` command.

Each command is a function of its name (`try_` for `try`, a keyword) that prints and decides
nothing; `app` lists them. Shared by several commands: `options`, `exit_codes`, `console` (which
opens an experiment), `tables`; texts and the live view are in `regrow/show/live/`.
"""

import signal
import sys

from regrow.cli.exit_codes import ExitCode, ignore_signals
from regrow.infra.machine.streams import make_sure_of_streams
from regrow.tasks.process import garbage
from regrow.tasks.process.interrupted import check, interrupt

__all__ = ["main"]

_STARTERS = ("run", "resume", "ui")
"""Commands that start servers, which must end if the start is interrupted."""


def main() -> None:
    try:
        if sys.argv[1:2] and sys.argv[1] in _STARTERS:
            garbage.collect_rarely()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, interrupt)  # each command installs its handlers later
        make_sure_of_streams()
        try:
            from regrow.cli import app

            app.main()
        except Exception:
            check()  # Pydantic raises an error of its own where a signal interrupts it
            raise
    except KeyboardInterrupt:  # a traceback of imports would not help the user
        ignore_signals()
        sys.stderr.write("interrupted before anything was begun\n")
        sys.exit(ExitCode.INTERRUPTED)
