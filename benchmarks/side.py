"""The loop of a tuner that runs in the Python of an environment of its own (`Elsewhere` in
`rivals.py`): a line of JSON with a method's name and arguments, and one with what it returned.

Imports nothing of regrow or of this environment.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any


def used() -> float:
    """Seconds of processor time of this process."""
    return time.process_time()


def plain(value: Any) -> Any:
    """What JSON does not know: NumPy's scalars."""
    return value.item()


def serve(side: Any) -> None:
    """Answers until there is nothing more to read."""
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr  # what the library prints is no answer
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        answer = used() if method == "used" else getattr(side, method)(*arguments)
        answers.write(json.dumps(answer, default=plain) + "\n")
        answers.flush()
