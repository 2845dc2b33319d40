"""Where everything of a state root lives. The only module that knows the names of its files and
folders.

* `<state>/<experiment>/`: the experiment itself, which must not be lost: log/ blobs/ manifests/
  code/ control/. Output of its trials: logs/. Notes on it: notes/.
* `<state>/.services/`: files of the embedded Prefect and MLflow servers: rebuilt, or not missed,
  when deleted. Its on/<host>/ has the files of a second host that uses a shared file system at the
  same time (hosts.py).

With the state in S3, and on cluster machines, which share the state's folder, the services' files
are in a local folder: $REGROW_HOME/<bucket>-<hash of the URL>/, by default below
$XDG_DATA_HOME/regrow (~/.local/share/regrow). The same holds for a user of a state root whose
`.services` belongs to another user.

Permissions: `.services` is readable by its owner only, always; so is a root that is created here.
An existing root keeps its permissions, as a team may share it on purpose.
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

from regrow.infra.machine import private_files, sqlite
from regrow.infra.state import hosts
from regrow.infra.stores import local_path, open_store
from regrow.search.options import nearest
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Missing, Store

if TYPE_CHECKING:
    from regrow.infra.stores.s3 import S3Store

CLUSTER = "REGROW_ON"
"""Environment variable with the name of the cluster, set for every process on its machines."""
AGAIN = "REGROW_AGAIN"
"""Environment variable with the command to type to resume an experiment that runs on a cluster."""
DEFAULT_STATE = "./.regrow"
TOMBSTONE = "log/removed"
"""Object that is written before an experiment is deleted, and deleted last: until then the
experiment is listed.
"""


class HalfRemoved(UserError):
    """The removal of the experiment was begun and interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The addresses under one state root: an absolute local folder, or an S3 URL in its canonical
    form.
    """

    root: str

    @classmethod
    def at(cls, state: str | None) -> Places:
        """Return the state root: as given, else $REGROW_STATE, else ./.regrow. Raises UserError for
        an impossible place.

        S3 is not contacted: the first request shows whether the bucket exists.
        """
        chosen = state or os.environ.get("REGROW_STATE") or DEFAULT_STATE
        if chosen.startswith("s3://"):
            from regrow.infra.stores.s3 import parse_s3, s3_url

            return cls(root=s3_url(*parse_s3(chosen)))
        root = local_path(chosen)
        try:
            root = root.resolve()
            str(root).encode()
            there = root.stat()
            if not stat.S_ISDIR(there.st_mode):
                raise UserError(
                    f"the state root {root} is not a folder; choose another with --state or"
                    " REGROW_STATE"
                )
        except FileNotFoundError:
            if not root.is_absolute():  # the current folder was deleted
                raise UserError(
                    f"{chosen}: the folder in which you are is gone; go to another, or name the"
                    " whole path"
                ) from None
        except UnicodeEncodeError:
            name = os.fsencode(root).decode(errors="backslashreplace")
            raise UserError(
                f"the state root {name}: its path is not UTF-8, as MLflow has all paths; rename it"
            ) from None
        except OSError as error:
            raise _unusable(root, "used", error) from error
        return cls(root=str(root))

    def writable(self) -> Places:
        """Return this object after checking that the root can be written. Raises UserError if it
        cannot.
        """
        if self.remote and self not in _proven:
            self._s3().prove()
            _proven.add(self)
        try:
            if not self.remote:
                Path(self.root).mkdir(parents=True, exist_ok=True, mode=0o700)
            private_files.folder(self.common)
            # This host's folder, if the file system is shared and another host owns the outer one.
            hosts.settle(private_files.folder(self.common))
            services = self.services
            probe = services / f".probe-{os.getpid()}"
            probe.touch(mode=0o600)
            probe.unlink()
        except OSError as error:
            raise _unusable(
                self.root if self.services.parent == Path(self.root) else self.services,
                "written",
                error,
            ) from error
        return self

    @property
    def remote(self) -> bool:
        """Whether the state is in S3."""
        return self.root.startswith("s3://")

    @property
    def shared(self) -> bool:
        """Whether other machines see the state too, as far as known: in a bucket, or in a folder on
        a cluster.
        """
        return self.remote or bool(os.environ.get(CLUSTER))

    def address(self, experiment: str, key: str = "") -> str:
        """Return the address of an experiment's objects, or of the one with this key: a path, or an
        S3 URL.
        """
        base, mark, options = self.root.partition("?") if self.remote else (self.root, "", "")
        return f"{base}/{experiment}{key and '/'}{key}{mark}{options}"

    def command(self, verb: str, experiment: str, rest: str = "") -> str:
        """Return a command for the user to type next. It names this state root if the user's
        default is another.
        """
        if verb == "resume" and (again := os.environ.get(AGAIN)):
            return f"{again} {rest}".rstrip()
        words = ["regrow", verb, experiment, rest]
        if self != Places.at(None):
            words.append(f"--state {shlex.quote(self.root)}")
        return " ".join(word for word in words if word)

    @property
    def services(self) -> Path:
        """Files of the embedded services on this host."""
        return hosts.folder(self.common)

    @property
    def common(self) -> Path:
        """What hosts with this root know of each other, and the services' files of the first of
        these hosts. One folder per state root, even if two servers have buckets of the same name.
        """
        if not self.shared and not _anothers(inside := Path(self.root) / ".services"):
            return inside
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
        """Where MLflow's records go: the user's tracking server, else a sqlite file of this state
        root.
        """
        return os.environ.get("MLFLOW_TRACKING_URI") or sqlite.url_of(self.services / "mlflow.db")

    @property
    def mlflow_artifacts(self) -> str | None:
        """Root of MLflow's artifacts; None: decided by the user's tracking server."""
        return (
            None
            if os.environ.get("MLFLOW_TRACKING_URI")
            else sqlite.uri_of(self.services / "mlflow-artifacts")
        )

    def store(self, experiment: str) -> Store:
        """Return the durable store of an experiment."""
        return open_store(self.address(experiment))

    def known(self, experiment: str) -> Store:
        """Return the store of an existing experiment.

        Raises UserError, naming the existing experiments, if there is no such one; HalfRemoved if
        its removal was begun.
        """
        self.has(experiment)
        self.refuse_removed(experiment)
        return self.store(experiment)

    def refuse_removed(self, experiment: str) -> None:
        """Raise HalfRemoved for an experiment whose removal was begun."""
        if self.removal_begun(experiment):
            rest = f"`{self.command('rm', experiment)}` removes the rest"
            raise HalfRemoved(
                f"experiment {experiment!r} is half-removed, and cannot be used any more; {rest}"
            )

    def removal_begun(self, experiment: str) -> bool:
        """Return whether a removal of the experiment was begun. False once it is removed
        completely.
        """
        try:
            self.store(experiment).read(TOMBSTONE)
        except (Missing, ValueError):  # there is none, or the name is not valid
            return False
        return True

    def has(self, experiment: str) -> None:
        """Raise UserError, naming the existing experiments, if there is no experiment of this
        name.
        """
        if not self._has(experiment):
            there = self.experiments()
            hint = f"{near}; " if (near := nearest(experiment, there)).startswith("did") else ""
            raise UserError(
                f"there is no experiment {experiment!r} in {self.root} (there:"
                f" {', '.join(there) or 'none'}); {hint}start one with `regrow run FILE`, or name"
                " another state root with --state"
            )

    def size(self, experiment: str) -> tuple[int, int]:
        """Return how many objects an experiment has, and their bytes. In a bucket this takes one
        request per thousand objects.
        """
        if self.remote:
            return self._s3().below(experiment).size()
        count = size = 0
        for folder, _, files in os.walk(Path(self.root) / experiment):
            for file in files:
                with suppress(OSError):  # deleted meanwhile
                    count, size = count + 1, size + os.lstat(os.path.join(folder, file)).st_size
        return count, size

    def experiments(self, known: Collection[str] = ()) -> list[str]:
        """Return the names of the experiments here, sorted. Raises UserError if the root cannot be
        read.

        `known`: names for which a bucket is not asked whether they hold anything.
        """
        # A driver that was killed before its first write leaves an empty log folder: there is
        # nothing to resume.
        if self.remote:
            root = self._s3()
            return [
                name for name in root.folders() if name in known or root.holds_any(f"{name}/log/")
            ]
        try:
            return sorted(
                p.name
                for p in Path(self.root).iterdir()
                if (p / "log").is_dir() and any((p / "log").iterdir())
            )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unusable(self.root, "read", error) from error

    def _has(self, experiment: str) -> bool:
        """Return whether the experiment exists, without looking at the others where that costs
        requests.
        """
        if not self.remote:
            return experiment in self.experiments()
        try:
            return self._s3().holds_any(f"{experiment}/log/")
        except ValueError:  # not a valid name
            return False

    def _s3(self) -> S3Store:
        from regrow.infra.stores.s3 import open_s3

        return open_s3(self.root)


_proven: set[Places] = set()
"""Roots in S3 that this process has proved writable."""


def services_home() -> Path:
    """Return where this user's services keep their files if the state is not local: $REGROW_HOME,
    else in the XDG data folder.
    """
    if chosen := os.environ.get("REGROW_HOME"):
        return Path(chosen).expanduser().resolve()
    data = os.environ.get("XDG_DATA_HOME", "")
    # A relative XDG_DATA_HOME is ignored, as the XDG rules demand.
    base = Path(data) if os.path.isabs(data) else Path("~/.local/share").expanduser()
    return base / "regrow"


def _anothers(folder: Path) -> bool:
    """Return whether the folder belongs to another user, who may have written anything there."""
    try:
        return folder.stat().st_uid != os.getuid()
    except OSError:
        return False


def _unusable(root: Path | str, what: str, error: OSError) -> UserError:
    hint = "choose another with --state or REGROW_STATE"
    return UserError(f"the state root {root} cannot be {what} ({error.strerror}); {hint}")
