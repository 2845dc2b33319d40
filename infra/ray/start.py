"""How ray.init is called: without what an experiment has no use for, and apart from what ends the driver.

Ray has no settings for these things (2.60), so the functions in question are replaced meanwhile; all of that is here.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import list2cmdline
from typing import Any

from regrow.tasks.errors import RegrowError
from regrow.tasks.variables import within

_HERE = Path(__file__).parent
_LEVEL = "RAY_BACKEND_LOG_LEVEL"


@contextmanager
def as_we_want(*, local: bool) -> Iterator[None]:
    """Call ray.init within the block. `local`: it starts a cluster of its own."""
    # Of a cluster that dies Ray's C++ part writes much to the driver's terminal, of which nobody can make use.
    quiet = {} if _LEVEL in os.environ else {_LEVEL: "fatal"}
    with _sigterm_kept(), _silent(), _without_a_word_of(_LEVEL), within(quiet):
        if local:
            # Workers have nothing to do with Prefect: neither its address nor its key is theirs.
            with _lean(), _apart({*quiet, *(name for name in os.environ if name.startswith("PREFECT_"))}):
                yield
        else:
            yield


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


@contextmanager
def _silent() -> Iterator[None]:
    """Connect without the thread that prints on stdout that a worker was lost, in the middle of a live view or of JSON.

    The experiment says that itself. Ray's `log_to_driver` leaves this thread on (2.60).
    """
    worker: Any = importlib.import_module("ray._private.worker")
    before, worker.listen_error_messages = worker.listen_error_messages, lambda *_: None
    try:
        yield
    finally:
        worker.listen_error_messages = before


@contextmanager
def _lean() -> Iterator[None]:
    """Start a cluster of one process's own without what it has no use for: dashboard, autoscaler, printing of logs.

    Their three processes take 170 MB, and ray.init waits 1.6 s for the dashboard's even when it is switched off. To learn
    whether the dashboard is installed it imports 0.4 s of what that needs. Ray has no setting for these (2.60), so the
    functions in question are replaced meanwhile.
    """
    from ray._private import utils
    from ray._private.node import Node

    def no_dashboard(node: Any, **_: Any) -> None:
        node._webui_url = ""  # noqa: SLF001 - what the method would have set

    def nothing(_: Any) -> None:
        """Start no process."""

    replacements: dict[str, Any] = {
        "start_api_server": no_dashboard, "start_monitor": nothing, "start_log_monitor": nothing,
    }
    before = {name: getattr(Node, name) for name in replacements}
    dependencies = utils.get_dashboard_dependency_error
    for name, replacement in replacements.items():
        setattr(Node, name, replacement)
    utils.get_dashboard_dependency_error = lambda: ImportError("not wanted")
    try:
        yield
    finally:
        utils.get_dashboard_dependency_error = dependencies
        for name, method in before.items():
            setattr(Node, name, method)


@contextmanager
def _apart(own: Collection[str]) -> Iterator[None]:
    """Start the cluster's processes in sessions of their own, without the variables `own`, which are this process's.

    What ends the driver's process group (Ctrl-C, `timeout`, a closed terminal) is for the driver, which needs its cluster
    for its attempts' last checkpoints. They end with the driver all the same, as Ray ties them to it.
    """
    services: Any = importlib.import_module("ray._private.services")
    before = services.ConsolePopen

    def started(command: list[str], *, env: Mapping[str, str], **options: Any) -> Any:
        theirs = {name: value for name, value in env.items() if name not in own}
        return before([*_light(command)], env=theirs, **{**options, "start_new_session": True})

    services.ConsolePopen = started
    try:
        yield
    finally:
        services.ConsolePopen = before


def _light(command: list[str]) -> Iterator[str]:
    """The words of the command of one of Ray's processes; a raylet starts our scripts in place of two of its own."""
    folder = next((word.partition("=")[2] for word in command if word.startswith("--session_dir=")), "")
    for word in command:
        option, _, value = word.partition("=")
        if option == "--dashboard_agent_command":
            yield f"{option}={list2cmdline([sys.executable, '-I', '-S', str(_HERE / 'no_agent.py'), folder])}"
        elif option == "--python_worker_command":
            theirs = Path(importlib.import_module("ray").__path__[0]) / "_private" / "workers" / "setup_worker.py"
            yield f"{option}={value.replace(list2cmdline([str(theirs)]), list2cmdline([str(_HERE / theirs.name)]), 1)}"
        else:
            yield word


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Keep the caller's handler: Ray would replace it by one that raises SystemExit anywhere, and its C++ part by another."""
    if threading.current_thread() is not threading.main_thread():
        raise RegrowError("connect() must be called from the main thread: a local cluster ends with its thread")
    utils: Any = importlib.import_module("ray._private.utils")
    handler, before = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda _: signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        utils.set_sigterm_handler = before
        signal.signal(signal.SIGTERM, handler)
