"""PyTorch on a trial's workers: `rg.torch`. The module is `regrow.integrations.torch`."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regrow.integrations.torch import *  # noqa: F403 - the public names of another module
else:
    sys.modules[__name__] = import_module("regrow.integrations.torch")
