"""Joining a Ray cluster with what workers need: variables, code, warm processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regrow.infra.machine import capacity
from regrow.infra.machine.confidential import confidential, excludes, warning
from regrow.infra.ray import cluster, scaling
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.process import own_code

TRIAL_ENV: Mapping[str, Any] = {"env_vars": {own_code.TRIAL: "1"}}
"""Runtime environment of trials. Ray does not share worker processes between runtime environments,
so processes warmed up for trials are not taken by the coordinator and the recorder (saves 2 s until
the first report).
"""

TRIAL_MODULES = ("regrow.infra.ray.executor",)


HEAD_SECONDS = 60.0
"""Seconds that an agent's driver waits for the head that the agent starts beside it."""


@contextmanager
def join(
    spec: Spec, say: Callable[[str], None], *, by_agent: bool = False, state: Path | None = None
) -> Iterator[cluster.RayCluster]:
    """Join the Ray cluster within the block, with what the workers of `spec` need. A cluster that
    this process joined before stays connected.

    If a local one does not start, it tries a second time, and announces that by `say`; then with
    Ray's own programs only, as another Ray may wait for something from them. Raises NotStarted
    after that.

    `by_agent`: an agent runs this driver, and starts the cluster's head at the same time. `state`:
    the folder of the state, which is not sent with the code; None: it is in no folder.
    """
    import ray

    before, shipped = ray.is_initialized(), None
    if by_agent:
        cluster.await_head(HEAD_SECONDS, lambda: False)
    if os.environ.get("RAY_ADDRESS") and spec.working_dir is not None:
        left_out = confidential(Path(spec.working_dir))
        if left_out:
            say(warning(left_out))
        hidden = excludes(left_out)
        if state is not None and state != (folder := Path(spec.working_dir)):
            with suppress(ValueError):  # the state is not in the project
                hidden += excludes([f"{state.relative_to(folder)}/"])
        shipped = {
            "working_dir": spec.working_dir,
            "excludes": [".git", ".venv", ".regrow", *hidden],
        }
        shipped |= {"worker_process_setup_hook": own_code.INSTALL}
    try:
        variables = {**environment(spec), **code(spec)}
        try:
            joined = cluster.connect(env=variables, runtime_env=shipped, say=say)
        except cluster.NotStarted as error:
            say(f"{error}; once more")
            joined = cluster.connect(env=variables, runtime_env=shipped, plain=True, say=say)
        yield joined
    finally:
        if not before:
            cluster.disconnect()


def environment(spec: Spec) -> dict[str, str]:
    """Return the variables of the specification. Those without a value are taken from the driver.
    Raises SpecError for one that the driver lacks.
    """
    env: dict[str, str] = {}
    for name, value in spec.env.items():
        if value is None and name not in os.environ:
            raise SpecError(
                key=f"env.{name}",
                value=None,
                problem="is not set here",
                hint=f"export {name}, or give it a value",
            )
        env[name] = os.environ[name] if value is None else value
    return env


def code(spec: Spec) -> dict[str, str]:
    """Return the variable with the folder of the trainable's code, where Ray has put it."""
    return own_code.variables(
        spec.program, None if os.environ.get("RAY_ADDRESS") else spec.working_dir
    )


def slots(spec: Spec, ray_cluster: cluster.RayCluster, *, by_agent: bool = False) -> int:
    """Return how many slots attempts may use at a time: the specified number, else as many as the
    cluster has room for now, or is to have (see `scaling.least`).

    Raises SpecError if there is no room for any slot, unless the number is specified and the
    cluster is the user's, as it may grow once something waits, or the cluster is one of agents
    (`by_agent`), of which more may join.
    """
    nodes = ray_cluster.nodes()
    present, most = spec.resources.shape.slots(nodes), scaling.most(spec)
    if present == 0 and (ray_cluster.local or (most is None and not by_agent)):
        raise _no_room(spec, nodes, local=ray_cluster.local)
    return most or max(
        present, scaling.least(spec)
    )  # a specification without resources has a concurrency


def shortage(spec: Spec, ray_cluster: cluster.RayCluster) -> str | None:
    """Return the message that the cluster has no room for a trial now, None if it has."""
    nodes = ray_cluster.nodes()
    if spec.resources.shape.slots(nodes):
        return None
    all_nodes, each = "The cluster has no room for", "No node of the cluster can hold"
    nowhere = all_nodes if spec.resources.grouped else each
    return f"{nowhere} a trial now, which needs {_asked(spec)}: they wait for one. {_have(nodes)}."


def check_room(spec: Spec) -> None:
    """Raise SpecError if a local cluster, which is not started yet, has no room, or no price that
    `stop.dollars` needs.
    """
    here = capacity.resources()
    if here is None or (os.environ.get("RAY_ADDRESS") or "local") != "local" or cluster.is_joined():
        return
    if spec.stop.dollars is not None and spec.price_per_hour is None:
        problem = "cannot be kept: this machine has no price"
        hint = "give price_per_hour, what a slot costs an hour"
        raise SpecError("stop.dollars", spec.stop.dollars, problem, hint)
    if spec.resources.shape.slots([here]) == 0:
        raise _no_room(spec, [here], local=True)


def _no_room(spec: Spec, nodes: Sequence[Mapping[str, float]], *, local: bool) -> SpecError:
    wanted = spec.resources
    least = wanted.widths[0]
    group = f" of {least} workers" if least > 1 else ""
    if wanted.children is not None:
        count = wanted.children.count
        group += f" with {count} bundle{'s' * (count > 1)} of children"
    there = "no node of the cluster can hold a trial"
    if wanted.grouped:
        there = f"the cluster has no room for a trial{group}"
    problem = f"{there} that need{'s' * (least == 1)} this; {_have(nodes)}"
    hint = "ask for less, or add a node that has it"
    if not local:
        hint += (
            "; if the cluster grows by itself, say how many trials may run at a time: concurrency,"
            f" or {scaling.SLOTS}"
        )
    return SpecError(key="resources", value=_asked(spec), problem=problem, hint=hint)


def _asked(spec: Spec) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for name, amount in spec.resources:
        if amount and name not in ("reduce", "children"):
            asked[name] = list(amount) if isinstance(amount, tuple) else amount
    if (children := spec.resources.children) is not None:
        asked["children"] = {name: amount for name, amount in children if amount}
    return asked


def _have(nodes: Sequence[Mapping[str, float]]) -> str:
    have = "; ".join(dict.fromkeys(map(capacity.resources_text, nodes)))
    return f"{'it has' if len(nodes) == 1 else 'they have'} {have}"
