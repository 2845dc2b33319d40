"""Joining a Ray cluster with what the workers of an experiment need: variables, code, processes that are warm."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from regrow.infra.machine import capacity
from regrow.infra.ray import cluster, scaling
from regrow.infra.state.experiments import make_importable
from regrow.search import samplers
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks import own_code

TRIAL_ENV: Mapping[str, Any] = {"env_vars": {own_code.TRIAL: "1"}}
"""The runtime environment of trials. Ray keeps its worker processes apart from those of other tasks and actors: so the
processes that were warmed up for trials are not taken by the coordinator and the recorder (2 s to the first report)."""

TRIAL_MODULES = ("regrow.infra.ray.executor",)


@contextmanager
def join(spec: Spec, say: Callable[[str], None]) -> Iterator[cluster.Cluster]:
    """The Ray cluster within the block, with what the workers of `spec` need; one that this process joined before stays.

    On a machine that is too busy for it a second start is tried, which people are told by `say`. Raises TooBusy after that.
    """
    import ray

    before, shipped = ray.is_initialized(), None
    if os.environ.get("RAY_ADDRESS") and spec.working_dir is not None:
        shipped = {"working_dir": spec.working_dir, "excludes": [".git", ".venv", ".regrow"]}
        shipped |= {"worker_process_setup_hook": own_code.INSTALL}
    try:
        variables = {**environment(spec), **code(spec)}
        try:
            joined = cluster.connect(env=variables, runtime_env=shipped)
        except cluster.TooBusy as busy:
            say(f"{busy}; once more")
            joined = cluster.connect(env=variables, runtime_env=shipped)
        yield joined
    finally:
        if not before:
            cluster.disconnect()


def environment(spec: Spec) -> dict[str, str]:
    """The variables of the specification; those without a value are the driver's. Raises SpecError for one that it lacks."""
    env: dict[str, str] = {}
    for name, value in spec.env.items():
        if value is None and name not in os.environ:
            raise SpecError(key=f"env.{name}", value=None, problem="is not set here", hint=f"export {name}, or give it a value")
        env[name] = os.environ[name] if value is None else value
    return env


def code(spec: Spec) -> dict[str, str]:
    """The variable that tells workers where the trainable's code is: in its folder, or wherever Ray has shipped that to."""
    return own_code.told(spec.program, None if os.environ.get("RAY_ADDRESS") else spec.working_dir)


def slots(spec: Spec, ray_cluster: cluster.Cluster) -> int:
    """How many slots attempts may have at a time: as was said, else as many as the cluster has room for now.

    Raises SpecError if it has no room for a single one, unless somebody has said how many and the cluster is the user's own: that
    may grow as soon as something waits.
    """
    nodes = ray_cluster.nodes()
    present, most = spec.resources.shape.slots(nodes), scaling.most(spec)
    if present == 0 and (ray_cluster.local or most is None):
        raise _no_room(spec, nodes, local=ray_cluster.local)
    return most or present  # a specification that asks for nothing has a concurrency


def shortage(spec: Spec, ray_cluster: cluster.Cluster) -> str | None:
    """What to tell people if the cluster has no room for a trial now; None if it has."""
    nodes = ray_cluster.nodes()
    if spec.resources.shape.slots(nodes):
        return None
    nowhere = "The cluster has no room for" if spec.resources.grouped else "No node of the cluster can hold"
    return f"{nowhere} a trial now, which needs {_asked(spec)}: they wait for one. {_have(nodes)}."


def check_room(spec: Spec) -> None:
    """Raises SpecError if no trial can fit on this machine, before a cluster is started on it. Of others it knows nothing."""
    here = capacity.resources()
    if here is None or os.environ.get("RAY_ADDRESS", "local") != "local" or cluster.is_joined():
        return
    if spec.resources.shape.slots([here]) == 0:
        raise _no_room(spec, [here], local=True)


def _no_room(spec: Spec, nodes: Sequence[Mapping[str, float]], *, local: bool) -> SpecError:
    wanted = spec.resources
    least = wanted.widths[0]
    group = f" of {least} workers" if least > 1 else ""
    if wanted.children is not None:
        group += f" with {wanted.children.count} bundle{'s' * (wanted.children.count > 1)} of children"
    there = f"the cluster has no room for a trial{group}" if wanted.grouped else "no node of the cluster can hold a trial"
    problem = f"{there} that need{'s' * (least == 1)} this; {_have(nodes)}"
    hint = "ask for less, or add a node that has it"
    if not local:
        hint += f"; if the cluster grows by itself, say how many trials may run at a time: concurrency, or {scaling.SLOTS}"
    return SpecError(key="resources", value=_asked(spec), problem=problem, hint=hint)


def _asked(spec: Spec) -> dict[str, Any]:
    asked = {name: amount for name, amount in spec.resources if amount and name not in ("reduce", "children")}
    if (children := spec.resources.children) is not None:
        asked["children"] = {name: amount for name, amount in children if amount}
    return {name: list(amount) if isinstance(amount, tuple) else amount for name, amount in asked.items()}


def _have(nodes: Sequence[Mapping[str, float]]) -> str:
    have = "; ".join(dict.fromkeys(map(capacity.words, nodes)))
    return f"{'it has' if len(nodes) == 1 else 'they have'} {have}"


def warm_up(spec: Spec, count: int) -> None:
    """Starts the processes of `count` trials and of the coordinator in the background, with what they will import."""
    import ray

    cluster.warm_up(count, TRIAL_MODULES, runtime_env=TRIAL_ENV)
    ray.remote(num_cpus=0, max_retries=0)(_plan_once).remote(spec.model_dump(mode="json"))


def _plan_once(spec: dict[str, Any]) -> None:
    """Makes a proposal that nobody sees: a sampler's library takes up to 0.8 s to load, before the first trial can start."""
    importlib.import_module("regrow.infra.coordinator.coordinator")
    parsed = Spec.recorded(spec)
    make_importable(parsed)
    samplers.make(parsed.search, parsed.setting).ask(0, 0)
