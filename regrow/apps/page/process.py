"""The page as a process of a command, for a state root without a station."""

from __future__ import annotations

import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regrow.infra.machine import addresses
from regrow.infra.machine.supervised import Supervised, await_ready, last_line, spawn
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError

BOOT_SECONDS = 60.0
"""Seconds without progress after which it counts as one that does not start."""
END_SECONDS = 5.0


@contextmanager
def page(places: Places, *, prefect: str, mlflow: str) -> Iterator[str]:
    """Serve the page of a state root within the block, on the loopback, and yield its address.

    `prefect` and `mlflow` are the addresses that it links to. Raises RegrowError if it does not
    start.
    """
    [listener, *others] = addresses.listen(None, 0)
    for other in others:
        other.close()
    with tempfile.NamedTemporaryFile() as output:
        url, log = f"http://127.0.0.1:{listener.getsockname()[1]}", Path(output.name)
        command = [sys.executable, "-P", "-m", "regrow.apps.page", "--state", places.root]
        links = {"REGROW_PAGE_PREFECT": prefect, "REGROW_PAGE_MLFLOW": mlflow}
        with listener:
            child = spawn(
                [*command, "--socket", str(listener.fileno())],
                log,
                environment={**os.environ, **links},
                inherited=(listener.fileno(),),
            )
        server = Supervised.of(child)
        try:
            if why := await_ready(
                lambda _: _answers(url), server.is_alive, seconds=BOOT_SECONDS, pid=server.pid
            ):
                raise RegrowError(f"the page {why}: {last_line(log)}")
            yield url
        finally:
            server.end(grace=END_SECONDS)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
