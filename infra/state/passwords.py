"""The passwords of a station that listens beyond the loopback: made once, kept in one file that only its owner may read.

<services>/station/passwords.json   {"prefect": ..., "mlflow": ..., "page": ..., "cookies": ...}
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from regrow.infra.machine import private_files
from regrow.tasks.errors import UserError

USER = "regrow"
"""Whom all three know."""
_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """Those of the Prefect server, of MLflow's server, of the page; `cookies` signs the cookies of MLflow's server."""

    prefect: str = field(repr=False)
    mlflow: str = field(repr=False)
    page: str = field(repr=False)
    cookies: str = field(repr=False)

    @property
    def prefect_auth(self) -> str:
        """What stands in PREFECT_API_AUTH_STRING."""
        return f"{USER}:{self.prefect}"


def file_of(services: Path) -> Path:
    """Where they are kept, for a folder of services."""
    return services / "station" / "passwords.json"


def read(services: Path) -> Passwords | None:
    """Those of a folder of services; None where none were made. Raises UserError for a file that cannot be read."""
    file = file_of(services)
    try:
        known = json.loads(file.read_text())
        return Passwords(**{one.name: str(known[one.name]) for one in fields(Passwords)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} cannot be read ({error}); delete it, and `regrow up --host` makes new passwords") from None


def make(services: Path) -> Passwords:
    """Those that are kept, or new ones where there are none."""
    if (known := read(services)) is not None:
        return known
    new = Passwords(**{one.name: secrets.token_urlsafe(_BYTES) for one in fields(Passwords)})
    file = file_of(services)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    private_files.create(file, json.dumps(asdict(new)))  # never over those that another process made meanwhile
    return read(services) or new
