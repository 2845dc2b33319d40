"""Ray Tune's names on experiments of regrow: `import regrow.tune as tune`. The module is
`regrow.integrations.tune`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if not TYPE_CHECKING:
    sys.modules[__name__] = import_module("regrow.integrations.tune")
