"""What is told to whoever reads a trial's log: each thing once, on the standard error."""

from __future__ import annotations

import sys

WAY_OUT = "REGROW_WANDB=real before `regrow run` takes W&B's own package"
"""For what is not here."""
_said: set[str] = set()


class Error(Exception):
    """What is wrong with how `wandb` is called."""


def say(text: str) -> None:
    """Says it, unless it was said before."""
    if text not in _said:
        _said.add(text)
        sys.stderr.write(f"regrow: wandb: {text}\n")
