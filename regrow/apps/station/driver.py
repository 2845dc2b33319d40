"""The process of one session on a station: `python -m regrow.apps.station.driver --state ROOT`,
started by the station's worker.

Before it receives its order, it has loaded every module that a session needs, joined the station's
cluster and warmed up worker processes. It then runs the session as `regrow run` would, and ends. It
also ends if its worker exits while it is idle.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from regrow.apps.station.orders import (
    COMMANDS,
    SIGNAL_BYTES,
    SIGNALS,
    DriverCommand,
    DriverMessage,
)
from regrow.infra.machine import capacity, locks
from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.machine.private_files import read_record
from regrow.infra.prefect.settings import settings
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import background, garbage
from regrow.tasks.process.connecting import Connecting
from regrow.tasks.process.json_lines import JsonLines

WARM = 2
"""Number of warm worker processes for the first trials."""
MODULES = (
    "regrow.flows.launch",
    "regrow.flows.run",
    "regrow.infra.state.spec_file",
    "regrow.apps.station.flow_runs",
    "regrow.infra.prefect.private",
    "fastapi.encoders",  # Prefect imports it when it sends parameters
)
_warm: list[Any] = []
"""References to warm-up tasks on the cluster; Ray cancels tasks that are not referenced."""


def main() -> None:
    """Wait for an order and carry it out."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--state", required=True)
    options = arguments.parse_args()
    garbage.collect_rarely()
    places = Places.at(options.state)
    folder = record.folder_of(places)
    head = read_record(folder / "ray.json")
    if head:  # before Ray is imported, which reads these variables on import
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=head["token"])
    os.environ.update(settings(os.environ))
    for module in MODULES:
        importlib.import_module(module)
    if head:
        from regrow.flows.coordinator.actor import prepare_coordinator
        from regrow.infra.ray import cluster
        from regrow.infra.ray.joining import TRIAL_ENV, TRIAL_MODULES

        cluster.connect(address=head["address"], env={})
        prepare_coordinator(folder / "drivers" / f"{os.getpid()}.order")
        workers = min(WARM, capacity.cpus())
        _warm.extend(cluster.warm_up(workers, TRIAL_MODULES, runtime_env=TRIAL_ENV))
    with _DriverAddress(folder, head.get("pid")) as post:
        background.start(_end_with_worker, post, name="worker-gone")
        order, line = post.await_order()
        code = _carry_out(order, line, places)
    sys.stdout.flush()
    os._exit(code)  # everything is written and closed, and finalizing the interpreter takes 0.5 s


class _DriverAddress:
    """The address of an idle driver: a port, in a file that it keeps locked while it lives."""

    def __init__(self, folder: Path, head: int | None) -> None:
        self._head = head
        self._file = folder / "drivers" / f"{os.getpid()}.json"
        self._token = secrets.token_hex(32)
        self._lock: IO[str] | None = None
        self.idle = True

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self._write_state({"idle": True, "port": port, "token": self._token, "head": self._head})
        return self

    def __exit__(self, *_: object) -> None:
        self._file.unlink(missing_ok=True)
        self._file.with_suffix(".order").unlink(missing_ok=True)

    def await_order(self) -> tuple[DriverCommand, JsonLines]:
        """Return the first order that follows the right token."""
        taken: queue.SimpleQueue[tuple[DriverCommand, JsonLines]] = queue.SimpleQueue()
        first = threading.Lock()

        def greet(connection: socket.socket, proved: Callable[[], None]) -> None:
            line = JsonLines(connection)
            if not line.proves(self._token):
                return
            order = line.receive(COMMANDS)
            if first.acquire(blocking=False):  # never released: a driver takes one order
                proved()
                self.idle = False
                taken.put((order, line))

        callers = Connecting(self._listener, greet)
        background.start(callers.accept, name="orders")
        order, line = taken.get()
        callers.close()
        self._write_state({"idle": False, "name": order.name, "flow_run": order.flow_run})
        return order, line

    def _write_state(self, what: Mapping[str, Any]) -> None:
        """Rewrite the file in place, since the lock belongs to this file."""
        if self._lock is None:
            # A process that lists the drivers holds it for an instant.
            self._lock = locks.acquire(self._file, wait=2.0)
        with self._file.open("r+") as into:
            into.write(json.dumps(what))
            into.truncate()


def _end_with_worker(post: _DriverAddress) -> None:
    """End an idle process when its worker's end of the pipe closes (in a thread)."""
    while os.read(0, 4096):  # not sys.stdin, whose lock would block the end of this process
        pass
    if post.idle:
        os._exit(0)


def _carry_out(order: DriverCommand, line: JsonLines, places: Places) -> int:
    def say(text: str) -> None:
        line.send(DriverMessage(kind="said", text=text))

    def listen() -> None:
        for heard in line.messages(SIGNALS, SIGNAL_BYTES):
            if heard.signal in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), heard.signal)

    if not line.send(DriverMessage(kind="taken", driver=os.getpid())):
        return 1  # the client has given the order to another driver, or to none
    background.start(listen, name="client")
    try:
        _run(order, places, say)
        last = DriverMessage(kind="ended")
    except KeyboardInterrupt:
        why = "interrupted before the experiment began; nothing is lost"
        last = DriverMessage(kind="failed", error="interrupted", text=why)
    except Exception as error:  # noqa: BLE001 - the error is sent to the client
        last = DriverMessage.of(error)
        if last.error == "bug":
            traceback.print_exc()
            last = msgspec.structs.replace(last, trace=traceback.format_exc())
    line.send(last)
    return 0 if last.kind == "ended" else 1


def _run(order: DriverCommand, places: Places, say: Any) -> None:
    from regrow.flows.launch import launch
    from regrow.flows.session import Session
    from regrow.search.spec import Spec

    if order.flow_run is not None:
        from regrow.apps.station.flow_runs import run_flow_run

        run_flow_run(order.flow_run, places, say)
        return
    own = set(os.environ)
    typed = CallerContext.of_shell(
        os.fsdecode(order.folder),
        {os.fsdecode(name): os.fsdecode(value) for name, value in order.variables},
    )
    typed.take_over()
    spec = None if order.spec is None else Spec.parse(order.spec)
    if spec is not None and (
        lacking := [name for name, value in spec.env.items() if value is None and name not in own]
    ):
        say(
            f"the station itself lacks {', '.join(lacking)}: should this driver be lost, it cannot"
            " continue by itself"
        )
    launch(
        Session(
            name=order.name,
            spec=spec,
            places=places,
            trials=order.trials,
            retry_failed=order.retry_failed,
            code=order.code,
            announce=say,
            typed=typed,
        )
    )


if __name__ == "__main__":
    try:
        main()
    except RegrowError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(signal.SIGINT)
