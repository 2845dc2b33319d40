"""The log of a server, in the terminal or the starting process's log: a line each, with
the time.
"""

from __future__ import annotations

import logging
import sys


def log_to_terminal() -> logging.Logger:
    """Return the log of serving, on standard output, so that it is in one order with what the model
    prints.
    """
    log = logging.getLogger("regrow.apps.serving")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log
