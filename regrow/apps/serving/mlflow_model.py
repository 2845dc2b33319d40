"""A model that a trial logged to MLflow, as a Served class over MLflow's scoring code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from regrow.apps.serving.served import Served

PARQUET = "application/vnd.apache.parquet"
HTTP_413 = 413


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
            if (values := values_in(asked)) > self.max_items:
                message = f"the body holds {values} values, more than {self.max_items}"
                return self.Output(status=HTTP_413, content_type="text/plain", body=message)
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


MODEL = f"{__name__}:{ServedMlflowModel.__name__}"
"""Its import path, used in place of the user's class."""


def values_in(asked: ServedMlflowModel.Input) -> int:
    """Count the values of a Parquet body, which its size does not show; 0 for all others."""
    if asked.content_type.partition(";")[0].strip() != PARQUET:
        return 0
    import pyarrow as pa
    from pyarrow import parquet

    try:
        metadata: Any = parquet.ParquetFile(pa.BufferReader(asked.data)).metadata
    except pa.ArrowException:
        return 0
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return sum(
        int(group.column(number).num_values)
        for group in groups
        for number in range(group.num_columns)
    )
