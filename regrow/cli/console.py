"""The console that tables and summaries are printed on."""

from __future__ import annotations

import sys

from rich.console import Console


def plain_console() -> Console:
    """A console as wide as the terminal; a file or a pipe takes lines of any length."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=1000)
