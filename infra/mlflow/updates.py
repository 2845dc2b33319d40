"""What is written into MLflow for a run (`RunUpdate`), in the names and lengths that MLflow takes, and how writing may fail.

Nothing here knows the event log, and nothing imports mlflow: `sink.py` chooses between the two ways of writing.
"""

import getpass
import logging
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, Protocol, TypeAlias

from regrow.infra.mlflow.check import SERVER_ADVICE
from regrow.tasks.addresses import redacted
from regrow.tasks.errors import RegrowError

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
Point: TypeAlias = tuple[str, float, int, int]
"""A metric's name, value, step and time in milliseconds since 1970."""

# Tags by which a run is found again after a crash. They are the only link between MLflow and us.
KEY_TAG: Final = "regrow.key"
EXPERIMENT_TAG: Final = "regrow.experiment_id"
CURSOR_TAG: Final = "regrow.cursor"
SUPERSEDED_TAG: Final = "regrow.superseded"
RUN_NAME_TAG: Final = "mlflow.runName"

_PARAM_CHARS: Final = 6000  # mlflow.utils.validation.MAX_PARAM_VAL_LENGTH
_TAG_CHARS: Final = 8000  # MAX_TAG_VAL_LENGTH
_NAME_CHARS: Final = 250  # MAX_ENTITY_KEY_LENGTH, and the width of the column runs.name

# Read by mlflow at import or at each call; a user's own setting wins.
_ENVIRONMENT: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # else 70 lines about each fresh database in the user's terminal
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # MLflow's defaults (7 retries of 120 s) hold a flush for minutes; the recorder has its own patience.
    # And a repeated POST whose first answer got lost makes a second run: see `PublicWriter.load`.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class SinkUnavailable(RegrowError):
    """MLflow is away or overloaded: call `load()` later and go on from the cursor that it returns."""


class SinkRefused(RegrowError):
    """MLflow answered and said no (permission, a schema of another version, ...): repeating is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate:
    """All that changed for one MLflow run since the last write.

    `key` is ours and stable ("trial-12"; "experiment" for the parent); `name` is what MLflow shows. Times
    are milliseconds since 1970. `params` and `name` count on a run's first update only. A metric is (name,
    value, step, time), its value may be NaN or infinite; a point, once written, never changes its value or
    time (a trial that rewinds goes on in a new run, and the old one is `deleted`); there may be millions, so that they are
    taken as they come, each time anew. `status` None: as it
    was. `end_ms` goes with a status that ends the run. `deleted`: a superseded lineage, soft-deleted, so
    kept and restorable but out of MLflow's default views. `artifacts` are files by their path below the run's.
    """

    key: str
    name: str
    start_ms: int
    parent: bool = False
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Iterable[Point] = ()
    status: RunStatus | None = None
    end_ms: int | None = None
    deleted: bool = False
    artifacts: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What MLflow holds: our key -> MLflow's run id, and the cursor last written (None: write everything)."""

    run_ids: Mapping[str, str]
    cursor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a writer writes: one MLflow experiment, and in it the runs of one regrow experiment."""

    tracking_uri: str
    experiment_name: str
    experiment_id: str
    artifact_root: str | None

    @property
    def artifact_location(self) -> str | None:
        """The MLflow experiment's own folder under the root; None: MLflow's or its server's default."""
        if self.artifact_root is None:
            return None
        return f"{self.artifact_root.rstrip('/')}/{self.experiment_id}"


class Writer(Protocol):
    """One way of writing to one MLflow experiment; it raises `SinkUnavailable` and `SinkRefused`."""

    mlflow_experiment_id: str

    def load(self) -> Recorded: ...
    def write(self, updates: Sequence[RunUpdate], cursor: int) -> None: ...
    def run_id(self, key: str) -> str | None: ...
    def close(self) -> None: ...


def prepare_environment() -> None:
    """Before mlflow is imported: it is to be quiet, and not to try for minutes by itself."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def first_tags(update: RunUpdate, target: Target, parent_run_id: str | None) -> dict[str, str]:
    """The tags that a run gets at its creation: the update's, those MLflow's UI reads, and ours.

    Ours are there from the first moment, so a crash right after the creation cannot make a second run.
    """
    tags = {
        "mlflow.user": user(),
        "mlflow.source.name": "regrow",
        "mlflow.source.type": "LOCAL",
        RUN_NAME_TAG: update.name[:_NAME_CHARS],
        **cut_tags(update),
        KEY_TAG: update.key,
        EXPERIMENT_TAG: target.experiment_id,
    }
    if parent_run_id is not None:
        tags["mlflow.parentRunId"] = parent_run_id
    return tags


def cut_tags(update: RunUpdate) -> dict[str, str]:
    """The update's tags with names and lengths that MLflow takes, and our mark on a superseded run."""
    tags = {legal_name(key): value[:_TAG_CHARS] for key, value in update.tags.items()}
    if RUN_NAME_TAG in tags:  # it renames the run, in MLflow as here
        tags[RUN_NAME_TAG] = tags[RUN_NAME_TAG][:_NAME_CHARS]
    return {**tags, SUPERSEDED_TAG: "true"} if update.deleted else tags


def cut_params(update: RunUpdate) -> dict[str, str]:
    """The update's params with names and lengths that MLflow takes."""
    return {legal_name(key): value[:_PARAM_CHARS] for key, value in update.params.items()}


@lru_cache(maxsize=4096)
def legal_name(name: str) -> str:
    """`name` as MLflow takes it: other characters become "_", and it is never a path that leads elsewhere.

    One odd metric name ("acc@5") must not keep an experiment from being recorded.
    """
    legal = re.sub(r"[^\w./ :-]", "_", name, flags=re.ASCII)[:_NAME_CHARS]
    if posixpath.normpath(legal) != legal or legal.startswith((".", "/")):
        legal = "_" + legal.replace("/", "_").lstrip(".")
    return legal


@lru_cache(maxsize=1)
def user() -> str:
    """Who runs this process, as MLflow's client would say it."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user id without a name
        return "unknown"


def refusal(target: Target, error: Exception) -> SinkRefused:
    """MLflow's own words, and where they come from."""
    return SinkRefused(f"MLflow at {redacted(target.tracking_uri)} refused what regrow wrote: {error}")


def unavailable(target: Target, error: Exception) -> SinkUnavailable:
    """The same for a failure that may pass."""
    first = redacted(str(error)).partition("\n")[0]  # a database's goes on with the statement and its values
    return SinkUnavailable(f"MLflow at {redacted(target.tracking_uri)} is away: {first}. {SERVER_ADVICE}")
