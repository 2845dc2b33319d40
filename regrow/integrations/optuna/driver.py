"""The process that drives a session of a study: this one, or one of its own.

A local Ray cluster ends with the thread that has started it, and Prefect's settings are those of a
process. So a session that another thread than the main one asks for (of Streamlit, Flask, two
studies in two threads) gets a process, which ends with this one.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from regrow.infra.machine.supervised import until
from regrow.infra.state.places import Places
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import background

_PROGRAM = f"import sys; from {__name__} import main; sys.exit(main())"
_SAID = "regrow:said "
_RAISED = "regrow:raised "


def in_main_thread() -> bool:
    """Return whether this thread may drive a session."""
    return threading.current_thread() is threading.main_thread()


class DriverProcess:
    """The session's coordinator: an actor, or the process that has its handle."""

    def __init__(self) -> None:
        self._call: Callable[..., object] | None = None
        """Calls a method by its name; None while there is no coordinator."""

    @contextmanager
    def reached(self, actor: Any) -> Iterator[None]:
        """Within the block, call this actor's methods."""
        from regrow.infra.ray import cluster

        with self.through(lambda name, *rest: cluster.get(getattr(actor, name).remote(*rest))):
            yield

    @contextmanager
    def through(self, call: Callable[..., object]) -> Iterator[None]:
        """Within the block, call `call` with a method's name and arguments."""
        self._call = call
        try:
            yield
        finally:
            self._call = None

    def call(self, name: str, *rest: Any) -> bool:
        """Call a method. Return whether there is a coordinator that took the call."""
        try:
            if self._call is None:
                return False
            self._call(name, *rest)
        except Exception:  # noqa: BLE001 - it is gone, in one of many ways
            return False
        return True


def run_apart(
    coordinator: DriverProcess,
    *,
    name: str,
    spec: Spec,
    places: Places,
    code: str,
    announce: Callable[[str], None],
    hold: str,
) -> None:
    """Run a session in a process of its own, and return when it has ended. Raises what ended it.
    `coordinator`: reached during the session.
    """
    request = {
        "name": name,
        "spec": spec.to_json(),
        "root": places.root,
        "code": code,
        "hold": hold,
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    requests, output = process.stdin, process.stdout
    assert requests is not None
    assert output is not None
    writing = threading.Lock()

    def call(*what: Any) -> None:
        with writing:
            requests.write(json.dumps(what) + "\n")
            requests.flush()

    raised: BaseException | None = None
    with process, coordinator.through(call):
        call(request)
        for line in output:
            if line.startswith(_SAID):
                announce(json.loads(line.removeprefix(_SAID)))
            elif line.startswith(_RAISED):
                raised = pickle.loads(bytes.fromhex(line.removeprefix(_RAISED)))  # noqa: S301 - of a child of this process
    if raised is not None:
        raise raised
    if process.returncode not in (0, INTERRUPTED):
        raise RegrowError(f"the process that drove {name} ended with {process.returncode}")


INTERRUPTED = 3
"""Exit code after an interruption, which the log has."""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Drive the session that the first line of standard input asks for; each further line is a call
    of the coordinator. Its end ends this process.
    """
    from regrow.experiment import run_session

    (request,) = json.loads(sys.stdin.readline())
    coordinator = DriverProcess()

    def listen() -> None:
        for line in sys.stdin:
            coordinator.call(*json.loads(line))
        os._exit(INTERRUPTED)  # the script is gone; a guard ends the cluster

    def outlive() -> None:
        # Processes that the script has forked hold the pipe open beyond its end.
        until(lambda: os.getppid() != script, seconds=math.inf, tick=0.5)
        os._exit(INTERRUPTED)

    script = os.getppid()
    background.start(listen, name="script")
    background.start(outlive, name="script's end")
    try:
        run_session(
            name=request["name"],
            spec=Spec.parse(request["spec"]),
            places=Places(root=request["root"]),
            code=request["code"],
            announce=lambda line: _say(_SAID + json.dumps(line)),
            hold=request["hold"],
            watch=coordinator.reached,
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - the script raises it
        _say(_RAISED + pickle.dumps(error).hex())
        return 1
    return 0
