"""What this machine keeps of a cluster: one folder for each, for its owner alone.

<services' home>/clusters/<name>/
    cluster.yaml  what it was brought up from
    token         Ray's, without which nobody gives the cluster work
    environment   variables of its processes, one a line
    engine/       what the engine was given, such as launcher.yaml
    log           what the engine said
    lock          held while a command brings the cluster up, or ends it
    kept          there for a cluster that `regrow cluster up` or --keep left up
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from regrow.infra.clusters.description import Cluster
from regrow.infra.machine import locks, private_files
from regrow.infra.state.places import services_home
from regrow.search.errors import SpecError

_TOKEN_BYTES = 32
_WAIT_SECONDS = 1.0


class Folder:
    """The folder of the cluster of this name."""

    def __init__(self, name: str) -> None:
        self.path = services_home() / "clusters" / name
        self.engine = self.path / "engine"
        self.log = self.path / "log"
        self.kept = self.path / "kept"

    def make(self) -> Folder:
        """Itself, after making sure that it is there."""
        self.engine.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        return self

    @contextmanager
    def alone(self, say: Callable[[str], None]) -> Iterator[None]:
        """Waits until no other command of this machine brings the cluster up or ends it, and keeps others waiting."""
        file = self.make().path / "lock"
        lock = locks.take(file)
        if lock is None:
            say("another command on this machine brings the cluster up, or ends it: waiting for that")
            while lock is None:
                lock = locks.take(file, wait=_WAIT_SECONDS)
        with lock:
            yield

    @property
    def token_file(self) -> Path:
        """The file of the cluster's token, which is made with the first use."""
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
        """The file with the variables of the cluster's processes, `NAME=value` one a line. Raises SpecError."""
        file = self.make().path / "environment"
        private_files.replace(file, "".join(f"{name}={value}\n" for name, value in variables(cluster, os.environ).items()))
        return file


def variables(cluster: Cluster, here: Mapping[str, str]) -> dict[str, str]:
    """The cluster's `env` with the values of the variables `here` that it names. Raises SpecError for one that is not set."""
    found: dict[str, str] = {}
    for name, written in cluster.env.items():
        variable = written.removeprefix("$")
        if variable != written and variable not in here:
            raise SpecError(f"env.{name}", written, "is not set here", f"export {variable}, or leave it out")
        found[name] = here[variable] if variable != written else written
        if "\n" in found[name]:
            raise SpecError(f"env.{name}", "***", "has more than one line", "put it into a file, and name that")
    return found
