"""Replaces Ray's names by ours while a script runs, and restores them while regrow itself runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from regrow.integrations.tune.results import ResultGrid
from regrow.integrations.tune.tuner import Tuner, register_trainable, run, with_parameters

_PLACES: dict[str, tuple[tuple[str, ...], Any]] = {
    "Tuner": (("ray.tune", "ray.tune.tuner"), Tuner),
    "run": (("ray.tune", "ray.tune.tune"), run),
    "register_trainable": (("ray.tune", "ray.tune.registry"), register_trainable),
    "with_parameters": (
        ("ray.tune", "ray.tune.trainable.util", "ray.tune.trainable"),
        with_parameters,
    ),
    "ResultGrid": (("ray.tune", "ray.tune.result_grid"), ResultGrid),
}


class Replaced:
    """Context in which a script finds our names; within it, `apart` is a context with all of Ray's
    names.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._theirs: list[tuple[Any, str, Any]] = []
        self._ours: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        for name, (modules, thing) in _PLACES.items():
            for module in modules:
                self._put(importlib.import_module(module), name, thing)
        ray = importlib.import_module("ray")
        self._put(ray, "init", self._init)
        self._put(ray, "shutdown", lambda *_, **__: None)

    def __exit__(self, *_: object) -> None:
        for place, name, thing in self._theirs:
            setattr(place, name, thing)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Restore Ray's names within the block."""
        for place, name, thing in self._theirs:
            setattr(place, name, thing)
        try:
            yield
        finally:
            for place, name, thing in self._ours:
                setattr(place, name, thing)

    def _put(self, place: Any, name: str, thing: Any) -> None:
        if not hasattr(place, name):
            return
        self._theirs.append((place, name, getattr(place, name)))
        self._ours.append((place, name, thing))
        setattr(place, name, thing)

    def _init(self, address: str | None = None, **given: Any) -> None:
        if address is not None or given:
            words = ", ".join([*([f"address={address!r}"] if address else []), *given])
            self._say(
                f"ray.init({words}) is not needed: regrow starts Ray, or joins the cluster that"
                " RAY_ADDRESS names"
            )
