"""The recorder as an object, without its actor: what it says when it can't go on."""

from __future__ import annotations

import time
from typing import Any

import pytest
import ray

from regrow.infra.places import Places
from regrow.infra.recorder import Recorder


class Gone:
    """The handle of an actor that does not answer as it should."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def follow(self) -> Gone:
        return self

    def remote(self, *_: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ray.exceptions.RayActorError(), "the coordinator is gone"),
        (ValueError("a line that is no event"), "ValueError: a line that is no event"),
    ],
)
def test_nobody_waits_for_a_recorder_that_gave_up(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    monkeypatch.setattr(ray, "get_actor", lambda _: Gone(error))
    started = time.monotonic()
    trouble = Recorder("coordinator", Places(root="/nowhere"), "name", "sqlite://", None).drained(7, 60.0)
    assert trouble is not None
    assert trouble.startswith(said)
    assert time.monotonic() - started < 30
