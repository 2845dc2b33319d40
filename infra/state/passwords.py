"""The passwords of a state root's servers, made once and kept in one file that only its owner may
read.

The file is `<services>/station/passwords.json`, with the keys prefect, mlflow, page, cookies and
place. `place` is the inode number of the folder of services. Passwords that came with a copied or
unpacked state root are known to its giver. They have another `place`, and are not used.
"""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from regrow.infra.machine import locks, login, private_files
from regrow.tasks.errors import UserError

USER = "regrow"
"""The user name for all three servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """Passwords of Prefect, MLflow and the page. `cookies`: signs login links and cookies."""

    prefect: str = field(repr=False)
    mlflow: str = field(repr=False)
    page: str = field(repr=False)
    cookies: str = field(repr=False)

    @property
    def prefect_auth(self) -> str:
        """Value of PREFECT_API_AUTH_STRING."""
        return f"{USER}:{self.prefect}"

    @property
    def mlflow_auth(self) -> str:
        """USER:PASSWORD for MLflow's server."""
        return f"{USER}:{self.mlflow}"

    @property
    def mlflow_environment(self) -> dict[str, str]:
        """Environment variables with which MLflow's clients log in to its server."""
        return {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": self.mlflow}

    def link(self, server: str, url: str) -> str:
        """Return a page's address with a token that logs one browser in, once."""
        return login.link(url, self.cookies, server)

    def shown(self, server: str, url: str) -> str:
        """Return the address for printing, with a login token only on a terminal."""
        return self.link(server, url) if sys.stdout.isatty() and sys.stderr.isatty() else url


def file_of(services: Path) -> Path:
    """Return the passwords file of a folder of services."""
    return services / "station" / "passwords.json"


def used_links(services: Path) -> Path:
    """Return the folder with a file for each login link that was used and is still valid."""
    return private_files.folder(services / "station" / "used-links")


def read(services: Path) -> Passwords | None:
    """Return the passwords made for a folder of services, None for none. Raises UserError."""
    file = file_of(services)
    try:
        known = json.loads(file.read_text())
        found = Passwords(**{one.name: str(known[one.name]) for one in fields(Passwords)})
        return found if known.get("place") == services.stat().st_ino else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} cannot be read ({error}); delete it, and the next start makes new passwords"
        ) from None


def make(services: Path) -> Passwords:
    """Return the stored passwords, or make new ones if there are none."""
    if (known := read(services)) is not None:
        return known
    new = Passwords(**{one.name: secrets.token_urlsafe(24) for one in fields(Passwords)})
    file = file_of(services)
    private_files.folder(file.parent)
    if file.exists() and read(services) is None:  # it belongs to another folder: put it aside
        # One process at a time: a second one would put aside what the first makes.
        lock = locks.acquire(file.with_suffix(".lock"), wait=5.0)
        if lock is None:
            raise UserError(
                f"{file.with_suffix('.lock')} is locked by another process that does not let go;"
                " try again"
            )
        with lock:
            if file.exists() and read(services) is None:
                file.rename(file.with_suffix(".elsewhere"))
    # Never overwrite passwords that another process made meanwhile.
    private_files.create(file, json.dumps({**asdict(new), "place": services.stat().st_ino}))
    return read(services) or new
