"""The digits of `digits.py` behind HTTP: `regrow serve digits --model digits_serve.py:Digits` in
this folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import joblib
import numpy as np
from pydantic import BaseModel, Field

import regrow as rg


class Digits(rg.Served):
    """Which digit is on an image of 8 by 8 pixels."""

    class Input(BaseModel):
        """An image, row by row."""

        pixels: list[Annotated[float, Field(ge=0, le=1)]] = Field(min_length=64, max_length=64)

    class Output(BaseModel):
        """The digit, and how sure the network is of it."""

        digit: int
        probability: float

    example: ClassVar[dict[str, Any]] = {"pixels": [0.0] * 64}

    def load(self, folder: Path, config: dict[str, Any]) -> None:
        """Loads the network that `digits.py` saved; unpickling is safe for checkpoints that are
        your own.
        """
        self.network = joblib.load(folder / "model.joblib")

    def predict(self, inputs: list[Input]) -> list[Output]:
        """All images at once."""
        probabilities = self.network.predict_proba(np.array([each.pixels for each in inputs]))
        best = probabilities.argmax(axis=1)
        return [
            self.Output(digit=digit, probability=row[digit])
            for digit, row in zip(best, probabilities, strict=True)
        ]
