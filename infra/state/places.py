"""Where everything of a state root lives: its addresses, and the names of its files and folders.

* `<state>/<experiment>/`: the experiment itself, which must not be lost: log/ blobs/ manifests/
  code/ control/. Output of its trials: logs/. Notes on it: notes/. What its trials
  log beside metrics: media/.
* `<state>/.services/`: files of the embedded Prefect and MLflow servers: rebuilt, or not missed,
  when deleted. Its on/<host>/ has the files of a second host that uses a shared file system at the
  same
  time. Elsewhere with the state in S3 and on clusters (service_files.py).

Nothing here knows a kind of store. What is kept in the root is asked of its adapter,
`Places.storage`; the services' files are those of service_files.py.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from regrow.infra.machine import sqlite
from regrow.infra.state import service_files
from regrow.infra.stores import Root, open_root
from regrow.search.options import nearest
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Missing, Store

CLUSTER = "REGROW_ON"
"""Environment variable with the name of the cluster, set for every process on its machines."""
AGAIN = "REGROW_AGAIN"
"""Environment variable with the command to type to resume an experiment that runs on a cluster."""
DEFAULT_STATE = "./.regrow"
TOMBSTONE = "log/removed"
"""Object written before an experiment is deleted, and deleted last: until then it is listed."""


class HalfRemoved(UserError):
    """The removal of the experiment was begun and interrupted."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """The addresses under one state root: an absolute local folder, or a URL in canonical form."""

    root: str

    @classmethod
    def at(cls, state: str | None) -> Places:
        """Return the state root: as given, else $REGROW_STATE, else ./.regrow. Raises UserError for
        an impossible place.

        A bucket is not contacted: the first request shows whether it exists.
        """
        return cls(root=open_root(state or os.environ.get("REGROW_STATE") or DEFAULT_STATE).url)

    def __getstate__(self) -> dict[str, str]:
        return {"root": self.root}  # each process opens its own adapter

    @cached_property
    def storage(self) -> Root:
        """The adapter of the store, which does what needs requests or system calls."""
        return open_root(self.root)

    # ---- names and addresses

    @property
    def folder(self) -> Path | None:
        """The folder of the state; None: it is in no local folder."""
        return Path(self.root) if os.path.isabs(self.root) else None

    @property
    def shared(self) -> bool:
        """Whether other machines see the state too: in a bucket, or in a folder on a cluster."""
        return self.storage.shared or bool(os.environ.get(CLUSTER))

    def address(self, experiment: str, key: str = "") -> str:
        """Return the address of an experiment's objects, or of one of them: a path, or a URL."""
        base, mark, options = (
            self.root.partition("?") if self.folder is None else (self.root, "", "")
        )
        return f"{base}/{experiment}{key and '/'}{key}{mark}{options}"

    @property
    def is_default(self) -> bool:
        """Return whether commands that are typed here find this state root without `--state`."""
        try:
            return self == Places.at(None)
        except UserError:  # such as for a current folder that was deleted
            return False

    def command(self, verb: str, experiment: str, rest: str = "") -> str:
        """Return a command to type next. It names this state root if it is not the default."""
        if verb == "resume" and (again := os.environ.get(AGAIN)):
            return f"{again} {rest}".rstrip()
        words = ["regrow", verb, experiment, rest]
        if not self.is_default:
            words.append(f"--state {shlex.quote(self.root)}")
        return " ".join(word for word in words if word)

    # ---- files of the services

    def writable(self) -> Places:
        """Check that the root can be written, and return this object. Raises UserError."""
        self.storage.check_writable()
        return self.prepared()

    def prepared(self) -> Places:
        """Create what is missing of the root and of the folder for this user's services, and return
        this object. Raises UserError.
        """
        service_files.make(self.storage, None if self.shared else self.folder)
        return self

    @property
    def services(self) -> Path:
        """Files of the embedded services on this host."""
        return service_files.folder(self.common)

    @property
    def common(self) -> Path:
        """What hosts with this root know of each other, and the services' files of the first."""
        return service_files.common(self.storage, None if self.shared else self.folder)

    @property
    def prefect_home(self) -> Path:
        """Home of the embedded Prefect server."""
        return self.services / "prefect"

    @property
    def mlflow_uri(self) -> str:
        """Where MLflow's records go: the user's server, else a sqlite file of this state root."""
        return os.environ.get("MLFLOW_TRACKING_URI") or sqlite.url_of(self.services / "mlflow.db")

    @property
    def mlflow_artifacts(self) -> str | None:
        """Root of MLflow's artifacts; None: decided by the user's tracking server."""
        if os.environ.get("MLFLOW_TRACKING_URI"):
            return None
        return sqlite.uri_of(self.services / "mlflow-artifacts")

    # ---- experiments

    def store(self, experiment: str) -> Store:
        """Return the durable store of an experiment."""
        return self.storage.store(experiment)

    def experiments(self, known: Collection[str] = ()) -> list[str]:
        """Return the names of the experiments here, sorted. Raises UserError if the root cannot be
        read.

        `known`: names for which a bucket is not asked whether they hold anything.
        """
        return self.storage.experiments(known)

    def known(self, experiment: str) -> Store:
        """Return the store of an existing experiment.

        Raises UserError, naming the existing experiments, if there is no such one; HalfRemoved if
        its removal was begun.
        """
        self.has(experiment)
        self.refuse_removed(experiment)
        return self.store(experiment)

    def has(self, experiment: str) -> None:
        """Raise UserError, naming those that exist, if there is no experiment of this name."""
        if not self.storage.has(experiment):
            names = self.experiments()
            hint = f"{near}; " if (near := nearest(experiment, names)).startswith("did") else ""
            raise UserError(
                f"there is no experiment {experiment!r} in {self.root} (there:"
                f" {', '.join(names) or 'none'}); {hint}start one with `regrow run FILE`, or name"
                " another state root with --state"
            )

    def refuse_removed(self, experiment: str) -> None:
        """Raise HalfRemoved for an experiment whose removal was begun."""
        if self.removal_begun(experiment):
            rest = f"`{self.command('rm', experiment)}` removes the rest"
            raise HalfRemoved(
                f"experiment {experiment!r} is half-removed, and cannot be used any more; {rest}"
            )

    def removal_begun(self, experiment: str) -> bool:
        """Return whether a removal was begun. False once the experiment is removed completely."""
        try:
            self.store(experiment).read(TOMBSTONE)
        except (Missing, ValueError):  # there is none, or the name is not valid
            return False
        return True
