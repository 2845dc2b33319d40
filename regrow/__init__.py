"""regrow: machine-learning experiments that cannot be lost. `import regrow as rg`.

The names below are the public API; everything else may change. Each is imported on first access: a
script that only calls `report`, and may run many times, starts as quickly as without the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regrow.tasks.program.script import report, trial

if TYPE_CHECKING:
    from regrow import torch as torch  # not in __all__: `import *` would need PyTorch
    from regrow.apps.serving.served import Served
    from regrow.experiment import Experiment
    from regrow.records import AttemptResult, BestResult, TrialResult
    from regrow.result import Result
    from regrow.result import open as open  # noqa: A004 - it is called rg.open; not in __all__, so that `import *` hides no builtin
    from regrow.search.errors import SpecError
    from regrow.search.space import (
        choice,
        constant,
        grid,
        logint,
        loguniform,
        normal,
        quniform,
        randint,
        uniform,
    )
    from regrow.search.spec import Spec
    from regrow.tasks.attempt.trainable import Trainable
    from regrow.tasks.errors import RegrowError, UserError
    from regrow.tasks.trial.trial import Trial

__all__ = [
    "AttemptResult",
    "BestResult",
    "Experiment",
    "RegrowError",
    "Result",
    "Served",
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
    "report",
    "trial",
    "uniform",
]

_PLACES = {
    "regrow.experiment": ("Experiment",),
    "regrow.records": ("AttemptResult", "BestResult", "TrialResult"),
    "regrow.result": ("Result", "open"),
    "regrow.search.errors": ("SpecError",),
    "regrow.search.space": (
        "choice",
        "constant",
        "grid",
        "logint",
        "loguniform",
        "normal",
        "quniform",
        "randint",
        "uniform",
    ),
    "regrow.search.spec": ("Spec",),
    "regrow.apps.serving.served": ("Served",),
    "regrow.tasks.errors": ("RegrowError", "UserError"),
    "regrow.tasks.attempt.trainable": ("Trainable",),
    "regrow.tasks.trial.trial": ("Trial",),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}


if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Import a public name (PEP 562)."""
        if name == "torch":
            return import_module("regrow.torch")  # which sets it here
        if name not in _PLACE_OF:
            raise AttributeError(f"module 'regrow' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_PLACE_OF[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACE_OF})
