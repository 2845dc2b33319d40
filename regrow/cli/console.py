"""The console that tables and summaries are printed on."""

from __future__ import annotations

import sys

from rich.console import Console

from regrow.show.live.terminal import PlainConsole


def plain_console() -> Console:
    """Return a console as wide as the terminal; for a file or a pipe, lines may have any length."""
    return PlainConsole() if sys.stdout.isatty() else PlainConsole(width=1000)
