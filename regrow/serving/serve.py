"""`regrow serve`: an experiment's best checkpoint, by processes of our own or by Ray Serve."""

from __future__ import annotations

import importlib.util
import os
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.recurrence import experiments_of
from regrow.search.rollout import Canary, Gate
from regrow.search.spec.serve import MOST_REPLICAS
from regrow.serving.following import Checkpoints, Following, Replicated, Source, Wanted
from regrow.serving.gradual import Gradually
from regrow.serving.logged import LoggedModels
from regrow.serving.messages import OnRay, Setup
from regrow.serving.mlflow_model import MODEL
from regrow.serving.replicas import Replicas
from regrow.serving.running import LOOPBACK, Doors, answer, guarded
from regrow.serving.series import Series
from regrow.serving.standing import Standing
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many replicas: `least` to `most`."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str, *, ray: bool) -> Count:
        """From N, or with Ray from LEAST-MOST. Raises SpecError."""
        least, mark, most = text.partition("-")
        if mark and not ray:
            raise SpecError("--replicas", text, "is a range, between which Ray Serve chooses", "write a number, or add --ray")
        try:
            found = cls(least=int(least), most=int(most if mark else least))
            if 1 <= found.least <= found.most <= MOST_REPLICAS:
                return found
        except ValueError:
            pass
        hint = f"write 2, or with --ray 2-8 ({MOST_REPLICAS} at most)"
        raise SpecError("--replicas", text, "is no number of processes", hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user wants.

    `model` None: what trials logged to MLflow. `host` None: the loopback; `port` 0: any free one. `ray`: Ray Serve is to answer.
    `series`: whether the name is a schedule's or an experiment's, which then need not be there yet; None: whichever is there.
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
    series: bool | None = None


def serve(places: Places, asked: Asked, standing: Standing | None = None) -> None:
    """Serves until SIGTERM or Ctrl-C. Raises UserError and UserCodeError for what cannot be served."""
    standing = standing or Standing()
    _check_canary(asked)
    host = guarded(asked.host)
    store = _store(places, asked)
    doors = Doors.open(host, asked.port)
    standing.listens(doors.address, doors.port)
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
    if asked.canary is not None and asked.canary.trial is not None:
        wanted.append(Wanted(role="canary", trial=asked.canary.trial))

    def choose(replicas: Replicas, scratch: Path, stop: threading.Event) -> None:
        def source(of: Store) -> Source:
            return Checkpoints(of) if asked.model is not None else LoggedModels(places.mlflow_uri)

        offered: Replicated = replicas
        if asked.canary is not None and asked.canary.trial is None:
            offered = Gradually(replicas, asked.canary, standing, stop)
        following: Following | Series
        if store is None:
            following = Series(
                name=asked.name, places=places, replicas=offered, scratch=scratch, gate=asked.gate, source=source,
                standing=standing,
            )
        else:
            following = Following(
                name=asked.name, store=store, source=source(store), replicas=offered, wanted=tuple(wanted), scratch=scratch,
                gate=asked.gate, standing=standing,
            )
        if asked.follow:
            following.follow(stop, remote=places.remote)
        else:
            following.once(stop)

    answer(common, doors, 1 if asked.ray else asked.replicas.least, choose)


def _check_canary(asked: Asked) -> None:
    """Raises SpecError for a canary that would never come, or that Ray Serve does not have."""
    if asked.canary is not None and asked.canary.trial is None and (asked.ray or not asked.follow):
        problem = "goes without --ray" if asked.ray else "is for what comes later"
        hint = "leave --ray out" if asked.ray else "add --follow"
        raise SpecError("--canary", asked.canary.text, problem, f"{hint}, or name a trial for good: 17=10%")


def _store(places: Places, asked: Asked) -> Store | None:
    """That of the experiment, None for a schedule. Raises UserError where neither is there."""
    if asked.series is not None:
        return None if asked.series else places.store(asked.name)
    return None if _is_series(places, asked) else places.known(asked.name)


def _is_series(places: Places, asked: Asked) -> bool:
    """Whether it is the name of a schedule with experiments, not of an experiment. Raises UserError for a trial of such a one."""
    there = places.experiments()
    if asked.name in there or not experiments_of(asked.name, there):
        return False
    if asked.trial is not None or (asked.canary is not None and asked.canary.trial is not None):
        option = "--trial" if asked.trial is not None else "--canary"
        raise UserError(f"{option}: {asked.name!r} is a schedule; name one of its experiments, which have trials")
    return True


def _need_ray_serve() -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        raise UserError('--ray: Ray Serve is not installed (grpc_reflection is missing); pip install "regrow[serve]"')
