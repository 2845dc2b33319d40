"""The command line. `main` is the `regrow` command.

Each command is a module of its name (`try_` for `try`, a word of Python's) and prints; it decides nothing. What several commands
share: `options`, `exit_codes`, `console`, `tables`, `session` (what `run` and `resume` do); words and the live view are in
`regrow/live/`.
"""

from regrow.cli.app import main

__all__ = ["main"]
