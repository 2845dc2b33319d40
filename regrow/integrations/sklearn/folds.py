"""The trial of a search: one candidate on one fold after the other. Imported by workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone
from sklearn.model_selection import cross_validate

from regrow.tasks.trial.trial import Trial

METRIC = "score"
"""Mean over the folds so far."""
_FILE = "scores.json"


@dataclass(frozen=True, kw_only=True)
class Folds:
    """The trainable with its data. `splits`: (training rows, test rows) of each fold."""

    estimator: Any
    candidates: Sequence[Mapping[str, Any]]
    splits: Sequence[tuple[Any, Any]]
    X: Any
    y: Any
    params: Mapping[str, Any]
    scoring: Any
    train_scores: bool
    error_score: Any
    refit: Any

    def fingerprint(self) -> str:
        """Return a hash of data, candidates, folds and estimator, the same in any process."""
        # A function has no stable hash.
        scoring = self.scoring if isinstance(self.scoring, (str, list, tuple)) else None
        of = (
            self.estimator,
            self.candidates,
            self.splits,
            self.X,
            self.y,
            self.params,
            scoring,
            self.train_scores,
        )
        return str(joblib.hash(of))

    def __call__(self, trial: Trial) -> None:
        """Report for each fold its scores, its seconds, and the mean score of the folds so far."""
        scores: list[float] = (
            json.loads((trial.restored / _FILE).read_text()) if trial.restored else []
        )

        def save(folder: Path) -> None:
            (folder / _FILE).write_text(json.dumps(scores))

        for step in trial.steps():
            found = self._fold(self.candidates[trial.config["candidate"]], step - 1)
            scores.append(found[self._objective(found)])
            trial.report({METRIC: float(np.mean(scores)), **found}, checkpoint=save)

    def _fold(self, candidate: Mapping[str, Any], number: int) -> dict[str, float]:
        estimator = clone(self.estimator).set_params(**clone(dict(candidate), safe=False))
        # A NaN raises, too, so that the trial fails with its exception.
        raises = self.error_score == "raise" or np.isnan(self.error_score)
        found = cross_validate(
            estimator,
            self.X,
            self.y,
            cv=[self.splits[number]],
            scoring=self.scoring,
            params=dict(self.params),
            return_train_score=self.train_scores,
            error_score="raise" if raises else self.error_score,
        )
        return {name: float(value[0]) for name, value in found.items()}

    def _objective(self, found: Mapping[str, float]) -> str:
        """Return the score that ranks trials: the one to refit by; without one, the first."""
        if (wanted := f"test_{self.refit}") in found:
            return wanted
        return next(name for name in found if name.startswith("test_"))
