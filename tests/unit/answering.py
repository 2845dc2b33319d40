"""The application that answers, in this process, with models of made-up checkpoints. No test lives
here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import msgspec
from pydantic import BaseModel, Field

import regrow as rg
from regrow.apps.serving.app import Answers
from regrow.apps.serving.messages import Chosen, Role
from regrow.apps.serving.metrics import Metrics
from regrow.apps.serving.models import LoadedCheckpoint, Models
from regrow.apps.serving.users_class import Computing
from regrow.infra.machine.guard import digest

TOKEN = "a-token-of-a-test"
GIVEN = {"Authorization": f"Bearer {TOKEN}"}


class Double(rg.Served):
    """Twice the number."""

    class Input(BaseModel):
        x: float = Field(ge=0)

    def load(self, folder: Path, config: dict[str, Any]) -> None:
        self.by = config["by"]

    def predict(self, inputs: list[Input]) -> list[float]:
        return [each.x * self.by for each in inputs]


def chosen(trial: int, **changes: Any) -> Chosen:
    """A made-up checkpoint of a trial."""
    of_trial = Chosen(
        role="main",
        trial=trial,
        step=3,
        metric="score",
        mode="max",
        value=0.5,
        manifest=f"manifests/{trial}",
        folder="/none",
        config={},
        since=0.0,
        experiment="kept",
    )
    return msgspec.structs.replace(of_trial, **changes)


class Answering:
    """An application, and how it is asked."""

    def __init__(
        self,
        kind: type[rg.Served] = Double,
        *,
        beyond: bool = False,
        share: float = 0.0,
        trial: int | None = 7,
        by: float = 2,
    ) -> None:
        self.kind, self.metrics = kind, Metrics()
        self.models = Models(share, random.Random(1))
        self.answers = Answers(kind, self.models, self.metrics, "digits")
        self._made = self.answers.app(digest(TOKEN), beyond=beyond)
        self._first = None if trial is None else (trial, by)

    def switch(self, trial: int, by: float = 2, role: Role = "main") -> None:
        """Another checkpoint answers from now on."""
        self.models.switch(role, self._model(trial, by, role))

    def hold(self, trial: int, role: Role = "main") -> None:
        """Another checkpoint is loaded, and waits."""
        self.models.next[role] = self._model(trial, 2, role)

    def _model(self, trial: int, by: float, role: Role) -> LoadedCheckpoint:
        found = chosen(trial, role=role, config={"by": by}, experiment="")
        computing = Computing(self.kind, Path(found.folder), found.config)
        return LoadedCheckpoint(found, computing, self.kind, self.metrics.batch, lambda: None)

    def run(
        self,
        what: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]],
        base: str = "http://localhost:8000",
    ) -> Any:
        """What comes of it, with the application served."""

        async def whole() -> Any:
            if self._first is not None:
                self.switch(*self._first)
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app=self._made), base_url=base, headers=GIVEN
            ) as client:
                return await what(client)

        return asyncio.run(whole())

    def post(
        self, body: Any = None, base: str = "http://localhost:8000", **given: Any
    ) -> httpx.Response:
        """One request to /predict."""
        found: httpx.Response = self.run(
            lambda client: client.post("/predict", json=body, **given), base
        )
        return found

    def get(self, path: str, base: str = "http://localhost:8000", **given: Any) -> httpx.Response:
        """One request."""
        found: httpx.Response = self.run(lambda client: client.get(path, **given), base)
        return found
