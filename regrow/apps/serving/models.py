"""The models of one process: which one a request gets, and how one replaces another."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

from regrow.apps.serving.batching import Batcher, Limits
from regrow.apps.serving.messages import Chosen, Role
from regrow.apps.serving.served import Served
from regrow.apps.serving.users_class import Computing

HUNG_EXIT = 76
"""Exit code of a process whose `predict` hangs (EX_PROTOCOL)."""


class LoadedCheckpoint:
    """A loaded checkpoint that answers requests."""

    def __init__(
        self,
        chosen: Chosen,
        computing: Computing,
        kind: type[Served],
        on_batch: Any = None,
        on_hang: Callable[[], object] = lambda: os._exit(HUNG_EXIT),
    ) -> None:
        """`on_hang`: ends this process, whose `predict` hangs."""
        self.chosen = chosen
        self.answered = self.failed = 0
        self.headers = {"Regrow-Trial": str(chosen.trial), "Regrow-Step": str(chosen.step)}

        def run(inputs: list[Any]) -> Any:
            if on_batch is not None:
                on_batch(str(chosen.trial), len(inputs))
            return computing.run(inputs)

        limits = Limits(
            most=kind.max_batch,
            wait=kind.max_wait,
            waiting=kind.max_waiting,
            seconds=kind.max_seconds,
        )
        self.batcher = Batcher(run, limits, computing.thread, on_hang)


class Models:
    """The main model and the canary, if there is one, with its `share` (0 to 1) of the requests."""

    def __init__(self, share: float = 0.0, chance: random.Random | None = None) -> None:
        self.share = share
        self._serving: dict[Role, LoadedCheckpoint] = {}
        self.next: dict[Role, LoadedCheckpoint] = {}
        """Loaded models that wait until every other process has loaded them, too."""
        self._chance = chance or random.Random()  # noqa: S311 - which request the canary gets is not security-relevant
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def main(self) -> LoadedCheckpoint | None:
        """The main model; None before the first one."""
        return self._serving.get("main")

    @property
    def canary(self) -> LoadedCheckpoint | None:
        """The canary; None for none."""
        return self._serving.get("canary")

    def pick(self) -> LoadedCheckpoint | None:
        """Return the model for the next request; None if there is none.

        The choice is random: clients that alternate would otherwise always get the same model. The
        first model answers as soon as it is loaded, even before the switch: another process may
        have switched already, and have answered its client that the server is ready.
        """
        if self.canary is not None and self._chance.random() < self.share:
            return self.canary
        return self.main or self.next.get("main")

    def release(self, role: Role, manifest: str) -> None:
        """Switch to the waiting model if it has this manifest."""
        if role in self.next and self.next[role].chosen.manifest == manifest:
            self.switch(role, self.next.pop(role))

    def withdraw(self, role: Role) -> None:
        """Remove the model in that role; requests get the other one from now on."""
        self.next.pop(role, None)
        self._close(self._serving.pop(role, None))

    def counts(self) -> dict[Role, tuple[int, int]]:
        """Return, by role, how many requests its model has answered, and failed at."""
        return {role: (model.answered, model.failed) for role, model in self._serving.items()}

    def switch(self, role: Role, model: LoadedCheckpoint) -> None:
        """Give new requests the model; pending requests finish on the previous one."""
        before = self._serving.get(role)
        self._serving[role] = model
        self._close(before)

    def _close(self, model: LoadedCheckpoint | None) -> None:
        if model is None:
            return
        closing = asyncio.ensure_future(model.batcher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
