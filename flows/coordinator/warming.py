"""Processes of trials and of the coordinator, started early, with their imports."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regrow.flows.coordinator.actor import prepare_coordinator
from regrow.infra.machine import private_files
from regrow.infra.machine.processes import is_running
from regrow.infra.ray import cluster
from regrow.infra.ray.joining import TRIAL_ENV, TRIAL_MODULES
from regrow.search.spec import Spec

_NAME = re.compile(r"(\d{1,7})-[0-9a-f]{8}\.order")


@contextmanager
def warmed_up(spec: Spec, count: int, services: Path) -> Iterator[None]:
    """Start `count` processes for trials, and the coordinator's, with their imports.

    `services`: this host's folder of the state. The coordinator's arguments are there within the
    block, as it needs them after a restart, and a folder for temporary files may be cleaned by age.
    """
    cluster.warm_up(count, TRIAL_MODULES, runtime_env=TRIAL_ENV)
    order = services / "coordinators" / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.order"
    with suppress(OSError):  # such as of a full disk: it starts later then
        private_files.folder(order.parent)
        _remove_abandoned(order.parent)
        prepare_coordinator(order, spec)
    try:
        yield
    finally:
        with suppress(OSError):
            order.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove the files of drivers that were killed."""
    for file in folder.iterdir():
        named = _NAME.fullmatch(file.name)
        if named and not is_running(int(named[1])):
            file.unlink(missing_ok=True)
