"""`python -m regrow.apps.serving.deployer FD`: deploys the checkpoints that the supervisor chooses
on Ray Serve. Started by the supervisor.

It is a separate process, because Ray may end a process whose cluster is lost, and a new process
connects most reliably to a restarted cluster: the next one deploys the last choice again. If it
started the cluster itself, that ends with it.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from regrow.apps.serving.line import begin
from regrow.apps.serving.messages import (
    COMMANDS,
    ChildCommand,
    Chosen,
    Loaded,
    OnRay,
    Ready,
    Refused,
    Role,
    SampleAnswered,
    Setup,
    Switch,
    Wrong,
)
from regrow.apps.serving.served import Served
from regrow.infra.machine.addresses import is_beyond
from regrow.infra.machine.confidential import confidential, excludes, warning
from regrow.infra.ray import cluster
from regrow.infra.ray.private import at_version
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.output.traces import in_a_line
from regrow.tasks.process import background
from regrow.tasks.process.json_lines import JsonLines

LOST = 75
"""Exit code if the cluster is lost, or not available yet."""
LOOK_SECONDS = 1.0
"""Interval of the cluster checks."""
NOT_SHIPPED = [".git/", ".regrow/", ".venv/", "__pycache__/", "mlruns/", "node_modules/"]
"""Excluded parts of the folder with the user's class."""
_LOG = logging.getLogger("regrow.apps.serving")


class Deployment:
    """The application on the cluster that this process has joined."""

    def __init__(self, setup: Setup, kind: type[Served], secret: bytes, *, local: bool) -> None:
        assert setup.ray is not None
        self._setup, self._ray, self._kind = setup, setup.ray, kind
        self._name = f"regrow-{setup.experiment}"
        self._chosen: dict[Role, Chosen] = {one.role: one for one in setup.chosen}
        self._bound = (
            msgspec.json.encode(structs.replace(setup, chosen=[])),
            secret,
            setup.code if local else None,
        )
        self._actor: dict[str, Any] = {"num_cpus": kind.cpus, "num_gpus": kind.gpus}
        if not local:
            if left_out := confidential(Path(setup.code)):
                _LOG.warning("%s", warning(left_out))
            self._actor["runtime_env"] = {
                "working_dir": setup.code,
                "excludes": [*NOT_SHIPPED, *excludes(left_out)],
            }

    def begin(self) -> None:
        """Start Ray Serve if needed, and deploy the current choice. Raises Ray's exceptions."""
        from ray import serve

        serve.start(
            proxy_location="EveryNode",
            http_options={"host": self._ray.host, "port": self._ray.port},
        )
        if self._chosen:
            self._deploy()

    def deploy(self, chosen: Chosen) -> Refused | None:
        """Deploy it on all replicas; on failure, return why and deploy the previous one again."""
        before = dict(self._chosen)
        self._chosen[chosen.role] = chosen
        try:
            self._deploy()
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds
            self._chosen = before
            if before:
                with suppress(
                    Exception
                    # the refusal is returned in any case, else it would be deployed again and again
                ):
                    self._deploy()
            return Refused(
                manifest=chosen.manifest, why=f"Ray Serve did not get it to run: {in_a_line(error)}"
            )
        return None

    def end(self) -> None:
        """Remove the application once pending requests are answered."""
        from ray import serve

        serve.delete(self._name)

    def _deploy(self) -> None:
        from ray import serve

        from regrow.apps.serving.on_ray import RayReplica

        batch = self._kind.max_batch
        options: dict[str, Any] = {
            "name": "model",
            "ray_actor_options": self._actor,
            "max_ongoing_requests": 4 * batch,
            "user_config": [msgspec.to_builtins(one) for one in self._chosen.values()],
        }
        if self._ray.least == self._ray.most:
            options["num_replicas"] = self._ray.least
        else:
            options["autoscaling_config"] = {
                "min_replicas": self._ray.least,
                "max_replicas": self._ray.most,
                "target_ongoing_requests": batch,
            }
        made: Any = serve.deployment(serve.ingress()(RayReplica))
        made = at_version(made, self._ray.version, options)
        serve.run(made.bind(*self._bound), name=self._name, route_prefix="/")


def joined(ray: OnRay) -> bool:
    """Join the cluster, or start one; return whether it was started here. Raises RegrowError."""
    where = cluster.connect(env={})
    if not where.local and not is_beyond(ray.host):
        _LOG.info(
            "the proxies of all nodes of the cluster listen on their own loopback only; --host"
            " 0.0.0.0 opens them"
        )
    return where.local


def watch() -> None:
    """End the process when the cluster is lost, whose calls may never return (in a thread)."""
    while (why := cluster.lost()) is None:
        time.sleep(LOOK_SECONDS)
    _LOG.warning("the Ray cluster is lost: %s", why)
    sys.stdout.flush()
    os._exit(LOST)


def carry_out(line: JsonLines, deployment: Deployment) -> None:
    """Carry out orders until SIGTERM, or until the supervisor is gone; then it stays deployed."""
    orders: queue.Queue[ChildCommand | None] = queue.Queue()
    told_to_end = threading.Event()

    def end(*_: Any) -> None:
        told_to_end.set()
        orders.put(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)

    def read_orders() -> None:
        for order in line.messages(COMMANDS):
            orders.put(order)
        orders.put(None)

    background.start(read_orders, name="orders")
    line.send(Ready())
    while (order := orders.get()) is not None:
        if isinstance(order, Chosen):
            line.send(deployment.deploy(order) or Loaded(manifest=order.manifest))
        elif isinstance(order, Switch):
            line.send(Loaded(manifest=order.manifest))
        else:
            line.send(SampleAnswered())
    if told_to_end.is_set():
        deployment.end()


def main() -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if (begun := begin()) is None:
        return
    line, setup, kind, secret = begun
    assert setup.ray is not None, "its supervisor is not one of Ray Serve"
    try:
        local = joined(setup.ray)
    except (UserError, RegrowError) as error:
        _LOG.warning("%s", error)
        line.send(Wrong(why=str(error)))
        sys.exit(LOST)
    background.start(watch, name="watch")
    deployment = Deployment(setup, kind, secret, local=local)
    try:
        deployment.begin()
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds
        _LOG.error("Ray Serve: %s", in_a_line(error))
        line.send(Wrong(why=f"Ray Serve does not start: {in_a_line(error)}"))
        sys.exit(LOST)
    carry_out(line, deployment)
    cluster.disconnect()


if __name__ == "__main__":
    main()
