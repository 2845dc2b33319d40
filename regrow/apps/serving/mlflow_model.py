"""A model that a trial logged to MLflow, as a Served class over MLflow's scoring code."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from regrow.apps.serving.parquet_sizes import PARQUET, Damaged, parquet_sizes
from regrow.apps.serving.served import Served

CSV = "text/csv"
MOST_REPEATED = 1000
"""Maximum number of repeated names in the header of CSV. pandas compares each with all others: 3 s
for 12,000, minutes for 100,000.
"""
HTTP_400, HTTP_413 = 400, 413


class ServedMlflowModel(Served):
    """Answers like `mlflow models serve` on `/invocations`."""

    class Input(BaseModel):
        """An unparsed request."""

        data: bytes
        content_type: str

    class Output(BaseModel):
        """The answer: status, content type and body."""

        status: int
        content_type: str
        body: str

    max_batch: ClassVar[int] = 1
    """Requests are not batched: each may hold any number of rows, in any form."""

    def load(self, folder: Path, config: dict[str, Any]) -> None:
        """Load it with its flavor, which unpickles what the trial wrote."""
        import mlflow

        self._model = mlflow.pyfunc.load_model(str(next(folder.rglob("MLmodel")).parent))
        self._schema = self._model.metadata.get_input_schema()

    def predict(self, inputs: list[Input]) -> list[Output]:
        """Answer the requests one after the other."""
        return [self._answered(one) for one in inputs]

    def _answered(self, asked: Input) -> Output:
        from mlflow.exceptions import MlflowException
        from mlflow.pyfunc import scoring_server

        serving: Any = scoring_server  # untyped
        try:
            if why := refused(asked):
                status, message = why
                return self.Output(status=status, content_type="text/plain", body=message)
            result = serving.invocations(asked.data, asked.content_type, self._model, self._schema)
        except MlflowException as error:
            wrong: Any = error
            message = wrong.serialize_as_json()
            return self.Output(
                status=wrong.get_http_status_code(), content_type="application/json", body=message
            )
        return self.Output(
            status=result.status, content_type=result.mimetype, body=str(result.response)
        )


def refused(asked: ServedMlflowModel.Input) -> tuple[int, str] | None:
    """Return the status and the reason if it is Parquet that is damaged or too large, or CSV
    that pandas would read for minutes.
    """
    kind = asked.content_type.partition(";")[0].strip()
    if kind == CSV and (count := _repeated(asked.data)) > MOST_REPEATED:
        return HTTP_413, f"the header repeats {count} names, more than {MOST_REPEATED}"
    if kind != PARQUET:
        return None
    try:
        values, size = parquet_sizes(
            asked.data, ServedMlflowModel.max_items, ServedMlflowModel.max_body
        )
    except Damaged:
        return HTTP_400, f"the body is no file of Parquet, as its Content-Type {PARQUET} says"
    if values > ServedMlflowModel.max_items:
        return HTTP_413, f"the body holds {values} values, more than {ServedMlflowModel.max_items}"
    if size > ServedMlflowModel.max_body:
        most = f"more than {ServedMlflowModel.max_body}"
        return HTTP_413, f"the body holds {size} bytes once it is expanded, {most}"
    return None


def _repeated(data: bytes) -> int:
    """Return how many names in the header of CSV are repetitions; 0 if it cannot be read."""
    rows = csv.reader(io.StringIO(data.decode(errors="replace"), newline=""))
    try:
        header = next((row for row in rows if "".join(row).strip() or len(row) > 1), [])
    except csv.Error:
        return 0
    return len(header) - len({*header})


MODEL = f"{__name__}:{ServedMlflowModel.__name__}"
"""Its import path, used in place of the user's class."""
