"""What this machine stores about a cluster: one folder per cluster, private to its owner.

<services' home>/clusters/<name>/
    cluster.yaml  the description from which it was started
    token         Ray's, required to submit work to the cluster
    environment   variables of its processes, one a line
    engine/       input of the engine, such as launcher.yaml
    log           output of the engine
    lock          held while a command starts or ends the cluster
    kept          exists if `regrow cluster up` or --keep left the cluster running
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from regrow.infra.clusters.description import Cluster
from regrow.infra.machine import locks, private_files
from regrow.infra.state import service_files
from regrow.search.errors import SpecError

_TOKEN_BYTES = 32
_WAIT_SECONDS = 1.0


class Folder:
    """The folder of a cluster."""

    def __init__(self, name: str) -> None:
        self.path = service_files.home() / "clusters" / name
        self.engine = self.path / "engine"
        self.log = self.path / "log"
        self.kept = self.path / "kept"

    def make(self) -> Folder:
        """Create the folder if needed, and return this object."""
        self.engine.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        return self

    @contextmanager
    def alone(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the cluster's lock within the block, so that one command of this machine at a time
        starts or ends it. Waits for another one.
        """
        file = self.make().path / "lock"
        lock = locks.take(file)
        if lock is None:
            say(
                "another command on this machine brings the cluster up, or ends it: waiting for"
                " that"
            )
            while lock is None:
                lock = locks.take(file, wait=_WAIT_SECONDS)
        with lock:
            yield

    @property
    def token_file(self) -> Path:
        """The file of the cluster's token, created on the first use."""
        file = self.path / "token"
        if not file.exists():
            self.make()
            private_files.create(file, secrets.token_hex(_TOKEN_BYTES))
        return file

    @property
    def token(self) -> str:
        """The cluster's token."""
        return self.token_file.read_text().strip()

    def environment_file(self, cluster: Cluster) -> Path:
        """Write the file with the variables of the cluster's processes, one `NAME=value` a line,
        and return its path. Raises SpecError.
        """
        file = self.make().path / "environment"
        private_files.replace(
            file,
            "".join(f"{name}={value}\n" for name, value in variables(cluster, os.environ).items()),
        )
        return file


def variables(cluster: Cluster, here: Mapping[str, str]) -> dict[str, str]:
    """Return the cluster's `env`, with the values from `here` of the variables that it refers to.
    Raises SpecError for one that is not set.
    """
    found: dict[str, str] = {}
    for name, written in cluster.env.items():
        variable = written.removeprefix("$")
        if variable != written and variable not in here:
            raise SpecError(
                f"env.{name}", written, "is not set here", f"export {variable}, or leave it out"
            )
        found[name] = here[variable] if variable != written else written
        if "\n" in found[name]:
            raise SpecError(
                f"env.{name}", "***", "has more than one line", "put it into a file, and name that"
            )
    return found
