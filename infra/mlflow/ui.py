"""MLflow's web page on an experiment's records, in a process of ours on loopback."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regrow.infra.machine.supervised import server
from regrow.infra.mlflow.database import make_sure_of
from regrow.infra.mlflow.parent_run import best_metric
from regrow.infra.mlflow.updates import EXPERIMENT_TAG, legal_name
from regrow.tasks.errors import UserError


@contextmanager
def mlflow_ui(
    tracking_uri: str, artifacts: str | None, *, services: Path, port: int | None = None
) -> Iterator[str]:
    """Run MLflow's page within the block. Yields its address. A tracking server has its own page,
    whose address is yielded unchanged.

    `services`: the folder with its password. `port` None: any free one. Raises UserError if `port`
    is taken, RegrowError if the server does not start.
    """
    if tracking_uri.startswith(("http://", "https://")):
        yield tracking_uri
        return
    make_sure_of(tracking_uri, artifacts)
    try:
        with socket.create_server(("127.0.0.1", port or 0)) as probe:
            port = probe.getsockname()[1]
    except OSError:
        raise UserError(
            f"port {port} is in use; give another with --mlflow-port, or leave it out"
        ) from None
    url = f"http://127.0.0.1:{port}"
    command, settings = server_command(tracking_uri, artifacts, services=services, port=port)
    variables = {**os.environ, **settings}
    with server("MLflow's server", command, f"{url}/health", environment=variables, folder=None):
        yield url


def server_command(
    tracking_uri: str, artifacts: str | None, *, services: Path, port: int, host: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command of MLflow's server on a database, and the variables that it needs beyond
    this process's.

    `services`: the folder with its password. `host`: where it listens in addition to the loopback,
    None: nowhere.
    """
    command = [sys.executable, "-P", "-m", "regrow.infra.mlflow.server"]
    command += ["--services", str(services), "--port", str(port)]
    command += ["--host", host] if host is not None else []
    command += ["--artifacts", artifacts] if artifacts is not None else []
    # The URI is in the environment rather than on the command line, which every user of the machine
    # can read: it may contain a password. PYTHONSAFEPATH keeps files in the current folder from
    # being imported, also by the server's children.
    return command, {
        "MLFLOW_BACKEND_STORE_URI": tracking_uri,
        "PYTHONSAFEPATH": "1",
        # Its job runners are processes of 250 MB each that a read-only page does not need.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }


def runs_page(
    url: str,
    experiment: str,
    metric: str,
    mode: str,
    *,
    only: str | None = None,
    auth: str | None = None,
) -> str:
    """Return the address of the page on an experiment's trials: best first, with their curves.

    The front page if MLflow does not know the experiment (yet). Without a filter and an order,
    MLflow would show only the parent run, collapsed.

    Args:
        url: address of MLflow's server.
        experiment: the MLflow experiment, which several of ours may share.
        metric: the objective.
        mode: min or max.
        only: id of the experiment whose trials are shown; None: all.
        auth: USER:PASSWORD; None: from the address or MLflow's own variables.

    """
    query = urllib.parse.urlencode({"experiment_name": experiment})
    url, credentials = _apart(url.rstrip("/"))
    request = urllib.request.Request(f"{url}/api/2.0/mlflow/experiments/get-by-name?{query}")
    if credentials := auth or credentials:
        basic = base64.b64encode(credentials.encode()).decode()
        request.add_header("Authorization", f"Basic {basic}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            number = json.load(answer)["experiment"]["experiment_id"]
    except (urllib.error.URLError, http.client.HTTPException, OSError, KeyError, ValueError):
        return url
    ours = "" if only is None else f" AND tags.`{EXPERIMENT_TAG}` = '{only}'"
    view = {
        "workflowType": "machine_learning",
        "compareRunsMode": "CHART",
        "searchFilter": "attributes.run_name LIKE 'trial-%'" + ours,
        "orderByKey": f"metrics.`{legal_name(best_metric(metric))}`",
        "orderByAsc": "true" if mode == "min" else "false",
    }
    query = urllib.parse.urlencode(view, quote_via=urllib.parse.quote)
    return f"{url}/#/experiments/{number}/runs?{query}"


def _apart(url: str) -> tuple[str, str]:
    """Return an address without USER:PASSWORD, and these, else those of MLflow's variables."""
    parts = urllib.parse.urlsplit(url)
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{n}", "") for n in ("USERNAME", "PASSWORD"))
    given, _, host = parts.netloc.rpartition("@")
    credentials = urllib.parse.unquote(given) or (f"{user}:{password}" if user else "")
    return parts._replace(netloc=host).geturl(), credentials
