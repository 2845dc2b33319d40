"""The deployment class for Ray Serve: the same application, models and batches as in our processes,
in a Ray actor.

The checkpoints to serve are the deployment's `user_config`, so that Ray passes them to each replica
it starts. Each replica restores them from the state, every byte verified. Imported on the cluster's
nodes, and by the deployer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from ray.util import metrics

from regrow.apps.serving.app import answers
from regrow.apps.serving.messages import Chosen, Setup
from regrow.apps.serving.metrics import INPUTS, SECONDS
from regrow.apps.serving.models import LoadedCheckpoint, Models
from regrow.apps.serving.users_class import Computing, example_of, found
from regrow.infra.state.places import Places
from regrow.tasks.checkpoint.saving import restore
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import temporary


class RayReplica:
    """A replica. `code`: folder of the class here; None: the working directory that Ray copied."""

    def __init__(self, setup: bytes, secret: bytes, code: str | None) -> None:
        self._setup, self._secret = msgspec.json.decode(setup, type=Setup), secret
        self._kind = found(self._setup.model, code or os.getcwd())
        self._models, self._counted = Models(self._setup.share), CountedByRay()
        self._answers = answers(
            self._kind, self._models, self._counted, self._setup.experiment, self._setup.gate
        )
        # On this machine the server removes this folder at its end, even if a replica is killed.
        beside = temporary.process_temp_dir() if code is None else Path(self._setup.metrics).parent
        self._folders = Path(tempfile.mkdtemp(prefix="serve-", dir=beside))
        self._count = 0
        self._kept: dict[str, list[Path]] = {}
        """By role: folders of the current and the previous checkpoint, which may be in use."""
        self._answering: dict[str, tuple[str, str]] = {}
        """By role: experiment and manifest of the current checkpoint; manifests of different
        experiments may have the same name.
        """

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application; Ray calls this once."""
        return self._answers.app(self._secret, beyond=self._setup.beyond)

    async def reconfigure(self, given: Sequence[dict[str, Any]]) -> None:
        """Switch to these checkpoints. Raises if one does not load: Ray replaces the replica."""
        for chosen in msgspec.convert(given, list[Chosen]):
            if self._answering.get(chosen.role) == (chosen.experiment, chosen.manifest):
                continue
            computing = await asyncio.to_thread(self._loaded, chosen)
            self._models.switch(
                chosen.role, LoadedCheckpoint(chosen, computing, self._kind, self._counted.batch)
            )
            self._answering[chosen.role] = chosen.experiment, chosen.manifest

    def _loaded(self, chosen: Chosen) -> Computing:
        ray = self._setup.ray
        assert ray is not None
        self._count += 1
        folder = self._folders / f"{self._count}"
        restored = restore(
            Places.at(ray.state).store(chosen.experiment or self._setup.experiment),
            [chosen.manifest],
            folder,
        )
        if restored.manifest is None:
            raise RegrowError(
                f"{chosen.manifest} cannot be restored:"
                f" {'; '.join(why for _, why in restored.skipped)}"
            )
        computing = Computing(
            self._kind, folder, chosen.config, example_of(self._kind, self._answers.sample)
        )
        kept = self._kept.setdefault(chosen.role, [])
        kept.append(folder)
        while len(kept) > 2:
            shutil.rmtree(kept.pop(0), ignore_errors=True)
        return computing

    def __del__(self) -> None:
        """Remove the files; Ray calls this once pending requests are answered."""
        if hasattr(self, "_folders"):
            shutil.rmtree(self._folders, ignore_errors=True)


class CountedByRay:
    """Counts with Ray's metrics, which each node's agent exports; one replica's say little."""

    content_type = "text/plain; charset=utf-8"

    def __init__(self) -> None:
        self._requests = metrics.Counter(
            "regrow_serve_requests", "Requests to /predict.", ("trial", "status")
        )
        self._seconds = metrics.Histogram(
            "regrow_serve_seconds", "From a request to its answer.", list(SECONDS), ("trial",)
        )
        self._batches = metrics.Histogram(
            "regrow_serve_batch_inputs",
            "Inputs of a call of predict.",
            [float(one) for one in INPUTS],
            ("trial",),
        )

    def answered(self, trial: str, status: int, seconds: float) -> None:
        self._requests.inc(1, {"trial": trial or "none", "status": str(status)})
        self._seconds.observe(seconds, {"trial": trial or "none"})

    def batch(self, trial: str, inputs: int) -> None:
        self._batches.observe(inputs, {"trial": trial})

    def text(self) -> bytes:
        return (
            b"# On Ray Serve each node's agent exports the metrics, among Ray's own, as"
            b" ray_regrow_serve_*.\n"
        )
