"""The list of studies that Optuna and `regrow.optuna` both run: each is a function that gets the
module and a study's name that is new, and returns what has to be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from regrow.tasks.errors import UserError

BODIES: dict[str, Callable[[Any, str], Any]] = {}
TOPICS: dict[str, str] = {}


def body(topic: str) -> Callable[[Callable[[Any, str], Any]], Callable[[Any, str], Any]]:
    """Registers a case under its function's name."""

    def register(function: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        BODIES[function.__name__] = function
        TOPICS[function.__name__] = topic
        return function

    return register


def states(study: Any) -> dict[str, int]:
    """How many trials are in each state."""
    return dict(sorted(Counter(trial.state.name for trial in study.trials).items()))


def kinds(values: dict[str, Any]) -> dict[str, str]:
    """The types of values."""
    return {name: type(value).__name__ for name, value in sorted(values.items())}


def raised(function: Callable[[], Any]) -> str:
    """The class of Optuna's or Python's that is raised, and the message's last line."""
    try:
        function()
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - the outcome that is compared
        named = (cls for cls in type(error).__mro__ if cls.__module__.split(".")[0] != "regrow")
        return next(named).__name__
    return "nothing"


def square(trial: Any) -> float:
    return float(trial.suggest_float("x", -10, 10) ** 2)
