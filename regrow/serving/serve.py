"""`regrow serve`: an experiment's best checkpoint, by processes of our own or by Ray Serve."""

from __future__ import annotations

import importlib.util
import os
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from regrow.infra.state.places import Places
from regrow.search.recurrence import experiments_of
from regrow.serving.following import Checkpoints, Following, Source, Wanted
from regrow.serving.gate import Gate
from regrow.serving.logged import LoggedModels
from regrow.serving.messages import OnRay, Setup
from regrow.serving.mlflow_model import MODEL
from regrow.serving.replicas import Replicas
from regrow.serving.running import LOOPBACK, Doors, answer, guarded
from regrow.serving.series import Series
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Store


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
    """What the user wants.

    `model` None: what trials logged to MLflow. `host` None: the loopback; `port` 0: any free one. `ray`: Ray Serve is to answer.
    """

    name: str
    model: str | None
    follow: bool
    trial: int | None
    canary: Canary | None
    replicas: Count
    ray: bool
    host: str | None
    port: int
    gate: Gate | None = None


def serve(places: Places, asked: Asked) -> None:
    """Serves until SIGTERM or Ctrl-C. Raises UserError and UserCodeError for what cannot be served."""
    host = guarded(asked.host)
    store = None if _is_series(places, asked) else places.known(asked.name)
    doors = Doors.open(host, asked.port)
    on_ray = None
    if asked.ray:
        _need_ray_serve()
        doors.close()  # the port is free: Ray's proxies take it
        on_ray = OnRay(
            host=host or LOOPBACK, port=doors.port, least=asked.replicas.least, most=asked.replicas.most, state=places.root,
            version=secrets.token_hex(8),
        )
    common = Setup(
        experiment=asked.name, model=asked.model or MODEL, code=os.getcwd(), ray=on_ray,
        share=asked.canary.share if asked.canary is not None else 0.0,
        gate="" if asked.gate is None else asked.gate.text,
    )
    wanted = [Wanted(role="main", trial=asked.trial)]
    if asked.canary is not None:
        wanted.append(Wanted(role="canary", trial=asked.canary.trial))

    def choose(replicas: Replicas, scratch: Path, stop: threading.Event) -> None:
        def source(of: Store) -> Source:
            return Checkpoints(of) if asked.model is not None else LoggedModels(places.mlflow_uri)

        following: Following | Series
        if store is None:
            following = Series(
                name=asked.name, places=places, replicas=replicas, scratch=scratch, gate=asked.gate, source=source
            )
        else:
            following = Following(
                name=asked.name, store=store, source=source(store), replicas=replicas, wanted=tuple(wanted), scratch=scratch,
                gate=asked.gate,
            )
        if asked.follow:
            following.follow(stop, remote=places.remote)
        else:
            following.once(stop)

    answer(common, doors, 1 if asked.ray else asked.replicas.least, choose)


def _is_series(places: Places, asked: Asked) -> bool:
    """Whether it is the name of a schedule with experiments, not of an experiment. Raises UserError for a trial of such a one."""
    there = places.experiments()
    if asked.name in there or not experiments_of(asked.name, there):
        return False
    if asked.trial is not None or asked.canary is not None:
        option = "--trial" if asked.trial is not None else "--canary"
        raise UserError(f"{option}: {asked.name!r} is a schedule; name one of its experiments, which have trials")
    return True


def _need_ray_serve() -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        raise UserError('--ray: Ray Serve is not installed (grpc_reflection is missing); pip install "regrow[serve]"')
