"""Runs a server from start to graceful shutdown: where it listens, and the messages to the user."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from regrow.apps.serving.messages import TOKEN, Setup
from regrow.apps.serving.mlflow_model import MODEL
from regrow.apps.serving.replicas import Replicas
from regrow.apps.serving.status import log_to_terminal
from regrow.infra.machine import addresses, private_files
from regrow.tasks.errors import UserError
from regrow.tasks.process import background, temporary

SHORTEST_TOKEN = 16
LOOPBACK = "127.0.0.1"
RESTORE_SECONDS = 10.0
"""At the end, time for a checkpoint that is being restored."""

Choose = Callable[[Replicas, Path, threading.Event], None]
"""Offers models to the replicas, with a folder for their files, until the event is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The listening sockets: on the loopback, and on `host` if it is set."""

    host: str | None
    port: int
    sockets: list[socket.socket]

    @classmethod
    def open(cls, host: str | None, port: int) -> Listeners:
        """Listen immediately, so that the port is reserved; port 0: any free one. Raises UserError
        if the port is not available.
        """
        try:
            sockets = addresses.listen(host, port)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"--port: {port} cannot be used ({error}); name another one, or 0 for any that is"
                " free"
            ) from None
        return cls(host=host, port=sockets[0].getsockname()[1], sockets=sockets)

    @property
    def address(self) -> str:
        """Its URL."""
        return f"http://{addresses.names(self.host)[0] if self.host else LOOPBACK}:{self.port}"

    def close(self) -> None:
        for one in self.sockets:
            one.close()
        self.sockets.clear()


def answer(
    common: Setup, listeners: Listeners, count: int, choose: Choose, token: Path | None
) -> None:
    """Answer with `count` processes and the models that `choose` offers them, until SIGTERM or
    Ctrl-C.

    `token`: the file with the token, None if the caller's environment has it. Raises what `choose`
    raises, and UserError and UserCodeError for a class that cannot be used.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log = log_to_terminal()
    scratch = Path(tempfile.mkdtemp(prefix="serve-", dir=temporary.process_temp_dir()))
    counted = scratch / "metrics"
    counted.mkdir()
    common = structs.replace(
        common, metrics=str(counted), beyond=addresses.is_beyond(listeners.host)
    )
    replicas = Replicas(common, listeners.sockets, count)
    raised: list[BaseException] = []

    def chooses() -> None:
        try:
            choose(replicas, scratch, stop)
        except BaseException as error:  # noqa: BLE001 - raised below, outside of the thread
            raised.append(error)
            stop.set()

    chooser: threading.Thread | None = None
    try:
        replicas.start(stop=stop)
        if common.model == MODEL:
            log.info(
                "%s at %s/invocations, as `mlflow models serve` has it; Ctrl-C ends it",
                common.experiment,
                listeners.address,
            )
        else:
            log.info(
                "%s at %s/predict, described at %s/docs; Ctrl-C ends it",
                common.experiment,
                listeners.address,
                listeners.address,
            )
        where = TOKEN if token is None else str(token)
        log.info("requests need `Authorization: Bearer TOKEN`, with the token in %s", where)
        chooser = background.start(chooses, name="chooser")
        stop.wait()
        for error in raised:
            raise error
    finally:
        replicas.end()
        listeners.close()
        if chooser is not None:
            # Otherwise it may write a checkpoint's files into the removed folder.
            chooser.join(RESTORE_SECONDS)
        shutil.rmtree(scratch, ignore_errors=True)


def token_in(file: Path) -> Path | None:
    """Set REGROW_SERVE_TOKEN in this process from `file`, which is created if it does not exist.

    Returns the file; None if the variable is set already. Raises UserError for a token that is too
    short or that no request could bring, and if none can be written.
    """
    given = os.environ.get(TOKEN)
    token = (given or "").strip()
    if given is None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            private_files.create(file, secrets.token_hex(SHORTEST_TOKEN))
            token = file.read_text(errors="replace").strip()
        except OSError as error:
            hint = f"set {TOKEN} (`openssl rand -hex 16` makes one)"
            raise UserError(f"no token can be kept in {file} ({error.strerror}); {hint}") from None
    where = TOKEN if given is not None else f"the token in {file}"
    if len(token) < SHORTEST_TOKEN:
        raise UserError(f"{where} is too short to be a secret; `openssl rand -hex 16` makes one")
    if not (token.isascii() and token.isprintable()):
        raise UserError(
            f"{where} has characters that no header carries unchanged; take letters and digits"
            " (`openssl rand -hex 16` makes one)"
        )
    os.environ[TOKEN] = token
    return file if given is None else None
