"""The sink: writes the runs of one experiment (`RunUpdate`, in `updates.py`) to MLflow.

Nothing here knows the event log. mlflow is not imported at the top: that costs 1.4 s of CPU (2.1 s
with its SQL store), so `load()` does it. The two ways of writing are in `bulk.py` (many runs in one
transaction, directly into sqlite or PostgreSQL) and `public.py` (MLflow's own client, for
everything else).
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.database import make_sure_of
from regrow.infra.mlflow.updates import (
    RunUpdate,
    SinkUnavailable,
    Target,
    Writer,
    first_line,
    prepare_environment,
    refusal,
    unavailable,
)
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process.addresses import redacted

BATCH_BYTES = 20_000_000
"""Bytes of artifacts that are written at a time, and may be exceeded by one file."""


class MlflowSink:
    """Writes the runs of one regrow experiment to MLflow, each point once, even if it is passed
    repeatedly.

    For use by one thread. Call `load()` first, and again after an error: it reads what an
    interrupted write left.
    """

    def __init__(self, target: Target) -> None:
        """Store the target, without connecting yet."""
        self.target = target
        self._writer: Writer | None = None
        self._cursor = 0
        self.troubles: list[str] = []
        """Lines about what could not be written although MLflow is available: artifacts."""

    def run_id(self, key: str) -> str | None:
        """Return MLflow's id of the run that was written under our key; None if none was."""
        return self._open_writer().run_id(key)

    @property
    def mlflow_experiment_id(self) -> str:
        """MLflow's id of the experiment, for links into its UI. Known after `load()`."""
        return self._open_writer().mlflow_experiment_id

    def load(self) -> int | None:
        """Create, find or restore the MLflow experiment, and read which of our runs it has. Return
        the cursor written last; None: everything is to be written.

        Raises `SinkUnavailable` (within seconds) or `SinkRefused`.
        """
        self.close()
        try:
            check(self.target.tracking_uri, timeout_s=5.0)
        except UserError as error:
            raise SinkUnavailable(str(error)) from error
        writer = _writer(self.target)
        cursor = writer.load()
        self._writer, self._cursor = writer, cursor or 0
        return cursor

    def write(self, updates: Sequence[RunUpdate], cursor: int) -> None:
        """Write `updates`, then `cursor`. Writing the same again changes nothing.

        The parent's first update must come first or in the same call. Raises `SinkUnavailable` or
        `SinkRefused`: then a part may be written, and `load()` must be called before the next
        write.
        """
        writer = self._open_writer()
        files = [update for update in updates if update.artifacts or update.media]
        try:
            # The cursor comes last: a reader that finds it also finds the files.
            writer.write(updates, self._cursor if files else cursor)
            if files:
                for update in files:
                    if (run_id := writer.run_id(update.key)) is not None:
                        self._put(run_id, {**update.artifacts, **update.media})
                writer.write([], cursor)
            self._cursor = cursor
        except BaseException:
            self.close()
            raise

    def _put(self, run_id: str, files: Mapping[str, bytes | Callable[[], bytes]]) -> None:
        """Write files by their paths below a run's artifacts, replacing existing ones.

        If artifacts cannot be read or written (no permission, a missing library), everything else
        is still recorded. Raises SinkUnavailable if what reads one does.
        """
        left = list(files)
        while left:
            with tempfile.TemporaryDirectory(prefix="regrow-mlflow-") as folder:
                batch, size = list[str](), 0
                while left and size < BATCH_BYTES:
                    path = left.pop(0)
                    data = files[path]
                    try:
                        content = data if isinstance(data, bytes) else data()
                        local = Path(folder, path)
                        local.parent.mkdir(parents=True, exist_ok=True)
                        local.write_bytes(content)
                    except (RegrowError, OSError) as error:
                        if isinstance(error, SinkUnavailable):
                            raise
                        self._miss([path], error)
                    else:
                        batch, size = [*batch, path], size + len(content)
                from mlflow.tracking import MlflowClient

                try:
                    if batch:  # 1 ms each, and one by one 10 ms
                        MlflowClient(self.target.tracking_uri).log_artifacts(run_id, folder)
                except Exception as error:  # noqa: BLE001 - each kind of store has its own errors
                    self._miss(batch, error)

    def _miss(self, paths: Sequence[str], error: Exception) -> None:
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        self.troubles.append(
            f"{paths[0]}{others} could not be stored with MLflow's artifacts: {first_line(error)}"
        )

    def close(self) -> None:
        """Close connections and threads. Nothing is buffered, so nothing is flushed."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise SinkUnavailable(
                f"MLflow at {redacted(self.target.tracking_uri)} is closed: call load() first."
            )
        return self._writer


def _writer(target: Target) -> Writer:
    prepare_environment()
    try:
        make_sure_of(target.tracking_uri, target.artifact_root)
    except OSError as error:
        raise unavailable(target, error) from error
    except Exception as error:
        raise refusal(target, error) from error
    # Imported here because they import mlflow (hence PLC0415).
    if target.tracking_uri.startswith(("sqlite", "postgresql")):
        from regrow.infra.mlflow.bulk import BulkWriter, knows_this_mlflow

        if knows_this_mlflow():
            return BulkWriter(target)
    from regrow.infra.mlflow.public import PublicWriter

    return PublicWriter(target)
