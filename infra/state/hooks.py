"""The secrets of schedules that a request may start, `POST /hooks/NAME`: a file that only the user may read."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regrow.infra.machine import locks, private_files
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError

_PATIENCE_SECONDS = 5.0
"""How long another process may take to write the file."""


def place(places: Places) -> Path:
    """The file: {schedule: secret}."""
    return places.services / "station" / "hooks.json"


def known(places: Places) -> dict[str, str]:
    """The secrets by schedule; none where the file is not there. Raises RegrowError for one that cannot be read."""
    file = place(places)
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RegrowError(f"{file} cannot be read ({error}); restore it, or remove it and schedule again with --hook") from error


def make(places: Places, schedule: str) -> Path:
    """Makes a secret for the schedule, unless it has one; returns the file."""
    with _alone(places):
        _write(places, {schedule: secrets.token_urlsafe(32), **known(places)})
    return place(places)


def forget(places: Places, schedule: str) -> None:
    """Removes the schedule's secret, if it has one."""
    if schedule in known(places):
        with _alone(places):
            _write(places, {name: secret for name, secret in known(places).items() if name != schedule})


def _write(places: Places, found: dict[str, str]) -> None:
    private_files.replace(place(places), json.dumps(found, indent=1))


@contextmanager
def _alone(places: Places) -> Iterator[None]:
    folder = place(places).parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = locks.take(folder / "hooks.lock", wait=_PATIENCE_SECONDS)
    if lock is None:
        raise RegrowError(f"{folder / 'hooks.lock'} is locked by another process that does not let go")
    with lock:
        yield
