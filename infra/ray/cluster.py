"""The Ray cluster that trials run on: the user's, or a local one that ends with this process.

Connecting, disconnecting, noticing that the cluster is lost, and warming up workers live here;
nothing about trials does.
"""

from __future__ import annotations

import importlib
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.infra.machine import capacity, gpus
from regrow.infra.machine.awaiting import announced
from regrow.infra.machine.descendants import descendants
from regrow.infra.machine.host_environment import ray_folder
from regrow.infra.machine.processes import ProcessGuard
from regrow.infra.ray import own_node, private, probing
from regrow.infra.ray.start import adjusted_init, signals_held
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process import cgroup, own_code, temporary
from regrow.tasks.process.gpus import DEVICES
from regrow.tasks.process.variables import put, put_back

if TYPE_CHECKING:
    import ray

LOOK_SECONDS = 0.5
"""Seconds between two checks whether the cluster still exists."""
START_SECONDS = 5.0
"""Seconds after which the start of a local cluster is announced: it takes 2 s, 3.5 s beside Prefect
on two cores.
"""
SILENT_SECONDS = 8.0
"""Seconds without an answer after which the head of the user's cluster counts as lost."""
_VITAL = ("gcs_server", "raylet")

_LOCAL_SETTINGS = {
    **own_node.SETTINGS,
    # A process that a trial starts may join the cluster by its address.
    private.NETWORK: "0",
}
_KEPT = {"RAY_idle_worker_killing_time_threshold_ms": str(10**10)}
"""Four months. A process still ends with the driver that it was started for."""
# The outcome of a task is read from its reference. Without the first variable, Ray would also print
# it when an unread reference is dropped. A process that the driver starts may join the cluster, as
# one that a trial starts.
_DRIVER_SETTINGS = {"RAY_IGNORE_UNHANDLED_ERRORS": "1", private.NETWORK: "0"}
# A Ray Job has a runtime environment with its own folder. Our settings in it (our folder, our
# variables) take precedence.
_IN_A_JOB = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
_BREAKPOINT = "PYTHONBREAKPOINT"
"""Ray sets it for the driver, where `breakpoint()` would then open Ray's debugger permanently."""
_LOOPBACK = "127.0.0.1"
"""Address of a local cluster, so that it listens nowhere else and survives a change of an
interface's address (a laptop's network).
"""
_MARK = "REGROW_CLUSTER"

_owned: _Ownership | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A cluster that this process is connected to. `local`: it ends with this process."""

    address: str
    local: bool

    def nodes(self) -> list[dict[str, float]]:
        """Return the total resources of each living node, under Ray's names."""
        return [node["Resources"] for node in _ray().nodes() if node["Alive"]]


class NotStarted(RegrowError):
    """A local cluster did not start. A second try may succeed."""


class ClusterLost(RegrowError):
    """The Ray cluster is lost, with all that ran on it. Resume from the log on another one."""


@dataclass(slots=True)
class _Ownership:
    """What to undo on disconnect, and the state of the checks.

    Attributes:
        environment: former values of variables; None: not set.
        guard: kills the processes of a local cluster; None for the user's.
        head: address of the head of the user's cluster; None for a local one.
        gcs: address of Ray's control store.
        silent_since: since when `head` does not answer, monotonic seconds; None: it answers.
        looked: time of the last check, monotonic seconds.

    """

    environment: Mapping[str, str | None]
    guard: ProcessGuard | None
    head: str | None
    gcs: str
    vital: Mapping[str, subprocess.Popen[bytes]]
    """The processes that a local cluster needs to live, by the names of their programs."""
    folder: Path | None
    """Folder of a local cluster's sockets and logs."""
    killed: cgroup.Killed = field(default_factory=cgroup.Killed)
    silent_since: float | None = None
    looked: float = 0.0


def connect(
    *,
    address: str | None = None,
    cpus: int | None = None,
    env: Mapping[str, str],
    runtime_env: Mapping[str, Any] | None = None,
    keep_idle: bool = False,
    plain: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> RayCluster:
    """Connect to a Ray cluster, or start a local one.

    If this process is already connected, that connection is used unchanged and `disconnect` does
    not close it. A local cluster dies with the *thread* that calls this (Ray ties its processes to
    it): call it from the main thread. Signals are handled once it is connected.

    Raises UserError if the cluster does not answer or refuses, NotStarted if a local one does not
    start.

    Args:
        address: the cluster; None: RAY_ADDRESS, else a local cluster.
        cpus: CPUs of a local cluster; None: all that this process may use.
        env: variables for every worker.
        runtime_env: Ray's runtime environment of the workers.
        keep_idle: whether idle processes of a local cluster are kept for four months.
        plain: whether a local cluster runs Ray's own programs only, which costs 80 MB and 1.5 s.
        say: gets messages: what is awaited if that takes long, and which GPUs others use.

    """
    target = address or os.environ.get("RAY_ADDRESS") or None
    if target == "local":
        target = None
    if is_joined():
        return RayCluster(address=_ray().get_runtime_context().gcs_address, local=False)
    named = "the address" if address else "RAY_ADDRESS"
    with ExitStack() as stack:
        if target is None:
            stack.enter_context(announced("Ray to start", say, after=START_SECONDS))
        else:
            step = stack.enter_context(announced(f"the Ray cluster at {target}", say))
            probing.probe(target, named_by=named, step=step)
            step("it answers, and has not taken this process in yet")
        stack.enter_context(signals_held())
        return _connected(
            target,
            named,
            cpus=cpus,
            env=env,
            runtime_env=runtime_env,
            keep_idle=keep_idle,
            plain=plain,
            say=say,
        )


def _connected(
    target: str | None,
    named: str,
    *,
    cpus: int | None,
    env: Mapping[str, str],
    runtime_env: Mapping[str, Any] | None,
    keep_idle: bool,
    plain: bool,
    say: Callable[[str], None],
) -> RayCluster:
    mark = secrets.token_hex(8)
    settings = {**_LOCAL_SETTINGS, **(_KEPT if keep_idle else {})}
    settings[private.SETUP_HOOK] = own_code.INSTALL
    # Every user of this machine can reach the loopback, and Ray would run code from any of them.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    undo = {} if target else put({**settings, **token, _MARK: mark})
    undo |= put(_IN_A_JOB) if target else {}
    undo[_BREAKPOINT] = os.environ.get(_BREAKPOINT)
    ray, guard = _ray(), None
    folder = None if target else ray_folder(os.environ)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if target:
            given = dict(runtime_env or {})
            given["env_vars"] = {**env, **given.get("env_vars", {})}
            options |= {"address": target, "runtime_env": given}
        else:
            private.reread_authentication()
            undo |= {name: old for name, old in put(env).items() if name not in undo}
            here, devices = capacity.of_ray(), gpus.found()
            for line in gpus.in_use(devices):
                say(line)
            if (ours := gpus.setting(devices)) is not None:
                undo |= put({DEVICES: ours})
                options["num_gpus"] = len(ours.split(","))
            options |= {
                "address": "local",
                "num_cpus": cpus or here["num_cpus"],
                "include_dashboard": False,
                "object_store_memory": here.get("object_store_memory"),
                "runtime_env": dict(runtime_env) if runtime_env else None,
            }
            options |= private.node_options(
                memory=here.get("memory"), address=_LOOPBACK, folder=folder
            )
            guard = ProcessGuard(f"{_MARK}={mark}")
        with adjusted_init(local=not target, plain=plain) as begun:
            ray.init(**options)
        vital = {} if target else {name: begun[name] for name in _VITAL}
        if guard is not None:  # its agents overwrite their environment, and with it the mark
            guard.include(descendants(vital["raylet"].pid))
    except BaseException as error:
        if guard is not None:
            guard.finish()
        _remove(folder)
        put_back(undo)
        if (explained := _explained(error, target, named, runtime_env or {})) is not None:
            raise explained from error
        raise
    # The raylet has them now. The driver keeps only its token.
    for name in undo.keys() - token.keys():
        put_back({name: undo.pop(name)})
    undo |= put(_DRIVER_SETTINGS)
    global _owned
    gcs: str = ray.get_runtime_context().gcs_address
    _owned = _Ownership(
        environment=undo,
        guard=guard,
        head=gcs if target else None,
        gcs=gcs,
        vital=vital,
        folder=folder,
    )
    return RayCluster(address=gcs, local=not target)


def _explained(
    error: BaseException, target: str | None, named: str, runtime_env: Mapping[str, Any]
) -> RegrowError | None:
    """Return Ray's error at the start in our words; None for one that is raised as it is."""
    if isinstance(error, _ray().exceptions.RuntimeEnvSetupError):
        return UserError(
            f"the folder {runtime_env.get('working_dir')} cannot be shipped to the cluster"
            f" ({error}); name a folder with nothing but the code that trials need, in the"
            " specification's working_dir"
        )
    if isinstance(error, private.StartFailed):
        load, cpus = os.getloadavg()[0], os.cpu_count()
        return NotStarted(
            f"Ray did not start here: {error}; the machine has a load of {load:.0f} on {cpus} CPUs"
        )
    if target and isinstance(error, ConnectionError):
        advice = "correct or unset it, or start the cluster"
        return UserError(f"No Ray cluster at {named} {target!r} ({error}); {advice}")
    return None


def is_joined() -> bool:
    """Return whether this process is connected to a cluster, by `connect` or otherwise."""
    return "ray" in sys.modules and bool(_ray().is_initialized())


def disconnect() -> None:
    """Leave the cluster that `connect` joined. A local one has ended when this returns."""
    global _owned
    if _owned is None:
        return
    with signals_held():
        owned, _owned = _owned, None
        _ray().shutdown()
        if owned.guard is not None:
            owned.guard.finish()
        _remove(owned.folder)
        put_back(owned.environment)
        if "RAY_AUTH_TOKEN" in owned.environment:
            private.reread_authentication()


def _remove(folder: Path | None) -> None:
    """Delete the files of a local cluster that has ended, unless they are in the user's folder."""
    if folder is not None and temporary.is_room(folder.parent):
        shutil.rmtree(folder, ignore_errors=True)


def lost() -> str | None:
    """Return which part of the cluster that `connect` joined is lost, None if none is.

    Ray does not report it: without its control store `ray.get` hangs for a minute, and 10 s after
    its raylet has died, Ray ends this process from within. So call this often, and then
    `disconnect` at once: after that the process may connect again.
    """
    if _owned is None or not _ray().is_initialized():
        return None
    if _owned.head is None:
        gone = [name for name, process in _owned.vital.items() if process.poll() is not None]
        if gone:
            memory = _owned.killed.lately()
            return f"its {' and '.join(gone)} died{memory and ': '}{memory}"
        # Without its folder Ray runs on, and can start no attempt.
        if _owned.folder is not None and not os.path.isdir(_owned.folder):
            return f"its files in {_owned.folder} were deleted"
        return None
    now = time.monotonic()
    if now - _owned.looked < LOOK_SECONDS:
        return None
    _owned.looked = now
    if not head_answers():
        _owned.silent_since = _owned.silent_since or now
        silent = time.monotonic() - _owned.silent_since
        return f"its head {_owned.head} does not answer" if silent >= SILENT_SECONDS else None
    _owned.silent_since = None
    return None


def head_answers() -> bool:
    """Return whether the head of the user's cluster answers now; True for a local one.

    Call it before any call to Ray's control store: if such a call waits for a head while another
    one is started in its place, Ray ends this process from within ("WrongClusterID", Ray 2.60).
    """
    owned = _owned  # a copy, as another thread may disconnect
    if owned is None or owned.head is None:
        return True
    try:
        _touch(owned.head, 2.0)
    except OSError:
        return False
    return True


def is_ending() -> bool:
    """Return whether a local cluster is shutting down. That takes 20 s, in which it answers
    nothing; its head stops listening at once (Ray 2.60).
    """
    owned = _owned
    if owned is None or owned.guard is None:
        return False
    try:
        _touch(owned.gcs, LOOK_SECONDS)
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def _touch(address: str, seconds: float) -> None:
    """Connect to a control store, and leave it. Raises OSError."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()


def raise_if_lost() -> None:
    """Raise ClusterLost if the cluster is lost."""
    if (why := lost()) is not None:
        raise abandon(why)


def abandon(why: str) -> ClusterLost:
    """Kill what is left of a local cluster, for which things wait; return the error."""
    owned = _owned
    if owned is not None and owned.guard is not None:
        owned.guard.kill()
    return ClusterLost(f"the Ray cluster was lost: {why}")


def get(ref: ray.ObjectRef[Any], timeout: float = math.inf) -> Any:
    """Call `ray.get`, but raise ClusterLost instead of waiting for a lost cluster. Raises
    GetTimeoutError after `timeout` seconds.
    """
    ray, deadline = _ray(), time.monotonic() + timeout
    while True:
        try:
            return ray.get(ref, timeout=max(0.0, min(LOOK_SECONDS, deadline - time.monotonic())))
        except ray.exceptions.GetTimeoutError:
            raise_if_lost()
            if time.monotonic() >= deadline:
                raise
        except ray.exceptions.RayError:
            raise_if_lost()
            raise


def await_head(seconds: float, given_up: Callable[[], bool]) -> bool:
    """Wait until a cluster answers at RAY_ADDRESS, which may be a new one. Returns False if none
    does within `seconds`, or once `given_up()` is true.
    """
    deadline, address = time.monotonic() + seconds, os.environ["RAY_ADDRESS"]
    while not given_up():
        try:
            probing.probe(address, named_by="RAY_ADDRESS")
            return True
        except UserError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)
    return False


def start_actor(
    kind: type,
    *arguments: Any,
    waiting: int,
    name: str | None = None,
    node_id: str | None = None,
    again: bool = True,
) -> Any:
    """Start an actor that Ray restarts, without a CPU of its own, and return its handle.

    Args:
        kind: its class.
        arguments: those of its constructor.
        waiting: most calls that it serves at a time.
        name: its name in Ray; None: none.
        node_id: its node; None: this one.
        again: whether calls that it had not answered are sent again after a restart.

    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = _ray()
    node_id = node_id or ray.get_runtime_context().get_node_id()
    options = {
        "name": name,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1 if again else 0,
        "max_concurrency": waiting,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
    }
    return ray.remote(kind).options(**options).remote(*arguments)


def warm_up(
    count: int, modules: Sequence[str], *, runtime_env: Mapping[str, Any] | None = None
) -> list[ray.ObjectRef[float]]:
    """Start `count` processes of this runtime environment, and import the modules in them."""
    options: dict[str, Any] = {"runtime_env": dict(runtime_env)} if runtime_env else {}
    remote = _ray().remote(num_cpus=1, max_retries=0, **options)(_import_all)
    return [remote.remote(tuple(modules)) for _ in range(count)]


def _import_all(modules: Sequence[str]) -> float:
    started = time.perf_counter()
    for module in modules:
        importlib.import_module(module)
    return time.perf_counter() - started


def _ray() -> Any:
    """Import Ray late: it reads its authentication settings when it is first imported."""
    import ray

    return ray
