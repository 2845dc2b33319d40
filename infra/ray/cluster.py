"""The Ray cluster that trials run on: the user's own, or a local one that ends with this process.

Connecting, leaving, noticing its loss, counting slots and warming workers up live here; nothing about trials does.
"""

from __future__ import annotations

import importlib
import math
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regrow.infra.machine.descendants import descendants
from regrow.infra.machine.processes import Guard
from regrow.infra.machine.surroundings import short_tmp
from regrow.infra.ray import private
from regrow.infra.ray.start import as_we_want
from regrow.tasks import own_code
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.variables import put, put_back

if TYPE_CHECKING:
    import ray

PROBE_SECONDS = 10.0
"""How long a cluster may take to answer. ray.init itself waits 40 s and more, so ask before."""

LOOK_SECONDS = 0.5
"""Between two looks at whether the cluster is still there."""
SILENT_SECONDS = 8.0
"""How long the head of a user's own cluster may not answer before it counts as lost."""
_VITAL = ("gcs_server", "raylet")

_LOCAL_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise raylet and GCS wait for each other's metrics exporters: 3.9 s to start instead of 2.7 s.
    "RAY_enable_metrics_collection": "0",
    # The processes that Ray starts beforehand live long enough for our actors to take them (default: 1 s).
    "RAY_idle_worker_killing_time_threshold_ms": "20000",
}
_KEPT = {"RAY_idle_worker_killing_time_threshold_ms": str(10**10)}
"""Four months. A process ends with the driver that it was started for all the same."""
# What became of a task is asked of its reference; Ray would print it as well, when the reference is let go unasked.
_DRIVER_SETTINGS = {"RAY_IGNORE_UNHANDLED_ERRORS": "1"}
# A Ray Job has a runtime environment, with a folder of its own: what is ours in it (our folder, our variables) comes first.
_IN_A_JOB = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
_BREAKPOINT = "PYTHONBREAKPOINT"
"""Ray sets it for the driver, where `breakpoint()` would then open Ray's debugger for good."""
# Ray turns 127.0.0.1 into the address of an interface, and stops working when that changes (a laptop's
# network).
_LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
_MARK = "REGROW_CLUSTER"

_owned: _Ownership | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that this process is connected to. `local` means that it ends with this process."""

    address: str
    local: bool

    def nodes(self) -> list[dict[str, float]]:
        """What each alive node has in total, by Ray's names."""
        return [node["Resources"] for node in _ray().nodes() if node["Alive"]]


class TooBusy(RegrowError):
    """A local cluster did not come up within the time that Ray gives it; a second try may find the machine less busy."""


class ClusterLost(RegrowError):
    """The Ray cluster is gone and what ran on it with it; connect to another and go on from the log."""


@dataclass(slots=True)
class _Ownership:
    """What to undo on disconnect, and since when (monotonic seconds) the head of a user's own cluster is silent."""

    environment: Mapping[str, str | None]
    guard: Guard | None
    head: str | None
    gcs: str
    vital: Mapping[str, subprocess.Popen[bytes]]
    """The processes that a local cluster can't do without, by the names of their programs."""
    silent_since: float | None = None
    looked: float = 0.0


def connect(
    *,
    address: str | None = None,
    cpus: int | None = None,
    env: Mapping[str, str],
    runtime_env: Mapping[str, Any] | None = None,
    keep_idle: bool = False,
) -> Cluster:
    """Connect to the cluster at `address` (None: RAY_ADDRESS), or start a local one of `cpus` (None: all).

    `env` are variables that every worker gets; `keep_idle`: a local cluster's processes wait for work as long as they may.
    If this process is already connected, that connection is used
    as it is and `disconnect` leaves it alone. Raises UserError if the cluster does not answer or refuses, TooBusy if a local one
    does not come up in time.

    A local cluster dies with the *thread* that calls this (Ray ties its processes to it): call it from the
    main thread.
    """
    target = address or os.environ.get("RAY_ADDRESS")
    if target == "local":
        target = None
    if is_joined():
        return Cluster(address=_ray().get_runtime_context().gcs_address, local=False)
    mark = secrets.token_hex(8)
    settings = {**_LOCAL_SETTINGS, **(_KEPT if keep_idle else {})}
    settings[private.SETUP_HOOK] = own_code.INSTALL
    undo = {} if target else put({**settings, **short_tmp(os.environ), **_token(), _MARK: mark})
    undo |= put(_IN_A_JOB) if target else {}
    undo[_BREAKPOINT] = os.environ.get(_BREAKPOINT)
    ray, guard = _ray(), None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if target:
            _probe(target, named_by="the address" if address else "RAY_ADDRESS")
            options |= {"address": target, "runtime_env": _merged(runtime_env, env)}
        else:
            private.reread_authentication()
            undo |= {name: old for name, old in put(env).items() if name not in undo}
            options |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
            options |= {
                "_node_ip_address": _LOOPBACK,
                "runtime_env": dict(runtime_env) if runtime_env else None,
            }
            guard = Guard(f"{_MARK}={mark}")
        with as_we_want(local=not target) as begun:
            ray.init(**options)
        vital = {} if target else {name: begun[name] for name in _VITAL}
        if guard is not None:  # its agents have titles
            guard.include(descendants(vital["raylet"].pid))
    except BaseException as error:
        if guard is not None:
            guard.finish()
        put_back(undo)
        if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
            place = (runtime_env or {}).get("working_dir")
            advice = "name a folder with nothing but the code that trials need, in the specification's working_dir"
            raise UserError(f"the folder {place} cannot be shipped to the cluster ({error}); {advice}") from error
        if not target and private.STARTED_LATE in str(error):
            load, cpus = os.getloadavg()[0], os.cpu_count()
            raise TooBusy(f"Ray did not start within its 30 s: the machine has a load of {load:.0f} on {cpus} CPUs") from error
        if target and isinstance(error, ConnectionError):
            named = "the address" if address else "RAY_ADDRESS"
            advice = "correct or unset it, or start the cluster"
            raise UserError(f"No Ray cluster at {named} {target!r} ({error}); {advice}") from error
        raise
    # the raylet has them now; the driver keeps its own
    for name in undo.keys() - {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}:
        put_back({name: undo.pop(name)})
    undo |= put(_DRIVER_SETTINGS)
    global _owned
    gcs: str = ray.get_runtime_context().gcs_address
    _owned = _Ownership(environment=undo, guard=guard, head=gcs if target else None, gcs=gcs, vital=vital)
    return Cluster(address=gcs, local=not target)


def is_joined() -> bool:
    """Whether this process is connected to a cluster, by `connect` or by itself."""
    return "ray" in sys.modules and bool(_ray().is_initialized())


def disconnect() -> None:
    """Leave the cluster that `connect` joined; a local one is gone when this returns."""
    global _owned
    if _owned is None:
        return
    owned, _owned = _owned, None
    _ray().shutdown()
    if owned.guard is not None:
        owned.guard.finish()
    put_back(owned.environment)
    if "RAY_AUTH_TOKEN" in owned.environment:
        private.reread_authentication()


def lost() -> str | None:
    """What of the cluster that `connect` joined is gone for good, None if nothing is.

    Ray itself says nothing: without its control store `ray.get` hangs for a minute, and 10 s after its raylet has died
    it ends this process from within. So look, and `disconnect` at once: then the process may connect again.
    """
    if _owned is None or not _ray().is_initialized():
        return None
    if _owned.head is None:
        gone = [name for name, process in _owned.vital.items() if process.poll() is not None]
        return f"its {' and '.join(gone)} died" if gone else None
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
    """Whether the head of a user's own cluster answers now; True for a local one.

    To be asked before any call that goes to Ray's control store: one that waits for a head while another is started in
    its place ends this process from within ("WrongClusterID", Ray 2.60).
    """
    owned = _owned  # another thread may disconnect
    if owned is None or owned.head is None:
        return True
    host, _, port = owned.head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except OSError:
        return False
    return True


def is_ending() -> bool:
    """Whether a local cluster was told to end: it takes 20 s to do so, in which it answers nothing. Its head listens no more at
    once (Ray 2.60).
    """
    owned = _owned
    if owned is None or owned.guard is None:
        return False
    host, _, port = owned.gcs.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=LOOK_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def alarm() -> None:
    """Raises ClusterLost if the cluster is gone."""
    if (why := lost()) is not None:
        raise given_up(why)


def given_up(why: str) -> ClusterLost:
    """Kills what is left of a local cluster, so that nobody waits for it, and makes the error to raise."""
    owned = _owned
    if owned is not None and owned.guard is not None:
        owned.guard.kill()
    return ClusterLost(f"the Ray cluster was lost: {why}")


def get(ref: ray.ObjectRef[Any], timeout: float = math.inf) -> Any:
    """`ray.get`, which raises ClusterLost instead of waiting for a cluster that is gone. Raises GetTimeoutError."""
    ray, deadline = _ray(), time.monotonic() + timeout
    while True:
        try:
            return ray.get(ref, timeout=max(0.0, min(LOOK_SECONDS, deadline - time.monotonic())))
        except ray.exceptions.GetTimeoutError:
            alarm()
            if time.monotonic() >= deadline:
                raise
        except ray.exceptions.RayError:
            alarm()
            raise


def await_head(seconds: float, given_up: Callable[[], bool]) -> bool:
    """Waits until a cluster answers at RAY_ADDRESS, which may be one that was started anew; False if none does.

    Also False once `given_up` says so.
    """
    deadline = time.monotonic() + seconds
    while not given_up():
        try:
            _probe(os.environ["RAY_ADDRESS"], named_by="RAY_ADDRESS")
            return True
        except UserError:
            if time.monotonic() > deadline:
                return False
            time.sleep(1.0)
    return False


def warm_up(
    count: int, modules: Sequence[str], *, runtime_env: Mapping[str, Any] | None = None
) -> list[ray.ObjectRef[float]]:
    """Start `count` worker processes that import `modules`, in the background.

    Ray reuses them for tasks of the same `runtime_env`. Each reference resolves to the seconds that the imports took.
    """
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


def _merged(runtime_env: Mapping[str, Any] | None, env: Mapping[str, str]) -> dict[str, Any]:
    given = dict(runtime_env or {})
    return {**given, "env_vars": {**env, **given.get("env_vars", {})}}


def _token() -> dict[str, str]:
    """A fresh token. Ray listens on every interface whatever it is told, and would run any host's code."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _probe(address: str, *, named_by: str) -> None:
    """Raise UserError unless a cluster answers at `address`."""
    wrong = f"No Ray cluster at {named_by} {address!r}"
    advice = f"correct or unset {named_by}, or start the cluster"
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if address != "auto":
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS / 2).close()
        except ValueError:
            raise UserError(f"{wrong}: it must be host:port, ray://host:port or auto; {advice}") from None
        except OSError as error:
            raise UserError(f"{wrong} ({error.strerror or error}): {advice}") from None
    if "://" in address:
        return  # Ray Client checks and gives up by itself
    try:
        reason = private.ask_head(address, PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"{wrong}: nothing there speaks Ray within {PROBE_SECONDS:.0f} s; {advice}") from None
    if reason is not None:
        raise UserError(f"{wrong}: {reason}; {advice}")
