"""`regrow serve`: everything put together, from the first word to the end in good order."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from regrow.infra.machine import addresses
from regrow.infra.state.places import Places
from regrow.serving.following import Following, Wanted
from regrow.serving.messages import OnRay
from regrow.serving.replicas import Replicas, setup
from regrow.serving.said import log_to_terminal
from regrow.tasks.errors import UserError

TOKEN = "REGROW_SERVE_TOKEN"  # noqa: S105 - the variable's name
SHORTEST_TOKEN = 16
LOOPBACK = "127.0.0.1"
RESTORE_SECONDS = 10.0
"""At the end, for a checkpoint that is just being restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A trial, and the part of the requests that it gets, above 0 and below 1."""

    trial: int
    share: float

    @classmethod
    def parse(cls, text: str) -> Canary:
        """From TRIAL=PERCENT, as 17=10%. Raises UserError."""
        trial, _, percent = text.partition("=")
        try:
            found = cls(trial=int(trial), share=float(percent.strip().removesuffix("%")) / 100)
            if found.trial >= 0 and 0 < found.share < 1:
                return found
        except ValueError:
            pass
        raise UserError(f"--canary: {text!r} is no trial with its share; write TRIAL=PERCENT, such as 17=10%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many replicas: `least` to `most`."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str, *, ray: bool) -> Count:
        """From N, or with Ray from LEAST-MOST. Raises UserError."""
        least, mark, most = text.partition("-")
        if mark and not ray:
            raise UserError(f"--replicas: {text!r} is a range, between which Ray Serve chooses; write a number, or add --ray")
        try:
            found = cls(least=int(least), most=int(most if mark else least))
            if 1 <= found.least <= found.most <= 256:
                return found
        except ValueError:
            pass
        raise UserError(f"--replicas: {text!r} is no number of processes; write 2, or with --ray 2-8 (256 at most)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user wants. `host` None: the loopback; `port` 0: any free one. `ray`: Ray Serve is to answer."""

    name: str
    model: str
    follow: bool
    trial: int | None
    canary: Canary | None
    replicas: Count
    ray: bool
    host: str | None
    port: int


def serve(places: Places, asked: Asked) -> None:
    """Serves until SIGTERM or Ctrl-C. Raises UserError and UserCodeError for what cannot be served."""
    host = guarded(asked.host)
    store = places.known(asked.name)
    sockets = _listening(host, asked.port)
    port = sockets[0].getsockname()[1]
    on_ray = None
    if asked.ray:
        _need_ray_serve()
        for one in sockets:  # the port is free: Ray's proxies take it
            one.close()
        sockets = []
        on_ray = OnRay(
            host=host or LOOPBACK, port=port, least=asked.replicas.least, most=asked.replicas.most, state=places.root,
            version=secrets.token_hex(8),
        )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log = log_to_terminal()
    scratch = Path(tempfile.mkdtemp(prefix="regrow-serve-"))
    common = setup(
        experiment=asked.name, model=asked.model, code=os.getcwd(), scratch=scratch,
        share=asked.canary.share if asked.canary is not None else 0.0, ray=on_ray,
    )
    replicas = Replicas(common, sockets, 1 if on_ray is not None else asked.replicas.least)
    wanted = [Wanted(role="main", trial=asked.trial)]
    if asked.canary is not None:
        wanted.append(Wanted(role="canary", trial=asked.canary.trial))
    following = Following(name=asked.name, store=store, replicas=replicas, wanted=tuple(wanted), scratch=scratch)
    failed = _Failed()
    reader = threading.Thread(target=failed.caught, args=(following, asked.follow, stop, places.remote), daemon=True)
    try:
        replicas.start(stop=stop)
        where = f"http://{addresses.names(host)[0] if host else LOOPBACK}:{port}"
        log.info("%s at %s/predict, described at %s/docs; Ctrl-C ends it", asked.name, where, where)
        reader.start()
        stop.wait()
        if failed.error is not None:
            raise failed.error
    finally:
        replicas.end()
        for one in sockets:
            one.close()
        if reader.ident is not None:
            reader.join(RESTORE_SECONDS)  # else it may write files of a checkpoint into the folder that is removed
        shutil.rmtree(scratch, ignore_errors=True)


class _Failed:
    """Why the thread that follows the log has ended everything; None if it has not."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def caught(self, following: Following, follow: bool, stop: threading.Event, remote: bool) -> None:
        try:
            if follow:
                following.follow(stop, remote=remote)
            else:
                following.once(stop)
        except BaseException as error:  # noqa: BLE001 - of a thread: it is raised where the command ends
            self.error = error
            stop.set()


def guarded(host: str | None) -> str | None:
    """`host` if it is more than the loopback, else None. Raises UserError without a token for it, or with a short one."""
    beyond = addresses.beyond(host)
    token = os.environ.get(TOKEN)
    if token is not None and len(token.strip()) < SHORTEST_TOKEN:
        raise UserError(f"{TOKEN} is too short to be a secret; `openssl rand -hex 16` makes one")
    if beyond is not None and token is None:
        raise UserError(f"--host: {TOKEN} is not set; nobody else may ask without one (`openssl rand -hex 16` makes one)")
    return beyond


def _listening(host: str | None, port: int) -> list[socket.socket]:
    try:
        return addresses.listen(host, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port: {port} cannot be had ({error}); name another one, or 0 for any that is free") from None


def _need_ray_serve() -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        raise UserError('--ray: Ray Serve is not installed (grpc_reflection is missing); pip install "regrow[serve]"')
