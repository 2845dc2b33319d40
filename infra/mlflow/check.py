"""Checking within seconds whether a tracking URI is usable, without mlflow and without writing."""

import base64
import os
import re
import socket
import ssl
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from regrow.infra.machine.addresses import parts_of
from regrow.infra.machine.sqlite import file_of
from regrow.tasks.errors import UserError
from regrow.tasks.process.addresses import redacted

SERVER_ADVICE: Final = (
    "Start that server, correct MLFLOW_TRACKING_URI, or unset it: then regrow records into a local"
    " file."
)
_NAME_YOURSELF: Final = (
    "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
)
_USE_A_FILE: Final = "Use sqlite:////path/to/mlflow.db."
_DATABASE_PORTS: Final = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_UNAUTHORIZED, _FORBIDDEN = 401, 403


def check(tracking_uri: str, timeout_s: float) -> None:
    """Raise UserError if MLflow cannot be reached or written at `tracking_uri`.

    Costs one request (http), one connection (a database server) or one check of the folder
    (sqlite). Plug-ins and Databricks are not checked: only their own clients can tell.
    """
    scheme = parts_of(tracking_uri, "MLFLOW_TRACKING_URI").scheme.split("+")[0]
    if scheme in ("http", "https"):
        _check_server(tracking_uri, timeout_s)
    elif scheme == "sqlite":
        _check_file(tracking_uri)
    elif scheme in _DATABASE_PORTS:
        _check_port(tracking_uri, _DATABASE_PORTS[scheme], timeout_s)
    elif scheme in ("", "file") and tracking_uri not in ("databricks", "databricks-uc", "uc"):
        wrong = "is a folder, and MLflow no longer writes to folders"
        raise _error(tracking_uri, wrong, _USE_A_FILE)


def _error(tracking_uri: str, wrong: str, advice: str) -> UserError:
    return UserError(f"MLFLOW_TRACKING_URI={redacted(tracking_uri)} {wrong}. {advice}")


def _silent(tracking_uri: str, timeout_s: float, reason: object) -> UserError:
    why = str(reason).strip()
    return _error(tracking_uri, f"does not answer within {timeout_s:g} s ({why})", SERVER_ADVICE)


def _check_server(tracking_uri: str, timeout_s: float) -> None:
    # A real API call: /health does not need credentials, and servers other than MLflow have it,
    # too.
    address = f"{tracking_uri.rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1"
    # mlflow's client (requests) understands credentials in the URI; urllib does not.
    credentials = re.search(r"://([^/@]+)@", address)
    request = Request(address.replace(f"{credentials[1]}@", "", 1) if credentials else address)
    name = os.environ.get("MLFLOW_TRACKING_USERNAME")
    word = os.environ.get("MLFLOW_TRACKING_PASSWORD")
    basic = f"{name}:{word}" if name and word else unquote(credentials[1]) if credentials else None
    if basic:
        request.add_header("Authorization", f"Basic {base64.b64encode(basic.encode()).decode()}")
    elif token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        context = ssl.create_default_context(
            cafile=os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
        )
        if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            answer = urlopen(request, timeout=timeout_s, context=context)
        except HTTPError as error:
            answer = error
        with answer:
            body = answer.read(200).decode(errors="replace").strip()
    # URLErrors, timeouts and TLS failures are OSErrors; HTTPException: it does not speak HTTP.
    except (OSError, ValueError, HTTPException) as error:
        raise _silent(tracking_uri, timeout_s, getattr(error, "reason", error)) from None
    if isinstance(answer, HTTPError):
        refused = answer.code in (_UNAUTHORIZED, _FORBIDDEN)
        advice = _NAME_YOURSELF if refused else SERVER_ADVICE
        reply = body.partition("\n")[0] or answer.reason
        raise _error(tracking_uri, f"answers {answer.code}: {reply}", advice)
    if not body.startswith("{"):
        raise _error(tracking_uri, "answers, but it is no MLflow server", SERVER_ADVICE)


def _check_file(tracking_uri: str) -> None:
    place = tracking_uri.partition(":///")[2].partition("?")[0]
    if place in ("", ":memory:"):
        raise _error(tracking_uri, "is kept in memory and would be lost", _USE_A_FILE)
    file = file_of(tracking_uri) or Path(place.removeprefix("file:"))
    # MLflow creates the missing folders.
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    advice = "Choose a place that you may write to."
    if file.is_dir():
        advice = "Name a file in it: sqlite:////path/to/mlflow.db."
        raise _error(tracking_uri, "is a folder", advice)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise _error(tracking_uri, f"cannot be written: no right to write in {folder}", advice)
    if file.exists() and not os.access(file, os.W_OK):
        raise _error(tracking_uri, "cannot be written: the file is read-only", advice)


def _check_port(tracking_uri: str, usual_port: int, timeout_s: float) -> None:
    parts = urlsplit(tracking_uri)
    if not parts.hostname:  # a socket file or a service name: only the database driver can tell
        return
    try:
        place = parts.hostname, parts.port or usual_port
        socket.create_connection(place, timeout=timeout_s).close()
    except (OSError, ValueError) as error:
        raise _silent(tracking_uri, timeout_s, error) from None
