"""Secrets of the schedules that `POST /hooks/NAME` may start: a file for its owner only."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from regrow.infra.machine import locks, private_files
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError


def place(places: Places) -> Path:
    """Return the path of the file: {schedule: secret}."""
    return places.services / "station" / "hooks.json"


def known(places: Places) -> dict[str, str]:
    """Return the secrets by schedule; empty without a file. Raises RegrowError."""
    file = place(places)
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise RegrowError(
            f"{file} cannot be read ({error}); restore it, or remove it and schedule again with"
            " --hook"
        ) from error


def make(places: Places, schedule: str) -> Path:
    """Make a secret for the schedule, unless it has one. Returns the path of the file."""
    with _alone(places):
        _write(places, {schedule: secrets.token_urlsafe(32), **known(places)})
    return place(places)


def forget(places: Places, schedule: str) -> None:
    """Remove the schedule's secret, if it has one."""
    if schedule in known(places):
        with _alone(places):
            _write(
                places, {name: secret for name, secret in known(places).items() if name != schedule}
            )


def _write(places: Places, found: dict[str, str]) -> None:
    private_files.replace(place(places), json.dumps(found, indent=1))


@contextmanager
def _alone(places: Places) -> Iterator[None]:
    folder = place(places).parent
    private_files.folder(folder)
    lock = locks.acquire(folder / "hooks.lock", wait=5.0)
    if lock is None:
        raise RegrowError(
            f"{folder / 'hooks.lock'} is locked by another process that does not let go"
        )
    with lock:
        yield
