"""`regrow serve`: serves an experiment's best checkpoint, by our processes or by Ray Serve."""

from __future__ import annotations

import importlib.util
import os
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.apps.serving.canary_rollout import CanaryRollout
from regrow.apps.serving.choosing import Checkpoints, LoggedModels, ModelSource
from regrow.apps.serving.following import Following, Replicated, ServeTarget
from regrow.apps.serving.messages import OnRay, Setup
from regrow.apps.serving.mlflow_model import MODEL
from regrow.apps.serving.replicas import Replicas
from regrow.apps.serving.running import LOOPBACK, Listeners, answer, token_in
from regrow.apps.serving.series import ExperimentSeries
from regrow.apps.serving.status import ServingStatus
from regrow.infra.machine import addresses
from regrow.infra.state import served
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.recurrence import experiments_of
from regrow.search.rollout import Canary, Gate
from regrow.search.spec.station import MOST_REPLICAS
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Number of replicas: `least` to `most`."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str, *, ray: bool) -> Count:
        """Parse N, or with Ray LEAST-MOST. Raises SpecError."""
        least, mark, most = text.partition("-")
        if mark and not ray:
            raise SpecError(
                "--replicas",
                text,
                "is a range, between which Ray Serve chooses",
                "write a number, or add --ray",
            )
        try:
            found = cls(least=int(least), most=int(most if mark else least))
            if 1 <= found.least <= found.most <= MOST_REPLICAS:
                return found
        except ValueError:
            pass
        hint = f"write 2, or with --ray 2-8 ({MOST_REPLICAS} at most)"
        raise SpecError("--replicas", text, "is no number of processes", hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """The user's options.

    Attributes:
        model: the user's class; None: the models that trials logged to MLflow.
        trial: serve only this trial; None: the best of all.
        canary: None for none.
        ray: whether Ray Serve answers.
        host: additional address to listen on; None: the loopback only.
        port: 0: any free one.
        gate: conditions for checkpoints; None for none.
        series: whether the name is a schedule's or an experiment's, which then need not exist yet;
            None: whichever exists.

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


def serve(places: Places, asked: ServeRequest, status: ServingStatus | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises UserError and UserCodeError if it cannot be served."""
    status = status or ServingStatus()
    _check_canary(asked)
    host, token = addresses.beside_loopback(asked.host), token_in(served.token_file(places))
    if asked.series is None:
        store = None if _is_series(places, asked) else places.known(asked.name)
    else:
        store = None if asked.series else places.store(asked.name)
    listeners = Listeners.open(host, asked.port)
    status.listens(listeners.address, listeners.port)
    on_ray = None
    if asked.ray:
        _need_ray_serve()
        listeners.close()  # frees the port for Ray's proxies
        on_ray = OnRay(
            host=host or LOOPBACK,
            port=listeners.port,
            least=asked.replicas.least,
            most=asked.replicas.most,
            state=places.root,
            version=secrets.token_hex(8),
        )
    common = Setup(
        experiment=asked.name,
        model=asked.model or MODEL,
        code=os.getcwd(),
        ray=on_ray,
        share=asked.canary.share if asked.canary is not None else 0.0,
        gate="" if asked.gate is None else asked.gate.text,
    )
    wanted = [ServeTarget(role="main", trial=asked.trial)]
    if asked.canary is not None and asked.canary.trial is not None:
        wanted.append(ServeTarget(role="canary", trial=asked.canary.trial))

    def choose(replicas: Replicas, scratch: Path, stop: threading.Event) -> None:
        def source(of: Store) -> ModelSource:
            return Checkpoints(of) if asked.model is not None else LoggedModels(places.mlflow_uri)

        offered: Replicated = replicas
        if asked.canary is not None and asked.canary.trial is None:
            offered = CanaryRollout(replicas, asked.canary, status, stop)
        shared: dict[str, Any] = {
            "name": asked.name,
            "replicas": offered,
            "scratch": scratch,
            "gate": asked.gate,
            "status": status,
        }
        following: Following | ExperimentSeries
        if store is None:
            following = ExperimentSeries(places=places, source=source, **shared)
        else:
            following = Following(store=store, source=source(store), wanted=tuple(wanted), **shared)
        if asked.follow:
            following.follow(stop, metered=places.storage.metered)
        else:
            following.once(stop)

    answer(common, listeners, 1 if asked.ray else asked.replicas.least, choose, token)


def _check_canary(asked: ServeRequest) -> None:
    """Raise SpecError for a canary that could never appear, or that Ray Serve does not support."""
    if asked.canary is not None and asked.canary.trial is None and (asked.ray or not asked.follow):
        problem = "goes without --ray" if asked.ray else "is for what comes later"
        hint = "leave --ray out" if asked.ray else "add --follow"
        raise SpecError(
            "--canary", asked.canary.text, problem, f"{hint}, or name a trial for good: 17=10%"
        )


def _is_series(places: Places, asked: ServeRequest) -> bool:
    """Return whether it is the name of a schedule with experiments, not of an experiment. Raises
    UserError if a trial of a schedule is named.
    """
    experiments = places.experiments()
    if asked.name in experiments or not experiments_of(asked.name, experiments):
        return False
    if asked.trial is not None or (asked.canary is not None and asked.canary.trial is not None):
        option = "--trial" if asked.trial is not None else "--canary"
        raise UserError(
            f"{option}: {asked.name!r} is a schedule; name one of its experiments, which have"
            " trials"
        )
    return True


def _need_ray_serve() -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        raise UserError(
            "--ray: Ray Serve is not installed (grpc_reflection is missing); pip install"
            ' "regrow[serve]"'
        )
