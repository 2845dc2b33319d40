"""The tables of Optuna's database, which have no public name. The private names for sampling are in
`search/samplers/optuna_private.py`.

They are separate because they need SQLAlchemy and a database, which search/ must not depend on.
Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it.
"""

from optuna.storages._rdb import models

__all__ = ["models"]
