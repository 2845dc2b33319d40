"""`python -m regrow.infra.mlflow.server`: the process of MLflow's server, behind our guard.

Its database is passed in MLFLOW_BACKEND_STORE_URI, as the URI may contain a password. Of MLflow's
paths only those of experiments, runs, models, traces and data sets are open. The others start
programs (the assistant, jobs, scorers), call other services (the gateway), or make the server call
addresses (webhooks).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from regrow.infra.machine import addresses
from regrow.infra.machine.guard import JSON, EntryGuard, PasswordEntry, Rules
from regrow.infra.machine.http_server import Server, TransferConnection
from regrow.infra.state import passwords
from regrow.tasks.process import garbage

_PAGES = (
    r"/|/health|/version|/graphql|/get-artifact|/model-versions/get-artifact"
    r"|/static-files/.*|/v1/traces"
)
_PARTS = (
    "artifacts",
    "datasets",
    "experiments",
    "get-trace-artifact",
    "logged-models",
    "metrics",
    "model-versions",
    "registered-models",
    "runs",
    "server-info",
    "traces",
    "unified-traces",
    "upload-artifact",
)
"""Open path segments after `/api/2.0/mlflow/` and similar prefixes."""
_API = (
    rf"/(?:ajax-)?api/\d\.\d/(?:mlflow/(?:{'|'.join(_PARTS)})"
    r"|mlflow-artifacts/(?:artifacts|mpu|presigned))(?:/.*)?"
)
_SEARCH_OF_DATASETS = r"/(?:ajax-)?api/2\.0mlflow/experiments/search-datasets"
"""Without a slash after 2.0, as in MLflow."""
_OPEN = re.compile(rf"{_PAGES}|{_API}|{_SEARCH_OF_DATASETS}", re.DOTALL)
_FILES = re.compile(
    r"/(?:ajax-)?api/2\.0/(?:mlflow-artifacts/artifacts|mlflow/upload-artifact)(?:/.*)?", re.DOTALL
)
_CLOSED = ("runs/create-promptlab-run",)
"""Paths within an open part that call other services."""
_SEEN = (
    b"""<script>try { localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1","""
    b""" "true") } catch {}</script>"""
)
"""MLflow's pages open the pane of the assistant when a browser visits them for the first time, and
each new port counts as a first time. Only the browser's local storage remembers the visit, so the
page itself has to set it.
"""


def is_closed(path: str) -> bool:
    """Return whether a path is not served."""
    return _OPEN.fullmatch(path) is None or path.endswith(_CLOSED)


def bodies(path: str) -> Collection[str] | None:
    """Return the content types that MLflow accepts at a path; None: any, for files."""
    if _FILES.fullmatch(path):
        return None
    return ("application/x-protobuf", *JSON) if path == "/v1/traces" else JSON


def application(services: Path, artifacts: str | None, host: str | None) -> EntryGuard:
    """Return MLflow's application, guarded by the password in this folder of services."""
    from regrow.infra.mlflow.private import web_app

    app, pages = web_app(artifacts)
    pages.after_request(_opened_before)
    known = passwords.make(services)
    hosts, origins = addresses.known_as(host), addresses.also_named()
    rules = Rules(
        hosts=hosts, origins=origins, open=frozenset({"/health"}), closed=is_closed, bodies=bodies
    )
    entry = PasswordEntry(
        "mlflow", passwords.USER, known.mlflow, known.cookies, passwords.used_links(services)
    )
    return EntryGuard(app, entry=entry, rules=rules)


def _opened_before(response: Any) -> Any:
    from flask import request

    if request.path == "/" and response.mimetype == "text/html" and response.status_code == 200:
        response.direct_passthrough = False  # otherwise the file is sent unchanged
        response.set_data(response.get_data().replace(b"<head>", b"<head>" + _SEEN, 1))
        del response.headers["ETag"]  # it identifies the unchanged file
    return response


def main() -> None:
    """Serve until SIGTERM."""
    garbage.collect_rarely()
    os.umask(0o077)  # its database and artifacts are private to their owner
    arguments = argparse.ArgumentParser()
    arguments.add_argument(
        "--services", type=Path, required=True, help="the folder with the passwords"
    )
    arguments.add_argument("--port", type=int, required=True)
    arguments.add_argument("--host", help="where it listens beside the loopback")
    arguments.add_argument("--artifacts", help="where artifacts are kept that come by this server")
    options = arguments.parse_args()
    try:
        listening = addresses.listen(options.host, options.port)
    except OSError as error:
        sys.exit(f"port {options.port} cannot be used: {error}")
    app = application(options.services, options.artifacts, options.host)
    Server(app, grace=1, connection=TransferConnection, drains=False).run(sockets=listening)


if __name__ == "__main__":
    main()
