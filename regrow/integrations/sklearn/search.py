"""scikit-learn's RandomizedSearchCV as an experiment: a trial per candidate, a step per fold."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn import model_selection
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import ParameterSampler, check_cv
from sklearn.utils import indexable

from regrow.integrations.sklearn.folds import METRIC, Folds
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.result import Result


_OF = "of"
"""Name of the constant in the space that identifies the search."""


class RandomizedSearchCV(model_selection.RandomizedSearchCV):
    """scikit-learn's search, whose fits are an experiment called `name`: run on Ray, recorded, and
    resumed after a kill.

    `name` None: identical to scikit-learn's. `state` is the state root (None: $REGROW_STATE, else
    ./.regrow). `n_jobs` is how many candidates are tried at once (None and -1: as many as fit).
    `random_state` None: derived from `name`, so that `fit` in another process resumes the same
    candidates. `pre_dispatch` is ignored.

    A candidate whose fit raises is a failed trial, with its traceback; its scores are NaN from that
    fold on, unless `error_score` is a number. Raises UserError if `name` is a search with other
    data, candidates or folds, and if all candidates failed.
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        n_iter: int = 10,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: Any = "2*n_jobs",
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        name: str | None = None,
        state: str | None = None,
    ) -> None:
        super().__init__(
            estimator,
            param_distributions,
            n_iter=n_iter,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            random_state=random_state,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.name = name
        self.state = state

    def fit(self, X: Any, y: Any = None, **params: Any) -> RandomizedSearchCV:  # noqa: N803 - scikit-learn's name
        """Try the candidates, or the remaining ones of `name`, and fit the best on all data
        (`refit`).

        `params`: `groups` for `cv`; all others are passed to the estimator. Returns itself.
        """
        if self.name is None:
            return super().fit(X, y, **params)
        self._validate_params()
        X, y = indexable(X, y)  # noqa: N806 - scikit-learn's name
        groups = params.pop("groups", None)
        splits = list(
            check_cv(self.cv, y, classifier=is_classifier(self.estimator)).split(X, y, groups)
        )
        seed = zlib.crc32(self.name.encode()) if self.random_state is None else self.random_state
        candidates = list(
            ParameterSampler(self.param_distributions, self.n_iter, random_state=seed)
        )
        folds = Folds(
            estimator=self.estimator,
            candidates=candidates,
            splits=splits,
            X=X,
            y=y,
            params=params,
            scoring=self.scoring,
            train_scores=self.return_train_score,
            error_score=self.error_score,
            refit=self.refit,
        )
        out = _scores(self._run(folds), folds)
        self.n_splits_ = len(splits)
        self.multimetric_ = isinstance(out[0]["test_scores"], Mapping)
        metric = "score"
        if self.multimetric_:
            self._check_refit_for_multimetric(out[0]["test_scores"])
            metric = self.refit
        self.scorer_ = (
            self.scoring if callable(self.scoring) else check_scoring(self.estimator, self.scoring)
        )
        self.cv_results_ = self._format_results(candidates, self.n_splits_, out)
        self._choose(metric)
        if self.refit:
            self._fit_best(X, y, params)
        return self

    def _run(self, folds: Folds) -> Result:
        """Run what is left of it. Raises UserError for another search, or if it did not finish."""
        from regrow.experiment import Experiment
        from regrow.search.space import constant, grid

        assert self.name is not None
        of = folds.fingerprint()
        existing = _fingerprint(self.name, self.state)
        if existing not in (None, of):
            raise UserError(
                f"{self.name!r} is a search with other data, folds or candidates; give it another"
                " name. A splitter that shuffles needs a random_state, so that it makes the same"
                " folds again"
            )
        result = Experiment(
            folds,
            name=self.name,
            space={"candidate": grid(list(range(len(folds.candidates)))), _OF: constant(of)},
            metric=METRIC,
            mode="max",
            search="grid",
            trials=len(folds.candidates),
            max_steps=len(folds.splits),
            state=self.state,
            concurrency=self.n_jobs if self.n_jobs is not None and self.n_jobs > 0 else None,
            checkpoint={"every_steps": 1, "keep_last": 1},
        ).run(quiet=not self.verbose)
        failed = [trial for trial in result.trials if trial.state == "failed"]
        if failed and (result.status == "failed" or folds.error_score == "raise"):
            counts = f"{len(failed)} of {len(folds.candidates)} candidates of {self.name!r} failed"
            raise UserError(f"{counts}; the first: {failed[0].attempts[-1].reason}")
        if result.status != "finished":
            raise UserError(
                f"the search {self.name!r} has {result.status}; fit again, and it continues"
            )
        return result

    def _choose(self, metric: Any) -> None:
        if not self.refit and self.multimetric_:
            return
        self.best_index_ = self._select_best_index(self.refit, metric, self.cv_results_)
        self.best_params_ = self.cv_results_["params"][self.best_index_]
        if not callable(self.refit):
            self.best_score_ = self.cv_results_[f"mean_test_{metric}"][self.best_index_]

    def _fit_best(self, X: Any, y: Any, params: Mapping[str, Any]) -> None:  # noqa: N803 - scikit-learn's name
        self.best_estimator_ = clone(self.estimator).set_params(
            **clone(self.best_params_, safe=False)
        )
        began = time.time()
        self.best_estimator_.fit(X, *(() if y is None else (y,)), **params)
        self.refit_time_ = time.time() - began
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_


def _fingerprint(name: str, state: str | None) -> str | None:
    """Return an experiment's fingerprint; None without one of this name, "" if it is no search."""
    from regrow.infra.state.places import Places
    from regrow.result import Result
    from regrow.search.space.domains import Constant

    places = Places.at(state)
    if name not in places.experiments():
        return None
    parameters = Result(places, name).spec.space.parameters
    constants = {p.name: p.domain.value for p in parameters if isinstance(p.domain, Constant)}
    return str(constants.get(_OF, ""))


def _scores(result: Result, folds: Folds) -> list[dict[str, Any]]:
    """Return each candidate's scores on each fold, in scikit-learn's order; NaN where it failed."""
    rows = {(row["trial"], row["step"]): row for row in result.points()}
    trials = {trial.config["candidate"]: trial for trial in result.trials}
    names = [name for name in next(iter(rows.values())) if name.startswith(("test_", "train_"))]
    found = []
    for candidate in range(len(folds.candidates)):
        for step in range(1, len(folds.splits) + 1):
            row = rows.get((trials[candidate].number, step), {})
            times = ("fit_time", "score_time")
            one: dict[str, Any] = {name: _number(row.get(name)) for name in times}
            for part in ("test_", "train_"):
                scores = {n: _number(row.get(n)) for n in names if n.startswith(part)}
                own = {name.removeprefix(part): value for name, value in scores.items()}
                one[f"{part}scores"] = own["score"] if own.keys() == {"score"} else own
            found.append(one)
    return found


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
