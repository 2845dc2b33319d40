"""regrow: machine-learning experiments that cannot be lost. `import regrow as rg`.

The names below are the public API; everything else may change.
"""

from regrow.experiment import Experiment
from regrow.records import AttemptResult, BestResult, TrialResult
from regrow.result import Result
from regrow.result import open as open  # noqa: A004 - it is called rg.open; not in __all__, so that `import *` hides no builtin
from regrow.search.errors import SpecError
from regrow.search.space import choice, constant, grid, logint, loguniform, normal, quniform, randint, uniform
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.trainable import Trainable
from regrow.tasks.trial import Trial

__all__ = [
    "AttemptResult",
    "BestResult",
    "Experiment",
    "RegrowError",
    "Result",
    "Spec",
    "SpecError",
    "Trainable",
    "Trial",
    "TrialResult",
    "UserError",
    "choice",
    "constant",
    "grid",
    "logint",
    "loguniform",
    "normal",
    "quniform",
    "randint",
    "uniform",
]
