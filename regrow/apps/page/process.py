"""The page as a process of a command, for a state root without a station."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from regrow.infra.machine import addresses
from regrow.infra.machine.supervised import server
from regrow.infra.state.places import Places


@contextmanager
def page(places: Places, *, prefect: str, mlflow: str) -> Iterator[str]:
    """Serve the page of a state root within the block, on the loopback, and yield its address.

    `prefect` and `mlflow` are the addresses that it links to. Raises RegrowError if it does not
    start.
    """
    [listener] = addresses.listen(None, 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    command = [sys.executable, "-P", "-m", "regrow.apps.page", "--state", places.root]
    links = {"REGROW_PAGE_PREFECT": prefect, "REGROW_PAGE_MLFLOW": mlflow}
    command += ["--socket", str(listener.fileno())]
    variables = {**os.environ, **links}
    with server("the page", command, f"{url}/health", environment=variables, sockets=[listener]):
        yield url
