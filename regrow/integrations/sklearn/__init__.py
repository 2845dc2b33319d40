"""scikit-learn: `State(model)` for estimators that learn by `partial_fit`, and a `RandomizedSearchCV` that survives.

The search runs an experiment, so that it alone of all integrations knows how one is started, and only when it does.
"""

from regrow.integrations.installed import need

need("sklearn", "sklearn")

from regrow.integrations.sklearn.partial_fit import State  # noqa: E402 - after it is known to be there
from regrow.integrations.sklearn.search import RandomizedSearchCV  # noqa: E402 - the same

__all__ = ["RandomizedSearchCV", "State"]
