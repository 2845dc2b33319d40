"""The models that one process answers with: which one a request gets, and how one takes another's place."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from regrow.serving.batching import Batcher, Limits
from regrow.serving.messages import Chosen, Role
from regrow.serving.served import Served
from regrow.serving.users_class import Computing


class Model:
    """A loaded checkpoint that answers."""

    def __init__(self, chosen: Chosen, computing: Computing, kind: type[Served], told: Any = None) -> None:
        self.chosen = chosen
        self.answered = self.failed = 0
        self.headers = {"Regrow-Trial": str(chosen.trial), "Regrow-Step": str(chosen.step)}

        def run(inputs: list[Any]) -> Any:
            if told is not None:
                told(str(chosen.trial), len(inputs))
            return computing.run(inputs)

        limits = Limits(most=kind.max_batch, wait=kind.max_wait, waiting=kind.max_waiting)
        self.batcher = Batcher(run, limits, computing.thread)


class Models:
    """The main model and, where there is one, the canary, which gets `share` (0 to 1) of the requests."""

    def __init__(self, share: float = 0.0, chance: random.Random | None = None) -> None:
        self.share = share
        self.main: Model | None = None
        self.canary: Model | None = None
        self.next: dict[Role, Model] = {}
        """Those that are loaded, and wait until every other process has loaded them, too."""
        self._chance = chance or random.Random()  # noqa: S311 - which request the canary gets is no secret
        self._closing: set[asyncio.Task[None]] = set()

    def pick(self) -> Model | None:
        """The model for the next request; None while there is none. By chance, as clients that ask in turns would always meet
        the same one otherwise.

        The first one answers as soon as it is loaded: another process may have switched already, and told its client to be ready.
        """
        if self.canary is not None and self._chance.random() < self.share:
            return self.canary
        return self.main or self.next.get("main")

    def release(self, role: Role, manifest: str) -> None:
        """The model that waits takes its place, if it is that of this manifest."""
        if role in self.next and self.next[role].chosen.manifest == manifest:
            self.switch(role, self.next.pop(role))

    def withdraw(self, role: Role) -> None:
        """Requests get the other one from now on."""
        self.next.pop(role, None)
        if role == "canary" and self.canary is not None:
            self._close(self.canary)
            self.canary = None

    def counts(self) -> dict[Role, tuple[int, int]]:
        """By role: requests that it has answered, and of these those that it failed."""
        there: dict[Role, Model | None] = {"main": self.main, "canary": self.canary}
        return {role: (model.answered, model.failed) for role, model in there.items() if model is not None}

    def switch(self, role: Role, model: Model) -> None:
        """From now on requests get it; those that the one before has begun end there."""
        before = self.main if role == "main" else self.canary
        if role == "main":
            self.main = model
        else:
            self.canary = model
        if before is not None:
            self._close(before)

    def _close(self, model: Model) -> None:
        closing = asyncio.ensure_future(model.batcher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
