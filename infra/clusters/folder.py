"""What this machine stores about a cluster: one folder per cluster, private to its owner.

<services' home>/clusters/<name>/
    submissions   what was submitted from here, where only this machine knows it
    known_hosts   keys of machines seen by SSH
    engine/       input of the engine, such as a file for sbatch
    lock          held while a command starts or ends agents
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from regrow.infra.clusters.description import Cluster
from regrow.infra.machine import locks, private_files
from regrow.infra.state import service_files
from regrow.search.errors import SpecError


class Folder:
    """The folder of a cluster."""

    def __init__(self, name: str) -> None:
        self.path = service_files.home() / "clusters" / name
        self.engine = self.path / "engine"

    def make(self) -> Folder:
        """Create the folder if needed, and return this object."""
        for folder in (self.path, self.engine):
            private_files.folder(folder)
        return self

    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the cluster's lock within the block, so that one command of this machine at a time
        starts or ends it. Waits for another one.
        """
        file = self.make().path / "lock"
        lock = locks.acquire(file)
        if lock is None:
            say(
                "another command on this machine starts agents of the cluster, or ends them:"
                " waiting for that"
            )
            while lock is None:
                lock = locks.acquire(file, wait=1.0)
        with lock:
            yield


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
        problem = "has more than one line" if "\n" in found[name] else ""
        try:
            found[name].encode()
        except UnicodeEncodeError:
            problem = "is not text in UTF-8"
        if problem:
            raise SpecError(f"env.{name}", "***", problem, "put it into a file, and name that")
    return found
