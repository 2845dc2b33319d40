"""A model that a trial logged to MLflow, as one of our classes: loaded and asked by MLflow's own code for serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from regrow.serving.served import Served

MODEL = "regrow.serving.mlflow_model:Logged"
"""Its import path, which stands where the user's class does."""


class Logged(Served):
    """Answers what `mlflow models serve` answers to `/invocations`."""

    class Input(BaseModel):
        """A request, as it came."""

        data: bytes
        content_type: str

    class Output(BaseModel):
        """The answer, and what it is."""

        status: int
        content_type: str
        body: str

    max_batch: ClassVar[int] = 1
    """A request holds as many rows as its sender likes, of whatever form: they are not put together with others'."""

    def load(self, folder: Path, config: dict[str, Any]) -> None:
        """Loads it with its flavor, which unpickles what the trial wrote."""
        import mlflow

        self._model = mlflow.pyfunc.load_model(str(next(folder.rglob("MLmodel")).parent))
        self._schema = self._model.metadata.get_input_schema()

    def predict(self, inputs: list[Input]) -> list[Output]:
        """One after the other."""
        return [self._answered(one) for one in inputs]

    def _answered(self, asked: Input) -> Output:
        from mlflow.exceptions import MlflowException
        from mlflow.pyfunc import scoring_server

        serving: Any = scoring_server  # without types
        try:
            result = serving.invocations(asked.data, asked.content_type, self._model, self._schema)
        except MlflowException as error:
            wrong: Any = error
            said = wrong.serialize_as_json()
            return self.Output(status=wrong.get_http_status_code(), content_type="application/json", body=said)
        return self.Output(status=result.status, content_type=result.mimetype, body=str(result.response))
