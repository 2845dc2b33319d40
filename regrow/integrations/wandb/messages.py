"""Messages for the readers of a trial's log: each once, on standard error."""

from __future__ import annotations

import sys

WAY_OUT = "REGROW_WANDB=real before `regrow run` takes W&B's own package"
"""Hint for features that are missing here."""
_printed: set[str] = set()


class Error(Exception):
    """`wandb` was called in a wrong way."""


def print_once(text: str) -> None:
    """Print a message, unless it was printed before."""
    if text not in _printed:
        _printed.add(text)
        sys.stderr.write(f"regrow: wandb: {text}\n")
