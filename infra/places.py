"""Where everything of a state root lives. The only module that knows the names of files and folders in it.

<state>/<experiment>/   log/ blobs/ manifests/ code/ control/: the experiment itself, all that must not be lost
<state>/.services/      the embedded Prefect server's and MLflow's files: rebuilt or not missed when deleted
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regrow.infra.log import Log
from regrow.infra.stores import open_store
from regrow.search.events import AnyEvent, Created, Opened, decode
from regrow.search.options import nearest
from regrow.search.planner import Planner
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Store

DEFAULT_STATE = "./.regrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The addresses under one state root, an absolute local folder."""

    root: Path

    @classmethod
    def at(cls, state: str | None) -> Places:
        """The state root: as given, else $REGROW_STATE, else ./.regrow. Raises UserError for a place that cannot be."""
        chosen = state or os.environ.get("REGROW_STATE") or DEFAULT_STATE
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
        return cls(root=root)

    def writable(self) -> Places:
        """Itself, after making sure that the root can be written. Raises UserError if it cannot."""
        try:
            self.services.mkdir(parents=True, exist_ok=True)
            probe = self.services / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise _unusable(self.root, "written", error) from error
        return self

    def command(self, verb: str, experiment: str, rest: str = "") -> str:
        """A command to type next, which finds this state root from where the user is."""
        words = ["regrow", verb, experiment, rest]
        if self != Places.at(None):
            words.append(f"--state {shlex.quote(str(self.root))}")
        return " ".join(word for word in words if word)

    @property
    def services(self) -> Path:
        """Files of the embedded services."""
        return self.root / ".services"

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
        return open_store(str(self.root / experiment))

    def known(self, experiment: str) -> Store:
        """The store of an experiment that is there. Raises UserError, naming those that are, for any other."""
        there = self.experiments()
        if experiment not in there:
            hint = f"{near}; " if (near := nearest(experiment, there)).startswith("did") else ""
            raise UserError(
                f"there is no experiment {experiment!r} in {self.root} (there: {', '.join(there) or 'none'}); "
                f"{hint}start one with `regrow run FILE`, or name another state root with --state"
            )
        return self.store(experiment)

    @contextmanager
    def held(self, experiment: str) -> Iterator[None]:
        """Marks the experiment as being run by this process. Raises UserError if another one on this machine runs it.

        A driver on another machine is not seen here; the log fences one of the two off.
        """
        path = self._lock(experiment)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"experiment {experiment!r} is running already; follow it with `regrow show`, end it with `regrow stop`"
                ) from None
            yield

    def alive(self, experiment: str) -> bool:
        """Whether a process on this machine runs the experiment."""
        try:
            with self._lock(experiment).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # nobody ever ran it, or it cannot be told; who writes will be told what is wrong
            return False
        return False

    def _lock(self, experiment: str) -> Path:
        return self.services / "running" / experiment

    def experiments(self) -> list[str]:
        """Names of the experiments here, sorted. Raises UserError for a root that cannot be read."""
        try:
            # A driver that was killed before its first word leaves an empty log: there is nothing to go on with.
            return sorted(p.name for p in self.root.iterdir() if (p / "log").is_dir() and any((p / "log").iterdir()))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unusable(self.root, "read", error) from error


def _unusable(root: Path, what: str, error: OSError) -> UserError:
    hint = "choose another with --state or REGROW_STATE"
    return UserError(f"the state root {root} cannot be {what} ({error.strerror}); {hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a log begins with, the last time it was opened, and its newest event; None each for an empty log."""

    created: Created | None
    opened: Opened | None
    last: AnyEvent | None


def survey(store: Store) -> Survey:
    """Looks through a whole log once, and verifies it, without folding it. Raises CorruptLog."""
    first = last = None
    opened = None
    for _, lines in Log.read(store):
        for line in lines:
            first, last = first or line, line
            if b'"opened"' in line and isinstance(event := decode(line), Opened):
                opened = event
    created = decode(first) if first else None
    return Survey(
        created=created if isinstance(created, Created) else None, opened=opened, last=decode(last) if last else None
    )


def read_events(store: Store) -> list[AnyEvent]:
    """All events of a log, oldest first; empty if there is none. Raises CorruptLog."""
    return [decode(line) for _, lines in Log.read(store) for line in lines]


def first_event(store: Store) -> AnyEvent | None:
    """The event that created the log, None for an empty log."""
    return next((decode(line) for _, lines in Log.read(store) for line in lines), None)


def replay(store: Store) -> Planner:
    """The planner as the log leaves it."""
    planner = Planner()
    for event in read_events(store):
        planner.apply(event)
    return planner
