"""The command line. `main` is the `regrow` command.

Each command is a module of its name (`try_` for `try`, a word of Python's) and prints; it decides nothing. What several commands
share: `options`, `exit_codes`, `console`, `tables`, `session` (what `run` and `resume` do); words and the live view are in
`regrow/live/`.
"""

import sys

from regrow.cli.exit_codes import ExitCode

__all__ = ["main"]


def main() -> None:
    """Runs the command line and exits."""
    try:
        from regrow.cli import app
    except KeyboardInterrupt:  # a traceback of imports would tell nobody anything
        sys.stderr.write("interrupted before anything was begun\n")
        sys.exit(ExitCode.INTERRUPTED)
    app.main()
