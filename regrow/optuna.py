"""`import regrow.optuna as optuna`: see `regrow.integrations.optuna`."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regrow.integrations.optuna import *  # noqa: F403 - the public names of another module
else:
    sys.modules[__name__] = import_module("regrow.integrations.optuna")
