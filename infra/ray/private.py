"""What of Ray is used that its documentation does not promise. Ray is imported inside of functions: it reads its settings then.

Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it.
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
PREEMPTION = 2
"""The reason for which a node is drained, by its number in Ray's protocol, where a number never changes its meaning."""
SETUP_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""The variable in which workers find what to call as they start. The documented way, `worker_process_setup_hook`, is a runtime
environment of the whole job: of the processes that Ray starts beforehand our actors could take none."""

STARTED_LATE = "timed out during startup"
"""Of Ray's message, which is of the type Exception, that a node did not come up within 30 s, which no setting changes."""

_FIND = """
import sys
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient
GcsClient(address=canonicalize_bootstrap_address(sys.argv[1]))
"""


def _module(name: str) -> Any:
    return importlib.import_module(name)  # compiled, or without types


def ask_head(address: str, seconds: float) -> str | None:
    """What a cluster at `address` (host:port or auto) answers instead of its number; None if all is well.

    In a process of its own, because it can't be interrupted and complains on stderr. `ray status`, which is documented, takes
    2.9 s instead of 1.2 s, and waits for 44 s where nobody speaks Ray. Raises TimeoutExpired.
    """
    command = [sys.executable, "-P", "-c", _FIND, address]
    run = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if not run.returncode:
        return None
    return run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit code {run.returncode}"


def reread_authentication() -> None:
    """Make Ray read the authentication variables again, in case it was imported before they were set."""
    raylet = _module("ray._raylet")
    raylet.Config.initialize("")  # both as Ray itself does it (ray._private.authentication_test_utils)
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def draining_nodes() -> Collection[str]:
    """Ids of the nodes that somebody asked to be drained; ray.nodes() says nothing of it."""
    found: Mapping[str, int] = _module("ray._private.state").state.get_draining_nodes()
    return found.keys()


def waiting_actors() -> dict[str, str]:
    """The classes' names, by id, of the actors that this worker has asked for and that do not run yet. The documented way,
    `ray.util.state`, asks a dashboard, which local clusters do not have.
    """
    import ray

    owner = _module("ray.core.generated.common_pb2").Address()
    owner.ParseFromString(_module("ray._private.worker").global_worker.core_worker.get_owner_address(ray.put(0)))
    table: Mapping[str, Mapping[str, Any]] = _module("ray._private.state").state.actor_table(
        None, actor_state_name="PENDING_CREATION"
    )
    here = (owner.ip_address, owner.port)
    return {
        actor: str(found["ActorClassName"]) for actor, found in table.items()
        if (found["OwnerAddress"]["IPAddress"], found["OwnerAddress"]["Port"]) == here
    }


def drain(node_id: str, why: str, seconds: float) -> None:
    """Have Ray place nothing more on a node that is taken away in so many seconds. As `ray drain-node` does it, which is no
    public interface either.
    """
    import ray

    gcs = _module("ray._raylet").GcsClient(address=ray.get_runtime_context().gcs_address)
    gcs.drain_node(node_id, PREEMPTION, why, int((time.time() + seconds) * 1000))


@contextmanager
def no_error_thread() -> Iterator[None]:
    """Connect without the thread that prints on stdout that a worker was lost, in the middle of a live view or of JSON.

    The experiment says that itself. Ray's `log_to_driver` leaves this thread on (2.60).
    """
    with _replaced("ray._private.worker", "listen_error_messages", lambda *_: None):
        yield


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Keep the caller's handler: Ray would replace it by one that raises SystemExit anywhere, and its C++ part by another."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _replaced("ray._private.utils", "set_sigterm_handler", lambda _: signal.signal(signal.SIGTERM, handler)):
            yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def lean() -> Iterator[None]:
    """Start a cluster of one process's own without what it has no use for: dashboard, autoscaler, printing of logs.

    Their three processes take 280 MB and 2.6 s of CPU, and ray.init 2.4 s more: it waits for the dashboard's even when it is
    switched off. Each of the three by itself makes a second or more, and whether a dashboard is installed is learned by
    importing what it needs, 0.4 s of CPU. Ray has no setting for that (2.60).
    """
    params = _module("ray._private.parameter").RayParams
    with (
        _replaced("ray._private.parameter", "RayParams", partial(params, no_monitor=True, include_log_monitor=False)),
        _replaced("ray._private.services", "start_api_server", lambda *_, **__: ("", None)),  # no address, no process
        _replaced("ray._private.utils", "get_dashboard_dependency_error", lambda: ImportError("not wanted")),
    ):
        yield


@contextmanager
def apart(own: Collection[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start the cluster's processes in sessions of their own, without the variables `own`, which are this process's.

    Gives the processes by the names of their programs. What ends the driver's process group (Ctrl-C, `timeout`, a closed
    terminal) is for the driver, which needs its cluster for its attempts' last checkpoints. They end with the driver all the
    same, as Ray ties them to it.
    """
    popen: Callable[..., subprocess.Popen[bytes]] = _module("ray._private.services").ConsolePopen
    begun: dict[str, subprocess.Popen[bytes]] = {}

    def begin(command: list[str], *, env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        theirs = {name: value for name, value in env.items() if name not in own}
        begun[Path(command[0]).name] = process = popen([*_light(command)], env=theirs, **{**options, "start_new_session": True})
        return process

    with _replaced("ray._private.services", "ConsolePopen", begin):
        yield begun


def _light(command: list[str]) -> Iterator[str]:
    """The words of the command of one of Ray's processes; a raylet starts our scripts in place of two of its own."""
    folder = next((word.partition("=")[2] for word in command if word.startswith("--session_dir=")), "")
    for word in command:
        option, _, value = word.partition("=")
        if option == "--dashboard_agent_command":
            yield f"{option}={subprocess.list2cmdline([sys.executable, '-I', '-S', str(_HERE / 'no_agent.py'), folder])}"
        elif option == "--python_worker_command":
            theirs = Path(_module("ray").__path__[0]) / "_private" / "workers" / "setup_worker.py"
            ours = subprocess.list2cmdline([str(_HERE / theirs.name)])
            yield f"{option}={value.replace(subprocess.list2cmdline([str(theirs)]), ours, 1)}"
        else:
            yield word


@contextmanager
def _replaced(module: str, name: str, by: object) -> Iterator[None]:
    there = _module(module)
    before = getattr(there, name)
    setattr(there, name, by)
    try:
        yield
    finally:
        setattr(there, name, before)
