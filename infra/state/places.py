"""Where everything of a state root lives. The only module that knows the names of files and folders in it.

<state>/<experiment>/   log/ blobs/ manifests/ code/ control/: the experiment itself, all that must not be lost
                        logs/: what its trials printed; notes/: what people noted of it
<state>/.services/      the embedded Prefect server's and MLflow's files: rebuilt or not missed when deleted

With the state in S3, and on the machines of a cluster, which share the state's folder with others, the services' files are in a
local folder: $REGROW_HOME/<bucket>-<hash of the URL>/, by default below $XDG_DATA_HOME/regrow (~/.local/share/regrow).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regrow.infra.stores import open_store
from regrow.search.options import nearest
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Missing, Store

if TYPE_CHECKING:
    from regrow.infra.stores.s3 import S3Store

CLUSTER = "REGROW_ON"
"""Variable that names the cluster, in the environment of all that runs on its machines."""
AGAIN = "REGROW_AGAIN"
"""Variable with what people type to go on with an experiment that runs on a cluster."""
DEFAULT_STATE = "./.regrow"
TOMBSTONE = "log/removed"
"""The object that is written before an experiment is deleted, and deleted after all others: until then it is listed."""


class HalfRemoved(UserError):
    """The experiment was being removed when that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The addresses under one state root: an absolute local folder, or an S3 URL in its one form."""

    root: str

    @classmethod
    def at(cls, state: str | None) -> Places:
        """The state root: as given, else $REGROW_STATE, else ./.regrow. Raises UserError for a place that cannot be.

        No S3 is asked: whether the bucket is there shows with the first request.
        """
        chosen = state or os.environ.get("REGROW_STATE") or DEFAULT_STATE
        if chosen.startswith("s3://"):
            from regrow.infra.stores.s3 import parse_s3, s3_url

            return cls(root=s3_url(*parse_s3(chosen)))
        if "://" in chosen and not chosen.startswith("file://"):
            open_store(chosen)  # raises, saying what is supported
        root = Path(chosen.removeprefix("file://")).expanduser().resolve()
        try:
            there = root.stat()
            if not stat.S_ISDIR(there.st_mode):
                raise UserError(f"the state root {root} is not a folder; choose another with --state or REGROW_STATE")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unusable(root, "used", error) from error
        return cls(root=str(root))

    def writable(self) -> Places:
        """Itself, after making sure that the root can be written. Raises UserError if it cannot."""
        if self.remote and self not in _proven:
            self._s3().prove()
            _proven.add(self)
        try:
            self.services.mkdir(parents=True, exist_ok=True)
            probe = self.services / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise _unusable(self.services if self.shared else self.root, "written", error) from error
        return self

    @property
    def remote(self) -> bool:
        """Whether the state is in S3."""
        return self.root.startswith("s3://")

    @property
    def shared(self) -> bool:
        """Whether other machines see the state as well, as far as that is known; a bucket, or a folder on a cluster."""
        return self.remote or bool(os.environ.get(CLUSTER))

    def address(self, experiment: str, key: str = "") -> str:
        """Where an experiment's objects are, or the one of them with this key: a path, or an S3 URL."""
        base, mark, options = self.root.partition("?")
        return f"{base}/{experiment}{key and '/'}{key}{mark}{options}"

    def command(self, verb: str, experiment: str, rest: str = "") -> str:
        """A command to type next, which finds this state root from where the user is."""
        if verb == "resume" and (again := os.environ.get(AGAIN)):
            return f"{again} {rest}".rstrip()
        words = ["regrow", verb, experiment, rest]
        if self != Places.at(None):
            words.append(f"--state {shlex.quote(self.root)}")
        return " ".join(word for word in words if word)

    @property
    def services(self) -> Path:
        """Files of the embedded services. One folder for each state root, also where two servers have buckets of one name."""
        if not self.shared:
            return Path(self.root) / ".services"
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        name = self.root.removeprefix("s3://").partition("/")[0].partition("?")[0] or "folder"
        digest = hashlib.sha256(f"{self.root}\n{endpoint}".encode()).hexdigest()[:12]
        return services_home() / f"{name}-{digest}"

    @property
    def prefect_home(self) -> Path:
        """Home of the embedded Prefect server."""
        return self.services / "prefect"

    @property
    def mlflow_uri(self) -> str:
        """Where MLflow's records go: the user's tracking server, else a sqlite file of this state root."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.services / 'mlflow.db'}"

    @property
    def mlflow_artifacts(self) -> str | None:
        """Root of MLflow's artifacts; None: as the user's tracking server has it."""
        return None if os.environ.get("MLFLOW_TRACKING_URI") else str(self.services / "mlflow-artifacts")

    def store(self, experiment: str) -> Store:
        """The durable store of an experiment."""
        return open_store(self.address(experiment))

    def known(self, experiment: str) -> Store:
        """The store of an experiment that is there. Raises UserError, naming those that are, for any other.

        HalfRemoved for one whose removal was begun.
        """
        self.has(experiment)
        self.refuse_removed(experiment)
        return self.store(experiment)

    def refuse_removed(self, experiment: str) -> None:
        """Raises HalfRemoved for an experiment whose removal was begun."""
        if self.removal_begun(experiment):
            rest = f"`{self.command('rm', experiment)}` removes the rest"
            raise HalfRemoved(f"experiment {experiment!r} is half-removed, and cannot be used any more; {rest}")

    def removal_begun(self, experiment: str) -> bool:
        """Whether somebody began to remove the experiment; one that is gone altogether is not there."""
        try:
            self.store(experiment).read(TOMBSTONE)
        except (Missing, ValueError):  # there is none, or it is no name of an experiment
            return False
        return True

    def has(self, experiment: str) -> None:
        """Raises UserError, naming those that are there, for an experiment of which nothing is."""
        if not self._has(experiment):
            there = self.experiments()
            hint = f"{near}; " if (near := nearest(experiment, there)).startswith("did") else ""
            raise UserError(
                f"there is no experiment {experiment!r} in {self.root} (there: {', '.join(there) or 'none'}); "
                f"{hint}start one with `regrow run FILE`, or name another state root with --state"
            )

    def size(self, experiment: str) -> tuple[int, int]:
        """How many objects an experiment has, and their bytes; in a bucket by a request for each thousand of them."""
        if self.remote:
            return self._s3().below(experiment).size()
        count = size = 0
        for folder, _, files in os.walk(Path(self.root) / experiment):
            for file in files:
                with suppress(OSError):  # deleted meanwhile
                    count, size = count + 1, size + os.lstat(os.path.join(folder, file)).st_size
        return count, size

    def experiments(self, known: Collection[str] = ()) -> list[str]:
        """Names of the experiments here, sorted; of those `known` a bucket is not asked one by one whether they hold anything.

        Raises UserError for a root that cannot be read.
        """
        # A driver that was killed before its first word leaves an empty log: there is nothing to go on with.
        if self.remote:
            root = self._s3()
            return [name for name in root.folders() if name in known or root.holds_any(f"{name}/log/")]
        try:
            return sorted(p.name for p in Path(self.root).iterdir() if (p / "log").is_dir() and any((p / "log").iterdir()))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unusable(self.root, "read", error) from error

    def _has(self, experiment: str) -> bool:
        """Whether the experiment is there, without looking at the others where that costs requests."""
        if not self.remote:
            return experiment in self.experiments()
        try:
            return self._s3().holds_any(f"{experiment}/log/")
        except ValueError:  # no name of an experiment
            return False

    def _s3(self) -> S3Store:
        from regrow.infra.stores.s3 import open_s3

        return open_s3(self.root)


_proven: set[Places] = set()
"""Roots in S3 that were tried by this process, and can be written."""


def services_home() -> Path:
    """Where this user's services keep their files if the state is not local: $REGROW_HOME, else in the XDG data folder."""
    if chosen := os.environ.get("REGROW_HOME"):
        return Path(chosen).expanduser().resolve()
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if os.path.isabs(data) else Path("~/.local/share").expanduser()  # as the XDG rules have it
    return base / "regrow"


def _unusable(root: Path | str, what: str, error: OSError) -> UserError:
    hint = "choose another with --state or REGROW_STATE"
    return UserError(f"the state root {root} cannot be {what} ({error.strerror}); {hint}")
