"""Where the records of an attempt are in MLflow, as the attempt asks for it: the port, and what it answers with."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Tracked(msgspec.Struct, frozen=True, kw_only=True):
    """The MLflow run that an attempt's own logging goes to, and the MLflow experiment that it is in."""

    run_id: str
    experiment_id: str
    reported: tuple[str, ...] = ()
    """Names of metrics that the experiment's trials have reported so far."""
    superseded: tuple[tuple[str, int], ...] = ()
    """The runs that this one continues from a checkpoint, the last one first, and until when (ms since the epoch) what is
    in each still holds."""


class Records(Protocol):
    """Whoever records the experiment."""

    tracking_uri: str
    """May hold a password: for MLflow's client alone."""
    artifact_root: str | None
    """Where MLflow's artifacts are if they are kept in files; None: as MLflow, or its server, has it."""

    def run_of(self, trial: int, attempt: int) -> tuple[Tracked | None, str | None]:
        """The run of an attempt, None if it is not there yet, after waiting for a second or so; and what is in the way, if that
        is known. Raises nothing.
        """
        ...
