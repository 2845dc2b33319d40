"""The command line. `main` is the `regrow` command.

Each command is a module of its name (`try_` for `try`, a word of Python's) and prints; it decides nothing. What several commands
share: `options`, `exit_codes`, `console`, `text` and `tables` (words and layout), `session` (what `run` and `resume` do),
`live/` (the live view).
"""

from regrow.cli.app import main

__all__ = ["main"]
