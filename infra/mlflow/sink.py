"""The sink: writes the runs of one experiment (`RunUpdate`, in `updates.py`) to MLflow.

Nothing here knows the event log. mlflow is not imported at the top: that costs 1.4 s of CPU (2.1 s
with its SQL store), so `load()` does it. The two ways of writing are in `bulk.py` (many runs in one
transaction, directly into sqlite or PostgreSQL) and `public.py` (MLflow's own client, for
everything else).
"""

from collections.abc import Sequence

from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.database import make_sure_of
from regrow.infra.mlflow.updates import (
    Recorded,
    RunUpdate,
    SinkUnavailable,
    Target,
    Writer,
    prepare_environment,
    refusal,
    unavailable,
)
from regrow.tasks.errors import UserError
from regrow.tasks.process.addresses import redacted


class MlflowSink:
    """Writes the runs of one regrow experiment to MLflow, each point once, even if it is passed
    repeatedly.

    For use by one thread. Call `load()` first, and again after an error: it reads what an
    interrupted write left.
    """

    def __init__(
        self,
        *,
        tracking_uri: str,
        experiment_name: str,
        experiment_id: str,
        artifact_root: str | None = None,
    ) -> None:
        """Store the target, without connecting yet.

        Args:
            tracking_uri: MLflow's tracking URI.
            experiment_name: name of the MLflow experiment.
            experiment_id: regrow's id (a uuid): runs of another experiment of the same name are not
                touched.
            artifact_root: folder or URI for artifacts; None: decided by MLflow (`./mlruns` of the
                process that writes) or by its server.

        """
        self._target = Target(
            tracking_uri=tracking_uri,
            experiment_name=experiment_name,
            experiment_id=experiment_id,
            artifact_root=artifact_root,
        )
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

    @property
    def mlflow_experiment_name(self) -> str:
        """The MLflow experiment's name."""
        return self._target.experiment_name

    def load(self) -> Recorded:
        """Create, find or restore the MLflow experiment, and read which of our runs it has.

        Raises `SinkUnavailable` (within seconds) or `SinkRefused`.
        """
        self.close()
        try:
            check(self._target.tracking_uri, timeout_s=5.0)
        except UserError as error:
            raise SinkUnavailable(str(error)) from error
        writer = _writer(self._target)
        recorded = writer.load()
        self._writer, self._cursor = writer, recorded.cursor or 0
        return recorded

    def write(self, updates: Sequence[RunUpdate], cursor: int) -> None:
        """Write `updates`, then `cursor`. Writing the same again changes nothing.

        The parent's first update must come first or in the same call. Raises `SinkUnavailable` or
        `SinkRefused`: then a part may be written, and `load()` must be called before the next
        write.
        """
        writer = self._open_writer()
        files = [update for update in updates if update.artifacts]
        try:
            # The cursor comes last: a reader that finds it also finds the files.
            writer.write(updates, self._cursor if files else cursor)
            if files:
                self._put(files, writer)
                writer.write([], cursor)
            self._cursor = cursor
        except BaseException:
            self.close()
            raise

    def _put(self, updates: Sequence[RunUpdate], writer: Writer) -> None:
        from regrow.infra.mlflow.artifacts import put  # imports mlflow

        for update in updates:
            if (run_id := writer.run_id(update.key)) is not None:
                self.troubles += put(self._target.tracking_uri, run_id, update.artifacts)

    def close(self) -> None:
        """Close connections and threads. Nothing is buffered, so nothing is flushed."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise SinkUnavailable(
                f"MLflow at {redacted(self._target.tracking_uri)} is closed: call load() first."
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
