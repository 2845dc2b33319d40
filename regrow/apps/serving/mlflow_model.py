"""A model that a trial logged to MLflow, as a Served class over MLflow's scoring code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from regrow.apps.serving import parquet_size
from regrow.apps.serving.served import Served

PARQUET = "application/vnd.apache.parquet"
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
            if refused := self._refused(asked):
                status, message = refused
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

    def _refused(self, asked: Input) -> tuple[int, str] | None:
        """Return the status and the reason if it is Parquet that is damaged or too large."""
        if asked.content_type.partition(";")[0].strip() != PARQUET:
            return None
        try:
            values, size = parquet_size.sizes(asked.data, self.max_items, self.max_body)
        except parquet_size.Damaged:
            return HTTP_400, f"the body is no file of Parquet, as its Content-Type {PARQUET} says"
        if values > self.max_items:
            return HTTP_413, f"the body holds {values} values, more than {self.max_items}"
        if size > self.max_body:
            most = f"more than {self.max_body}"
            return HTTP_413, f"the body holds {size} bytes once it is expanded, {most}"
        return None


MODEL = f"{__name__}:{ServedMlflowModel.__name__}"
"""Its import path, used in place of the user's class."""
