"""scikit-learn: `State(model)` for estimators that learn by `partial_fit`, and a durable
`RandomizedSearchCV`.

The search runs an experiment; it is the only integration of a training library that does, and it
imports what that needs only when it fits.
"""

from regrow.integrations.installed import need

need("sklearn", "sklearn")

from regrow.integrations.sklearn.partial_fit import State  # noqa: E402 - after the check that it is installed
from regrow.integrations.sklearn.search import RandomizedSearchCV  # noqa: E402 - after the check that it is installed

__all__ = ["RandomizedSearchCV", "State"]
