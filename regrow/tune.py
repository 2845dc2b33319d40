"""`import regrow.tune as tune`: Ray Tune's names; see `regrow.integrations.tune`."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if not TYPE_CHECKING:
    sys.modules[__name__] = import_module("regrow.integrations.tune")
