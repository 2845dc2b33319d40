"""Access rules for the guard of a server that answers with a model."""

from __future__ import annotations

from collections.abc import Collection

from regrow.apps.serving.mlflow_model import PARQUET
from regrow.infra.machine.guard import JSON, Rules

OPEN = frozenset({"/healthz", "/readyz"})
"""Paths without a token: probes have none, and these answers reveal nothing about the model."""


def rules(*, beyond: bool) -> Rules:
    """Return the rules. `beyond`: the server listens on more than the loopback, so that its host
    names are unknown here.
    """
    return Rules(hosts=None if beyond else (), open=OPEN, bodies=_bodies)


def _bodies(path: str) -> Collection[str]:
    return (*JSON, "text/csv", PARQUET) if path == "/invocations" else JSON
