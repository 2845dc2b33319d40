"""A station that listens beyond the loopback: what its parts are told then, and what people are told of it.

Ray stays on the loopback in any case, and so does the S3 server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from regrow.infra.machine import addresses, locks, private_files
from regrow.infra.state import passwords
from regrow.infra.state.passwords import USER, Passwords
from regrow.infra.state.places import Places
from regrow.station.record import Station
from regrow.tasks.errors import UserError

HOST = "REGROW_STATION_HOST"
"""Where the station listens beside the loopback; not set for nowhere."""
HOSTS = "REGROW_PAGE_HOSTS"
"""Further names by which it is asked, as through a proxy."""


def host() -> str | None:
    """Where the station of this process is to listen beside the loopback."""
    return os.environ.get(HOST) or None


def prepare(places: Places, asked: str | None) -> str | None:
    """Makes sure that a station could listen at `asked` as well, and makes its passwords; None if that is the loopback.

    Raises UserError.
    """
    where = addresses.beyond(asked)
    if where is None:
        return None
    if find_spec("flask_wtf") is None:
        raise UserError("--host: MLflow asks for passwords only with flask-wtf, which is missing: pip install 'regrow[station]'")
    services = places.writable().services
    if passwords.read(services) is None and locks.is_held(places.prefect_home / "server.lock"):
        raise UserError(
            f"--host: an experiment of {places.root} runs that knows no password yet; stop it first, and resume it on the station"
        )
    passwords.make(services)
    return where


def names(where: str) -> list[str]:
    """By which names the station is asked from elsewhere, the one to hand on first."""
    return [*addresses.names(where), *addresses.also_named(HOSTS)]


def mlflow_environment(folder: Path, known: Passwords, port: int, hosts: list[str]) -> dict[str, str]:
    """What MLflow's server needs to ask for the password; writes its settings, which only their owner may read."""
    file, database = folder / "mlflow-auth.ini", folder / "mlflow-auth.db"
    settings = {
        "default_permission": "MANAGE",  # whoever has an account here is of the team
        "database_uri": f"sqlite:///{database}", "admin_username": USER, "admin_password": known.mlflow,
        "auth_cache_ttl_seconds": "60",  # else a password's hash a request: 226 metrics a second rather than 1,130
    }
    text = "[mlflow]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())
    if not file.exists() or file.read_text() != text:
        database.unlink(missing_ok=True)  # its user has the password of another time
        private_files.replace(file, text)
    origins = [f"{scheme}://{name}:{port}" for name in hosts for scheme in ("http", "https")]
    allowed = [*hosts, "localhost", "127.0.0.1", "[::1]"]
    return {
        "MLFLOW_AUTH_CONFIG_PATH": str(file), "MLFLOW_FLASK_SERVER_SECRET_KEY": known.cookies,
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(one for name in allowed for one in (name, f"{name}:{port}")),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def how_to_hand_on(places: Places, station: Station, where: str) -> Iterator[str]:
    """Lines for people. No password is in them."""
    file = passwords.file_of(places.services)
    name, prefect = names(where)[0], station.prefect_url.rpartition(":")[2]
    yield f"it listens at {where}, too, and asks everybody for a password; the passwords are in {file}, which only you can read"
    yield f'page:    user {USER}, password "page" of that file'
    yield f'MLflow:  user {USER}, password "mlflow"; Prefect: {USER}:PASSWORD as one word, password "prefect"'
    yield "none of this is encrypted: have a VPN, an SSH tunnel or a proxy with TLS between; a colleague sets"
    yield f"  PREFECT_API_URL=http://{name}:{prefect}/api"
    yield f"  PREFECT_API_AUTH_STRING={USER}:PASSWORD"
    yield f"  MLFLOW_TRACKING_URI={station.mlflow_url}"
    yield f"  MLFLOW_TRACKING_USERNAME={USER}"
    yield "  MLFLOW_TRACKING_PASSWORD=PASSWORD"
