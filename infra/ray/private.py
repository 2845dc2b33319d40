"""Private Ray interfaces that regrow depends on.

Ray is imported inside functions, as it reads its settings then. Each name is in the canary test
(`tests/unit/test_private_names.py`), with what breaks without it.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from regrow.infra.machine.awaiting import Deadline

_LOG = logging.getLogger(__name__)
PREEMPTION = 2
"""The reason for draining a node, by its number in Ray's protocol, which never changes."""
SETUP_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""Variable that tells workers what to call as they start. The documented way,
`worker_process_setup_hook`, is a runtime environment of the whole job: our actors could then use
none of the processes that Ray prestarts.
"""

NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that, set to 0, keeps Ray from turning 127.0.0.1 into the address of an interface, as it
does on Linux (2.60).
"""

MOST_CALLS = 1 << 30
"""`max_calls` of a task whose process `leave_after_task` can end."""

STARTED_SECONDS = 30.0
"""Seconds without progress after which a local cluster counts as one that does not start."""

_AGENT, _WORKER = "--dashboard_agent_command", "--python_worker_command"
_AGENTS_PORTS = (
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
)

_OTHER_COMMANDS = (
    "ray.serve",
    "ray.util.state",
    "ray.dashboard.modules.job.cli",  # its job_cli_group
)
"""What Ray's program imports for commands beside `ray start`: 1 s of CPU and 100 MB (2.60). It does
without a command whose import fails.
"""

_FIND = """
import sys
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient
GcsClient(address=canonicalize_bootstrap_address(sys.argv[1]))
"""


class StartFailed(Exception):
    """The processes of a local cluster ended while they started, or made no progress."""


def _module(name: str) -> Any:
    return importlib.import_module(name)  # some modules are compiled, others have no type hints


def ask_head(address: str) -> str | None:
    """Ask a cluster at `address` (host:port or auto) for its number. Returns the error, None if it
    answers correctly.

    Runs in a separate process, because the call cannot be interrupted and complains on stderr. The
    documented `ray status` takes 2.9 s instead of 1.2 s. Ray itself waits 44 s for a silent head.
    """
    command = [sys.executable, "-P", "-c", _FIND, address]
    run = subprocess.run(
        command, env={**os.environ, NETWORK: "0"}, capture_output=True, text=True, check=False
    )
    if not run.returncode:
        return None
    return (
        run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit code {run.returncode}"
    )


def node_options(*, memory: float | None, address: str, folder: Path | None) -> dict[str, Any]:
    """Return the options of `ray.init` that Ray calls unstable: `memory` in bytes (None: Ray's
    choice) and the address of a node, and the folder of its sockets.
    """
    return {"_memory": memory, "_node_ip_address": address, "_temp_dir": str(folder)}


def reread_authentication() -> None:
    """Make Ray read its authentication again, in case it was imported before."""
    raylet = _module("ray._raylet")
    # Both calls as in ray._private.authentication_test_utils.
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def draining_nodes() -> Collection[str]:
    """Return the ids of the nodes that are being drained; ray.nodes() does not show that."""
    found: Mapping[str, int] = _module("ray._private.state").state.get_draining_nodes()
    return found.keys()


def waiting_actors() -> dict[str, str]:
    """Return the class names, by id, of the actors that this worker has requested and that do not
    run yet.

    The documented way, `ray.util.state`, needs a dashboard, which local clusters do not have.
    """
    import ray

    owner = _module("ray.core.generated.common_pb2").Address()
    owner.ParseFromString(
        _module("ray._private.worker").global_worker.core_worker.get_owner_address(ray.put(0))
    )
    table: Mapping[str, Mapping[str, Any]] = _module("ray._private.state").state.actor_table(
        None, actor_state_name="PENDING_CREATION"
    )
    here = (owner.ip_address, owner.port)
    return {
        actor: str(found["ActorClassName"])
        for actor, found in table.items()
        if (found["OwnerAddress"]["IPAddress"], found["OwnerAddress"]["Port"]) == here
    }


def leave_after_task() -> None:
    """Have this worker's process end after the task under way, once Ray has its result, as with
    `max_calls`: Ray counts the calls of a function, and ends the process at that number.
    """
    manager = _module("ray._private.worker").global_worker.function_actor_manager
    counts: dict[Any, int] = manager._num_task_executions  # noqa: SLF001 - no public way (2.60)
    for function in counts:
        counts[function] = MOST_CALLS - 1


def drain(node_id: str, why: str, seconds: float) -> None:
    """Ask Ray to place nothing on a node that ends in `seconds`, as `ray drain-node`."""
    import ray

    gcs = _module("ray._raylet").GcsClient(address=ray.get_runtime_context().gcs_address)
    gcs.drain_node(node_id, PREEMPTION, why, int((time.time() + seconds) * 1000))


def at_version(deployment: Any, version: str, options: Mapping[str, Any]) -> Any:
    """Return a deployment of Ray Serve with `options`, that counts as the same code as others of
    `version`: Serve then gives a new user_config to the replicas that run, and otherwise replaces
    them. Ray takes a version only with the last option (2.60).
    """
    return deployment.options(**options, version=version, _internal=True)


@contextmanager
def no_error_thread() -> Iterator[None]:
    """Connect without the thread that prints lost workers on stdout, in the middle of a live view
    or of JSON.

    The experiment reports them itself. Ray's `log_to_driver` does not stop this thread (2.60).
    """
    with _replaced("ray._private.worker", "listen_error_messages", lambda *_: None):
        yield


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Keep the caller's SIGTERM handler: Ray would replace it by one that raises SystemExit
    anywhere.

    Ray's C++ part would also replace it, by a handler that ends the process 3 s later, and by none
    when it leaves. It does neither if it finds itself installed already. So it is installed before
    the block and uninstalled after it, with nothing else running.
    """
    handler = signal.getsignal(signal.SIGTERM)
    _call("_ZN3ray6RayLog27InstallFailureSignalHandlerEPKcb", b"regrow", True)
    signal.signal(signal.SIGTERM, handler)
    try:
        with _replaced(
            "ray._private.utils",
            "set_sigterm_handler",
            lambda _: signal.signal(signal.SIGTERM, handler),
        ):
            yield
    finally:
        _call("_ZN3ray6RayLog21UninstallSignalActionEv")
        signal.signal(signal.SIGTERM, handler)


def _call(function: str, *arguments: bytes | bool) -> None:
    """Call a function of Ray's C++ part, if there is one of this mangled name (on Linux)."""
    with suppress(AttributeError, OSError):
        getattr(ctypes.CDLL(_module("ray._raylet").__file__), function)(*arguments)


@contextmanager
def loopback_kept() -> Iterator[None]:
    """Make ray.init use 127.0.0.1 unchanged, as the variable NETWORK does for a process that has
    not imported Ray yet.

    A node at 127.0.0.1 listens only there; a node at any other address, 127.0.0.2 included, listens
    on all addresses of the machine (2.60). So the user's head, whose address is an interface's,
    answers at 127.0.0.1 as well.
    """
    with _replaced("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False):
        yield


@contextmanager
def lean() -> Iterator[None]:
    """Start a local cluster without the parts that it does not use: dashboard, autoscaler, printing
    of logs.

    Their three processes take 280 MB and 2.6 s of CPU, and ray.init 2.4 s more: it waits for the
    dashboard's even when it is switched off. Each of the three alone accounts for a second or more.
    Whether a dashboard is installed is found out by importing its dependencies, 0.4 s of CPU. Ray
    has no setting for this (2.60).
    """
    params = _module("ray._private.parameter").RayParams
    with (
        _replaced(
            "ray._private.parameter",
            "RayParams",
            partial(params, no_monitor=True, include_log_monitor=False),
        ),
        # Returns no address and no process.
        _replaced("ray._private.services", "start_api_server", lambda *_, **__: ("", None)),
        _replaced(
            "ray._private.utils",
            "get_dashboard_dependency_error",
            lambda: ImportError("not wanted"),
        ),
    ):
        yield


def start_node(words: Sequence[str]) -> None:
    """Run `ray start`, without the server for Ray's client, which takes 90 MB and a fixed port, and
    without what other commands import. `--node-ip-address=127.0.0.1` keeps that address.
    """
    with _absent(_OTHER_COMMANDS):
        scripts = _module("ray.scripts.scripts")
    with (
        _replaced("ray.scripts.scripts", "get_ray_client_dependency_error", lambda: "not wanted"),
        _replaced("ray._private.services", "resolve_ip_for_localhost", lambda host: host),
    ):
        scripts.start.main(args=[*words, "--no-monitor", "--include-log-monitor=false"])


@contextmanager
def ended_by(number: signal.Signals) -> Iterator[None]:
    """Have `ray start --block` end in order at a signal, in place of SIGTERM."""
    with _replaced(
        "ray._private.utils",
        "set_sigterm_handler",
        lambda handler: signal.signal(number, handler),
    ):
        yield


@contextmanager
def in_own_session(
    own: Collection[str], *, plain: bool
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start the cluster's processes in their own sessions, without the variables `own` of this
    process.

    Yields the processes by the names of their programs. A signal to the driver's process group
    (Ctrl-C, `timeout`, a closed terminal) is meant for the driver, which needs its cluster for its
    attempts' last checkpoints. The processes still end with the driver, as Ray ties them to it.
    `plain`: the raylet starts Ray's own programs only, which `lean_command` replaces otherwise.
    """
    popen: Callable[..., subprocess.Popen[bytes]] = _module("ray._private.services").ConsolePopen
    begun: dict[str, subprocess.Popen[bytes]] = {}

    def begin(
        command: list[str], *, env: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        theirs = {name: value for name, value in env.items() if name not in own}
        program = Path(command[0]).name
        words = lean_command(command) if program == "raylet" and not plain else command
        begun[program] = process = popen(
            words, env=theirs, **{**options, "start_new_session": True}
        )
        return process

    with _replaced("ray._private.services", "ConsolePopen", begin), _awaiting_node(begun):
        yield begun


@contextmanager
def _awaiting_node(begun: Mapping[str, subprocess.Popen[bytes]]) -> Iterator[None]:
    """Wait for a local node as long as its processes make progress. Raises StartFailed.

    Ray asks its control store for the node for 30 s (2.60), which a busy machine needs and more.
    """
    services = _module("ray._private.services")
    get_node = services.get_node

    def patiently(*arguments: Any) -> Any:
        deadline = Deadline(STARTED_SECONDS, lambda: [one.pid for one in begun.values()])
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError as error:  # it is not registered yet
                for name, process in begun.items():
                    if process.poll() is not None:
                        raise StartFailed(f"its {name} ended while it started") from error
                if deadline.left() < 0:
                    why = f"it made no progress for {STARTED_SECONDS:.0f} s"
                    raise StartFailed(why) from error
                time.sleep(0.05)

    with _replaced("ray._private.services", "get_node", patiently):
        yield


def lean_command(command: list[str]) -> list[str]:
    """Return a raylet's command without a dashboard's agent, and with our script that sets workers
    up.

    The agent takes 80 MB, 0.7 s of CPU and 1.5 s of the start; Ray's script 0.3 s of CPU for each
    worker. Ray has no setting for either, and refuses an empty command (2.60). The raylet waits for
    an agent until it finds the agent's ports, so they are written here, as none. A command that is
    not as in Ray 2.60, or a port that is not known here, leaves the command unchanged.
    """
    raylet, ray = _module("ray._raylet"), Path(_module("ray").__path__[0])
    given = dict(word.split("=", 1) for word in command if "=" in word)
    agent, worker = given.get(_AGENT, ""), given.get(_WORKER, "")
    folder, node = given.get("--session_dir"), given.get("--node_id")
    theirs = subprocess.list2cmdline([str(ray / "_private" / "workers" / "setup_worker.py")])
    ours = subprocess.list2cmdline([str(Path(__file__).with_name("setup_worker.py"))])
    ports = {name for name in dir(raylet) if name.endswith("_PORT_NAME")}
    known = ports == {*_AGENTS_PORTS, "GCS_SERVER_PORT_NAME", "RUNTIME_ENV_AGENT_PORT_NAME"}
    if not (known and folder and node and "--minimal" in agent.split() and theirs in worker):
        _LOG.debug("Ray starts its own agent and workers: its raylet's command is not as expected")
        return command
    for name in _AGENTS_PORTS:
        raylet.persist_port(folder, node, getattr(raylet, name), -1)
    # The raylet closes the agent's standard input when it ends.
    none = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
    changed = {_AGENT: subprocess.list2cmdline(none), _WORKER: worker.replace(theirs, ours, 1)}
    options = [word.partition("=")[0] for word in command]
    return [
        f"{option}={changed[option]}" if option in changed else word
        for option, word in zip(options, command, strict=True)
    ]


@contextmanager
def _absent(names: Sequence[str]) -> Iterator[None]:
    """Have imports of these modules fail within the block, unless they are imported already."""
    modules: dict[str, Any] = sys.modules
    absent = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(absent))
    try:
        yield
    finally:
        for name in absent:
            modules.pop(name, None)


@contextmanager
def _replaced(module: str, name: str, by: object) -> Iterator[None]:
    target = _module(module)
    before = getattr(target, name)
    setattr(target, name, by)
    try:
        yield
    finally:
        setattr(target, name, before)
