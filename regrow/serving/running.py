"""A server from its first word to its end in good order: where it listens, and what is told to whoever started it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from regrow.infra.machine import addresses
from regrow.serving.messages import TOKEN, Setup
from regrow.serving.mlflow_model import MODEL
from regrow.serving.replicas import Replicas
from regrow.serving.said import log_to_terminal
from regrow.tasks import temporary
from regrow.tasks.errors import UserError

SHORTEST_TOKEN = 16
LOOPBACK = "127.0.0.1"
RESTORE_SECONDS = 10.0
"""At the end, for a checkpoint that is just being restored."""

Choose = Callable[[Replicas, Path, threading.Event], None]
"""Offers models to the replicas, with a folder for their files, until the event is set, or until nothing more will come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Where it listens: the loopback, and `host`, if that is more."""

    host: str | None
    port: int
    sockets: list[socket.socket]

    @classmethod
    def open(cls, host: str | None, port: int) -> Doors:
        """Listens at once, so that the port is one's own; 0: any free one. Raises UserError for one that cannot be had."""
        try:
            sockets = addresses.listen(host, port)
        except (OSError, OverflowError) as error:
            raise UserError(f"--port: {port} cannot be had ({error}); name another one, or 0 for any that is free") from None
        return cls(host=host, port=sockets[0].getsockname()[1], sockets=sockets)

    @property
    def address(self) -> str:
        """For a browser."""
        return f"http://{addresses.names(self.host)[0] if self.host else LOOPBACK}:{self.port}"

    def close(self) -> None:
        """Listens no more."""
        for one in self.sockets:
            one.close()
        self.sockets.clear()


def answer(common: Setup, doors: Doors, count: int, choose: Choose) -> None:
    """Has `count` processes answer with what `choose` offers them, until SIGTERM or Ctrl-C.

    Raises what `choose` does, and UserError and UserCodeError for a class that cannot be used.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log = log_to_terminal()
    scratch = Path(tempfile.mkdtemp(prefix="serve-", dir=temporary.room()))
    counted = scratch / "metrics"
    counted.mkdir()
    replicas = Replicas(structs.replace(common, metrics=str(counted)), doors.sockets, count)
    raised: list[BaseException] = []

    def chooses() -> None:
        try:
            choose(replicas, scratch, stop)
        except BaseException as error:  # noqa: BLE001 - of a thread: it is raised below
            raised.append(error)
            stop.set()

    chooser = threading.Thread(target=chooses, daemon=True)
    try:
        replicas.start(stop=stop)
        if common.model == MODEL:
            log.info("%s at %s/invocations, as `mlflow models serve` has it; Ctrl-C ends it", common.experiment, doors.address)
        else:
            log.info("%s at %s/predict, described at %s/docs; Ctrl-C ends it", common.experiment, doors.address, doors.address)
        chooser.start()
        stop.wait()
        for error in raised:
            raise error
    finally:
        replicas.end()
        doors.close()
        if chooser.ident is not None:
            chooser.join(RESTORE_SECONDS)  # else it may write files of a checkpoint into the folder that is removed
        shutil.rmtree(scratch, ignore_errors=True)


def guarded(host: str | None) -> str | None:
    """`host` if it is more than the loopback, else None. Raises UserError without a token for it, or with a short one."""
    beyond = addresses.beyond(host)
    token = os.environ.get(TOKEN)
    if token is not None and len(token.strip()) < SHORTEST_TOKEN:
        raise UserError(f"{TOKEN} is too short to be a secret; `openssl rand -hex 16` makes one")
    if beyond is not None and token is None:
        raise UserError(f"--host: {TOKEN} is not set; nobody else may ask without one (`openssl rand -hex 16` makes one)")
    return beyond
