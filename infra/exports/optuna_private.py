"""The tables of Optuna's database, which have no public name. What sampling needs is in `search/samplers/optuna_private.py`.

They are apart since they come with SQLAlchemy and a database, of which nothing in search/ may know. Each name is in the canary
test (`tests/unit/test_private_names.py`), with what breaks without it.
"""

from optuna.storages._rdb import models

__all__ = ["models"]
