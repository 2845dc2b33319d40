"""What is written to MLflow for a run (`RunUpdate`), in a form that it accepts, and how that fails.

Nothing here knows the event log, or imports mlflow: `sink.py` chooses how to write.
"""

import getpass
import hashlib
import logging
import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, TypeAlias

from regrow.infra.mlflow.check import SERVER_ADVICE
from regrow.tasks.errors import RegrowError
from regrow.tasks.process.addresses import redacted

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
Point: TypeAlias = tuple[str, float, int, int]
"""A metric's name, value, step and time in milliseconds since 1970."""

# Tags by which a run is found again after a crash. They are the only link between MLflow's runs and
# ours.
KEY_TAG: Final = "regrow.key"
EXPERIMENT_TAG: Final = "regrow.experiment_id"
CURSOR_TAG: Final = "regrow.cursor"
SUPERSEDED_TAG: Final = "regrow.superseded"
RUN_NAME_TAG: Final = "mlflow.runName"

_MARK_CHARS: Final = 8
_NAME_CHARS: Final = 250  # MAX_ENTITY_KEY_LENGTH, and the width of the column runs.name

# Read by mlflow at import or at each call. The user's settings take precedence.
_ENVIRONMENT: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # otherwise 70 lines about each fresh database in the user's terminal
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # MLflow's defaults (7 retries of 120 s) block a flush for minutes, and the recorder does its
    # own retries. Also, a repeated POST whose first answer got lost creates a second run: see
    # `PublicWriter.load`.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class SinkUnavailable(RegrowError):
    """MLflow is away or overloaded: `load()` later, and continue from the cursor it returns."""


class SinkRefused(RegrowError):
    """MLflow refused (permission, a schema of another version, ...): a retry is useless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdate:
    """All that changed for one MLflow run since the last write. Times are milliseconds since 1970.

    Attributes:
        key: regrow's stable key ("trial-12"; "experiment" for the parent).
        name: the name that MLflow shows; used by a run's first update only.
        start_ms: start of the run.
        parent: whether it is the parent run.
        params: used by a run's first update only.
        tags: tags to set.
        metrics: points (name, value, step, time). A value may be NaN or infinite. A written point
            never changes its value or time (a trial that rewinds continues in a new run, and the
            old one is `deleted`). There may be millions, so they are iterated over, on each use
            from the start.
        status: None: unchanged.
        end_ms: goes with a status that ends the run.
        deleted: a superseded lineage. It is soft-deleted: kept and restorable, but not in MLflow's
            default views.
        artifacts: files by their path below the run's artifacts.
        media: functions that read what the trial logged, by paths below the run's artifacts.

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
    media: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a writer writes: one MLflow experiment, and in it the runs of one regrow experiment.

    Attributes:
        tracking_uri: MLflow's tracking URI.
        experiment_name: name of the MLflow experiment.
        experiment_id: regrow's id (a uuid): runs of another experiment of the same name are not
            touched.
        artifact_root: folder or URI for artifacts; None: decided by MLflow (`./mlruns` of the
            process that writes) or by its server.

    """

    tracking_uri: str
    experiment_name: str
    experiment_id: str
    artifact_root: str | None = None

    @property
    def artifact_location(self) -> str | None:
        """The MLflow experiment's folder under the root; None: MLflow's or its server's default."""
        if self.artifact_root is None:
            return None
        return f"{self.artifact_root.rstrip('/')}/{self.experiment_id}"


class Writer(Protocol):
    """One way of writing to an MLflow experiment. Raises `SinkUnavailable` and `SinkRefused`."""

    mlflow_experiment_id: str

    def load(self) -> int | None: ...
    def write(self, updates: Sequence[RunUpdate], cursor: int) -> None: ...
    def run_id(self, key: str) -> str | None: ...
    def close(self) -> None: ...


def prepare_environment() -> None:
    """Set mlflow's variables before its import: it prints little, and retries briefly."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def first_tags(update: RunUpdate, target: Target, parent_run_id: str | None) -> dict[str, str]:
    """Return the tags of a new run: the update's, those that MLflow's UI reads, and ours.

    Ours are set from the creation on, so that a crash right after it cannot lead to a second run.
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
    """Return the update's tags as MLflow accepts them, and our mark of a superseded run."""
    # mlflow.utils.validation.MAX_TAG_VAL_LENGTH
    tags = {legal_name(key): _storable(value)[:8000] for key, value in update.tags.items()}
    if RUN_NAME_TAG in tags:  # this tag renames the run, in MLflow and here
        tags[RUN_NAME_TAG] = tags[RUN_NAME_TAG][:_NAME_CHARS]
    return {**tags, SUPERSEDED_TAG: "true"} if update.deleted else tags


def cut_params(update: RunUpdate) -> dict[str, str]:
    """Return the update's params with names and lengths that MLflow accepts."""
    # mlflow.utils.validation.MAX_PARAM_VAL_LENGTH
    return {legal_name(key): _storable(value)[:6000] for key, value in update.params.items()}


def _storable(text: str) -> str:
    """Escape NUL, which PostgreSQL refuses in a text."""
    return text.replace("\0", "\\0")


@lru_cache(maxsize=4096)
def legal_name(name: str) -> str:
    """Return `name` in a form that MLflow accepts: letters of any script stay, other characters
    become "_", and it is never a path that leads elsewhere. A changed name ends in a hash of the
    original ("acc@5": "acc_5-c4e871ab"), so that no two names become equal.
    """
    legal = re.sub(r"[^\w./ :-]", "_", unicodedata.normalize("NFC", name))
    if posixpath.normpath(legal) != legal or legal.startswith((".", "/")):
        legal = "_" + legal.replace("/", "_").lstrip(".")
    if legal == name and len(name) <= _NAME_CHARS:
        return name
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK_CHARS]
    return f"{legal[: _NAME_CHARS - _MARK_CHARS - 1]}-{mark}"


@lru_cache(maxsize=1)
def user() -> str:
    """Return the user of this process, as MLflow's client names it."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user id without a name
        return "unknown"


def every_page(search: Callable[..., Any], *what: object, **how: object) -> Iterator[Any]:
    """Yield all results of one of MLflow's searches, page by page."""
    token: str | None = None
    while token is None or token:
        page = search(*what, **how, page_token=token)
        yield from page
        token = page.token or ""


def first_line(error: Exception) -> str:
    """Return the first line of an error of MLflow, without passwords."""
    return redacted(str(error)).strip().partition("\n")[0] or type(error).__name__


def refusal(target: Target, error: Exception) -> SinkRefused:
    """Return the error for a refusal, with MLflow's message and address."""
    return SinkRefused(
        f"MLflow at {redacted(target.tracking_uri)} refused what regrow wrote: {error}"
    )


def unavailable(target: Target, error: Exception) -> SinkUnavailable:
    """Return the error for a failure that may pass."""
    # A database's message continues with the statement and its values.
    return SinkUnavailable(
        f"MLflow at {redacted(target.tracking_uri)} is away: {first_line(error)}. {SERVER_ADVICE}"
    )
