"""How ray.init is called: without what an experiment has no use for, and apart from what ends the driver.

Ray has no settings for these things (2.60); what is replaced of it meanwhile is in `private.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from regrow.infra.ray import private
from regrow.tasks.errors import RegrowError
from regrow.tasks.variables import within

_LEVEL = "RAY_BACKEND_LOG_LEVEL"


@contextmanager
def as_we_want(*, local: bool) -> Iterator[Mapping[str, subprocess.Popen[bytes]]]:
    """Call ray.init within the block. Gives the processes that it started, by the names of their programs.

    `local`: it starts a cluster of its own. Raises RegrowError outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RegrowError("connect() must be called from the main thread: a local cluster ends with its thread")
    # Of a cluster that dies Ray's C++ part writes much to the driver's terminal, of which nobody can make use.
    quiet = {} if _LEVEL in os.environ else {_LEVEL: "fatal"}
    with private.sigterm_kept(), private.no_error_thread(), _without_a_word_of(_LEVEL), within(quiet):
        if local:
            # Workers have nothing to do with Prefect: neither its address nor its key is theirs.
            own = {*quiet, *(name for name in os.environ if name.startswith("PREFECT_"))}
            with private.lean(), private.apart(own) as begun:
                yield begun
        else:
            yield {}


@contextmanager
def _without_a_word_of(name: str) -> Iterator[None]:
    """Hold back what is written to standard error within the block; then leave out the lines about a variable.

    Ray's C++ part says there at which level it logs, in every process where that is set.
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
            with suppress(OSError):  # nobody reads it
                os.write(2, b"".join(line for line in held if name.encode() not in line))
