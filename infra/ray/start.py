"""Calling ray.init without the parts that are not used, and protected from what ends the driver.

Ray has no settings for these things (2.60); `private.py` replaces parts of Ray meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from regrow.infra.ray import private
from regrow.tasks.errors import UserError
from regrow.tasks.process.variables import within

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LEVEL = "RAY_BACKEND_LOG_LEVEL"


def check_thread() -> None:
    """Raise UserError outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise UserError(
            "an experiment is run by the main thread alone, as a cluster ends with the thread that"
            " started it; call `run` there, or in a process of its own"
        )


@contextmanager
def adjusted_init(*, local: bool, plain: bool) -> Iterator[Mapping[str, subprocess.Popen[bytes]]]:
    """Call ray.init within the block. Yields the processes that it started, by the names of their
    programs.

    `local`: a local cluster is started. `plain`: by Ray's own programs only. Raises UserError
    outside the main thread.
    """
    check_thread()
    # When a cluster dies, Ray's C++ part writes much to the driver's terminal that is of no use.
    quiet = {} if _LEVEL in os.environ else {_LEVEL: "fatal"}
    with (
        private.loopback_kept(),
        private.sigterm_kept(),
        private.no_error_thread(),
        _stderr_without(_LEVEL),
        within(quiet),
    ):
        if local:
            # Workers do not use Prefect, so they get neither its address nor its key.
            own = {*quiet, *(name for name in os.environ if name.startswith("PREFECT_"))}
            with private.lean(), private.in_own_session(own, plain=plain) as begun:
                yield begun
        else:
            yield {}


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the end of the block, in which Ray starts or ends.

    Their handlers may raise. If Ray is half-started, its C++ part crashes the process at its end
    (SIGSEGV), and processes that are not registered yet stay behind. Outside the main thread
    nothing is delayed, as no handler runs there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # None: the handler is not Python's. Ignored signals stay ignored.
    before = {
        one: old for one in _ASKING if (old := signal.getsignal(one)) not in (None, signal.SIG_IGN)
    }
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


@contextmanager
def _stderr_without(name: str) -> Iterator[None]:
    """Hold back standard error within the block; then write it without the lines about a variable.

    Ray's C++ part prints its log level there, in every process that has the variable set.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            with suppress(OSError):  # no reader
                os.write(2, b"".join(line for line in held if name.encode() not in line))
