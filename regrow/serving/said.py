"""What is said in the terminal, or in the log of whoever started it: a line each, with the time."""

from __future__ import annotations

import logging
import sys


def log_to_terminal() -> logging.Logger:
    """The log of serving, on standard output, so that it stands in one order with what the model prints."""
    log = logging.getLogger("regrow.serving")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log
