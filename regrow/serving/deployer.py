"""`python -m regrow.serving.deployer FD`: has Ray Serve answer, with what the supervisor chooses. The supervisor starts it.

It is a process of its own, as one whose cluster is lost may be ended by Ray from within, and a connection to a cluster that was
started anew is best made by a new process: the next one deploys again what was chosen last. Where it started the cluster itself,
that ends with it.
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
from typing import Any

import msgspec
from msgspec import structs

from regrow.infra.machine.addresses import beyond
from regrow.infra.ray import cluster
from regrow.serving.access import digest
from regrow.serving.line import Line
from regrow.serving.messages import TOKEN, Chosen, Loaded, OnRay, Order, Ready, Refused, Role, Sample, Setup, Switch, Wrong
from regrow.serving.said import log_to_terminal
from regrow.serving.served import Served
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.traces import in_a_line

LOST = 75
"""Exit code where the cluster is gone, or cannot be had yet."""
LOOK_SECONDS = 1.0
"""Between looks at the cluster."""
NOT_SHIPPED = [".git/", ".regrow/", ".venv/", "__pycache__/", "mlruns/", "node_modules/"]
"""Of the folder with the user's class."""
_LOG = logging.getLogger("regrow.serving")


class Deployment:
    """The application on a cluster that this process has joined."""

    def __init__(self, setup: Setup, kind: type[Served], secret: bytes | None, *, local: bool) -> None:
        assert setup.ray is not None
        self._setup, self._ray, self._kind = setup, setup.ray, kind
        self._name = f"regrow-{setup.experiment}"
        self._chosen: dict[Role, Chosen] = {one.role: one for one in setup.chosen}
        self._bound = (msgspec.json.encode(structs.replace(setup, chosen=[])), secret, setup.code if local else None)
        self._actor: dict[str, Any] = {"num_cpus": kind.cpus, "num_gpus": kind.gpus}
        if not local:
            self._actor["runtime_env"] = {"working_dir": setup.code, "excludes": NOT_SHIPPED}

    def begin(self) -> None:
        """Starts Ray Serve, where it is not there, and deploys what is chosen already. Raises what Ray does."""
        from ray import serve

        serve.start(proxy_location="EveryNode", http_options={"host": self._ray.host, "port": self._ray.port})
        if self._chosen:
            self._deploy()

    def take(self, chosen: Chosen) -> Refused | None:
        """Has all replicas answer with it; returns why not, and then what answered before does so again."""
        before = dict(self._chosen)
        self._chosen[chosen.role] = chosen
        try:
            self._deploy()
        except Exception as error:  # noqa: BLE001 - Ray's, of many kinds
            self._chosen = before
            if before:
                with suppress(Exception):  # what is refused is said all the same, else it would be deployed again and again
                    self._deploy()
            return Refused(manifest=chosen.manifest, why=f"Ray Serve did not get it to run: {in_a_line(error)}")
        return None

    def end(self) -> None:
        """Removes the application, once what is under way is answered."""
        from ray import serve

        serve.delete(self._name)

    def _deploy(self) -> None:
        from ray import serve

        from regrow.serving.on_ray import Answering

        batch = self._kind.max_batch
        options: dict[str, Any] = {
            "name": "model", "version": self._ray.version, "ray_actor_options": self._actor, "max_ongoing_requests": 4 * batch,
            "user_config": [msgspec.to_builtins(one) for one in self._chosen.values()],
        }
        if self._ray.least == self._ray.most:
            options["num_replicas"] = self._ray.least
        else:
            options["autoscaling_config"] = {
                "min_replicas": self._ray.least, "max_replicas": self._ray.most, "target_ongoing_requests": batch,
            }
        made: Any = serve.deployment(serve.ingress()(Answering))
        made = made.options(**options, _internal=True)
        serve.run(made.bind(*self._bound), name=self._name, route_prefix="/")


def joined(ray: OnRay) -> bool:
    """Joins the cluster, or starts one; whether it is one's own. Raises UserError and RegrowError."""
    where = cluster.connect(env={})
    if not where.local and beyond(ray.host) is None:
        _LOG.info("the proxies of all nodes of the cluster listen on their own loopback only; --host 0.0.0.0 opens them")
    return where.local


def watch() -> None:
    """In a thread: ends the process when the cluster is gone. Calls to one that is gone may never return."""
    while (why := cluster.lost()) is None:
        time.sleep(LOOK_SECONDS)
    _LOG.warning("the Ray cluster is lost: %s", why)
    sys.stdout.flush()
    os._exit(LOST)


def obey(line: Line, deployment: Deployment) -> None:
    """Until SIGTERM, or until the supervisor is gone: then the application on a cluster of the user's answers on."""
    orders: queue.Queue[Order | None] = queue.Queue()
    told_to_end = threading.Event()

    def end(*_: Any) -> None:
        told_to_end.set()
        orders.put(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)

    def hear() -> None:
        for order in line.orders():
            orders.put(order)
        orders.put(None)

    threading.Thread(target=hear, daemon=True, name="orders").start()
    line.say(Ready())
    while (order := orders.get()) is not None:
        if isinstance(order, Chosen):
            line.say(deployment.take(order) or Loaded(manifest=order.manifest))
        elif isinstance(order, Switch):
            line.say(Loaded(manifest=order.manifest))
        else:
            line.say(Sample(text=None))
    if told_to_end.is_set():
        deployment.end()


def main() -> None:
    """See the top."""
    log_to_terminal()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    token = os.environ.pop(TOKEN, "").strip() or None
    line = Line(int(sys.argv[1]))
    setup = next(line.orders(), None)
    if not isinstance(setup, Setup) or setup.ray is None or (kind := line.kind(setup)) is None:
        return
    try:
        local = joined(setup.ray)
    except (UserError, RegrowError) as error:
        _LOG.warning("%s", error)
        line.say(Wrong(why=str(error)))
        sys.exit(LOST)
    threading.Thread(target=watch, daemon=True, name="watch").start()
    deployment = Deployment(setup, kind, None if token is None else digest(token), local=local)
    try:
        deployment.begin()
    except Exception as error:  # noqa: BLE001 - Ray's, of many kinds
        _LOG.error("Ray Serve: %s", in_a_line(error))
        line.say(Wrong(why=f"Ray Serve does not start: {in_a_line(error)}"))
        sys.exit(LOST)
    obey(line, deployment)
    cluster.disconnect()


if __name__ == "__main__":
    main()
