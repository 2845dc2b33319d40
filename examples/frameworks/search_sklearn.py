"""scikit-learn's RandomizedSearchCV on data of breast cancer, as an experiment: run it, kill it,
run it again.
"""

from __future__ import annotations

from scipy.stats import loguniform
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from regrow.integrations.sklearn import RandomizedSearchCV

if __name__ == "__main__":
    patients, malignant = load_breast_cancer(return_X_y=True)
    search = RandomizedSearchCV(
        make_pipeline(StandardScaler(), SVC()),
        {"svc__C": loguniform(1e-2, 1e3), "svc__gamma": loguniform(1e-4, 1)},
        n_iter=12,
        cv=5,
        random_state=0,
        name="search-sklearn",
    )
    search.fit(patients, malignant)
    print(search.best_params_, search.best_score_)  # noqa: T201 - what the script is for
