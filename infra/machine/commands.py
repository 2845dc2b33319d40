"""Runs another program to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from regrow.tasks.errors import RegrowError, UserError


def run(
    words: Sequence[str],
    *,
    seconds: float | None,
    hint: str = "",
    who: str = "",
    given: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program, and return what it wrote and its exit code, whatever that is.

    Args:
        words: the program and its arguments.
        seconds: time until its end; None: no limit.
        hint: what to do if there is no such program.
        who: named in the error if it takes longer; empty: the program.
        given: its input.
        env: its variables; None: those of this process.

    Raises UserError if there is no such program, RegrowError if it takes longer.

    """
    try:
        return subprocess.run(
            words,
            input=given,
            env=env,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(f"there is no command {words[0]} here{hint and f'; {hint}'}") from None
    except subprocess.TimeoutExpired:
        raise RegrowError(f"{who or words[0]} did not answer in {seconds:g} s") from None
