"""Experiments that the station was to resume automatically and could not: why, and since when,
until their next session begins.

For display only; one file each below the station's folder.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from regrow.infra.machine import private_files
from regrow.infra.state.places import Places


class ResumeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an experiment could not be resumed. `t`: seconds since the epoch."""

    t: float
    why: str


def record(places: Places, name: str, why: str) -> None:
    """Record the failure, replacing an earlier one."""
    private_files.folder(_folder(places))
    private_files.replace(
        _folder(places) / name, msgspec.json.encode(ResumeFailure(t=time.time(), why=why))
    )


def remove(places: Places, name: str) -> None:
    """Remove the record: a session begins, or the experiment is gone."""
    with suppress(OSError):
        (_folder(places) / name).unlink()


def read(places: Places) -> dict[str, ResumeFailure]:
    """Return the records by the experiments' names."""
    found = {}
    with suppress(OSError):
        for file in sorted(_folder(places).iterdir()):
            with suppress(OSError, msgspec.DecodeError):
                found[file.name] = msgspec.json.decode(file.read_bytes(), type=ResumeFailure)
    return found


def describe(places: Places, name: str, one: ResumeFailure) -> str:
    """Return the record as a line for people."""
    return (
        f"the station could not continue with {name} by itself: {one.why};"
        f" `{places.command('resume', name)}` continues"
    )


def _folder(places: Places) -> Path:
    return places.services / "station" / "unhealed"  # its name from the first on
