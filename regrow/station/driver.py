"""The process of one session on a station: `python -m regrow.station.driver --state ROOT`, started by its worker.

It has loaded all that a session takes, joined the station's cluster and warmed processes of it up before it is told what to
run; then it runs that, as `regrow run` would, and ends. It ends as well when its worker is gone while it still waits.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from regrow.infra.machine import locks
from regrow.infra.machine.typed import Typed
from regrow.infra.prefect.settings import settings
from regrow.infra.state.places import Places
from regrow.station import record
from regrow.station.orders import Line, Order, Word, decode_signal
from regrow.tasks.errors import RegrowError

WARM = 2
"""Workers that wait for the first trials."""
MODULES = (
    "regrow.launch", "regrow.flows.run", "regrow.infra.state.spec_file", "regrow.station.flow_runs",
    "regrow.infra.prefect.private", "fastapi.encoders",  # which Prefect imports when it has parameters to send
)
_warm: list[Any] = []
"""What the cluster does for this process meanwhile; Ray would cancel what nobody holds."""


def main() -> None:
    """Waits for an order and carries it out."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--state", required=True)
    options = arguments.parse_args()
    places = Places.at(options.state)
    folder = record.folder_of(places)
    head = record.read(folder / "ray.json")
    if head:  # before Ray is imported, which reads it then
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=head["token"])
    os.environ.update(settings(os.environ))
    for module in MODULES:
        importlib.import_module(module)
    if head:
        _join(head["address"], folder)
    with _Post(folder, head.get("pid")) as post:
        threading.Thread(target=_end_with_worker, args=(post,), daemon=True).start()
        order, line = post.await_order()
        code = _carry_out(order, line, places)
    sys.stdout.flush()
    os._exit(code)  # all is written and closed, and taking the interpreter apart takes 0.5 s


class _Post:
    """Where a driver waits: a port and a file that tells of it, which it holds for as long as it lives."""

    def __init__(self, folder: Path, head: int | None) -> None:
        self._head = head
        self._file = folder / "drivers" / f"{os.getpid()}.json"
        self._token = secrets.token_hex(32)
        self._lock: IO[str] | None = None
        self.idle = True

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self._tell({"idle": True, "port": port, "token": self._token, "head": self._head})
        return self

    def __exit__(self, *_: object) -> None:
        self._file.unlink(missing_ok=True)
        self._file.with_suffix(".order").unlink(missing_ok=True)

    def await_order(self) -> tuple[Order, Line]:
        """The first order that comes with the right token."""
        while True:
            connection, _ = self._listener.accept()
            connection.settimeout(5.0)
            line = Line(connection)
            try:
                order = msgspec.json.decode(next(line.lines(), b""), type=Order)
            except msgspec.MsgspecError:
                line.close()
                continue
            if not secrets.compare_digest(order.token, self._token):
                line.close()
                continue
            self.idle = False
            connection.settimeout(None)
            self._listener.close()
            self._tell({"idle": False, "name": order.name, "flow_run": order.flow_run})
            return order, line

    def _tell(self, what: Mapping[str, Any]) -> None:
        """Writes the file anew, in its place, as the lock is the file's."""
        if self._lock is None:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
            os.close(descriptor)
            self._lock = locks.take(self._file, wait=2.0)  # whoever looks for drivers holds it for an instant
        with self._file.open("r+") as into:
            into.write(json.dumps(what))
            into.truncate()


def _join(address: str, folder: Path) -> None:
    """Joins the station's cluster and has it start the processes that a session takes."""
    from regrow.infra.coordinator.actor import prepare_coordinator
    from regrow.infra.ray import cluster
    from regrow.infra.ray.joining import TRIAL_ENV, TRIAL_MODULES

    cluster.connect(address=address, env={})
    prepare_coordinator(folder / "drivers" / f"{os.getpid()}.order")
    _warm.extend(cluster.warm_up(min(WARM, os.cpu_count() or 1), TRIAL_MODULES, runtime_env=TRIAL_ENV))


def _end_with_worker(post: _Post) -> None:
    """A thread that ends a driver nobody will give an order any more: its worker's end of the pipe is closed."""
    while os.read(0, 4096):  # not sys.stdin, whose lock would be in the way of this process's end
        pass
    if post.idle:
        os._exit(0)


def _carry_out(order: Order, line: Line, places: Places) -> int:
    def say(text: str) -> None:
        with suppress(OSError):  # nobody reads it any more
            line.send(Word(kind="said", text=text))

    def listen() -> None:
        for heard in line.lines():
            if (number := decode_signal(heard)) is not None:
                os.kill(os.getpid(), number)

    line.send(Word(kind="taken", driver=os.getpid()))
    threading.Thread(target=listen, daemon=True).start()
    try:
        _run(order, places, say)
        last = Word(kind="ended")
    except KeyboardInterrupt:
        last = Word(kind="failed", error="interrupted", text="interrupted before the experiment began; nothing is lost")
    except Exception as error:  # noqa: BLE001 - whoever gave the order is told
        last = Word.of(error)
        if last.error == "bug":
            traceback.print_exc()
            last = msgspec.structs.replace(last, trace=traceback.format_exc())
    with suppress(OSError):
        line.send(last)
    return 0 if last.kind == "ended" else 1


def _run(order: Order, places: Places, say: Any) -> None:
    from regrow.launch import launch
    from regrow.search.spec import Spec

    if order.flow_run is not None:
        from regrow.station.flow_runs import run_flow_run

        run_flow_run(order.flow_run, places, say)
        return
    typed = Typed.otherwise(order.folder, order.variables)
    typed.take_over()
    spec = None if order.spec is None else Spec.parse(order.spec)
    launch(
        order.name, spec=spec, places=places, trials=order.trials, retry_failed=order.retry_failed, announce=say, typed=typed,
    )


if __name__ == "__main__":
    try:
        main()
    except RegrowError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(signal.SIGINT)
