"""A user's code in RLlib's processes: environments by path, functions that configure."""

from __future__ import annotations

import ast
import inspect
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.spec import Spec
from regrow.search.spec.parts import IMPORT_PATH
from regrow.search.spec.rllib import OFFLINE, ONLINE
from regrow.tasks.attempt.trainable import find, locate, parsed
from regrow.tasks.output.traces import printable

KEY = "rllib.env"
_ROOT = "AlgorithmConfig"


def is_own(env: str) -> bool:
    """Return whether an environment is an import path rather than a Gymnasium id."""
    return IMPORT_PATH.fullmatch(env) is not None


def environment(env: str, folder: str | None) -> Any:
    """Return an environment for RLlib: an id, or a class. Raises SpecError if it does not exist.

    A function that makes it is registered by its path.
    """
    if not is_own(env):
        return env
    try:
        found = find(env, folder)
    except SpecError as error:
        raise SpecError(KEY, env, error.problem, error.hint) from None
    if isinstance(found, type):
        return found
    if not callable(found):
        hint = "name one that makes the environment of its settings"
        raise SpecError(KEY, env, "is no class or function", hint)
    from ray.tune.registry import register_env

    register_env(env, found)
    return env


def own_trace(error: BaseException | None, env: str, folder: str | None) -> str | None:
    """Return the traceback of an exception of the user's environment, from there on, or None."""
    file = locate(env, folder) if is_own(env) else None
    while error is not None and file is not None:
        place = error.__traceback__
        while place is not None and _file(place).parent != file.parent:
            place = place.tb_next
        if place is not None:
            lines = traceback.format_exception(type(error), error, place, chain=False)
            return printable("".join(lines))
        error = error.__cause__ or error.__context__
    return None


def _file(place: TracebackType) -> Path:
    return Path(place.tb_frame.f_code.co_filename).resolve()


def configures(found: Any) -> bool:
    """Return whether a function's signature declares that it returns an RLlib AlgorithmConfig."""
    if not inspect.isfunction(found):
        return False
    annotation = found.__annotations__.get("return")
    if isinstance(annotation, str):
        text = annotation
        try:
            annotation = typing.get_type_hints(found).get("return")
        except Exception:  # noqa: BLE001 - a name that only type checkers know
            name = text.rpartition(".")[2].strip("'\"")
            return name == _ROOT or name.removesuffix("Config") in (*ONLINE, *OFFLINE)
    return isinstance(annotation, type) and any(
        base.__name__ == _ROOT and base.__module__.startswith("ray.rllib.")
        for base in annotation.__mro__
    )


def may_configure(spec: Spec) -> bool:
    """Return whether a trainable's source, which is not run, may return an AlgorithmConfig."""
    if spec.command or spec.trainable == "pickled":
        return False
    if (file := locate(spec.trainable, spec.working_dir)) is None:
        return False
    try:
        source, tree = parsed(file)
    except (SyntaxError, ValueError):
        return False
    name = spec.trainable.partition(":")[2]
    named = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return b"rllib" in source and any(node.returns is not None for node in named)


def called(
    configure: Callable[[dict[str, Any]], Any], parameters: dict[str, Any], path: str
) -> Any:
    """Return what a user's function configures. Raises SpecError if that is no AlgorithmConfig."""
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    made = configure(parameters)
    if not isinstance(made, AlgorithmConfig):
        hint = "return the configuration"
        raise SpecError(
            "trainable", path, f"returned {type(made).__name__}, not an AlgorithmConfig", hint
        )
    return made


def unknown(name: str, known: list[str], what: str) -> tuple[str, str]:
    """Return problem and hint for an unknown setting. There are 200, too many to list."""
    near = nearest(name, known)
    return f"is no setting of {what}", near if near.startswith("did") else "see its documentation"
