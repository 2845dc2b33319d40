"""A user's code in RLlib's processes: environments by `file.py:Env`, functions that return a
configuration.
"""

from __future__ import annotations

import ast
import inspect
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
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
    """Return whether an environment is given as the import path of a class or function, rather than
    as a Gymnasium id.
    """
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
        raise SpecError(
            KEY,
            env,
            "is no class or function",
            "name one that makes the environment of its settings",
        )
    from ray.tune.registry import register_env

    register_env(env, found)
    return env


def own_trace(error: BaseException | None, env: str, folder: str | None) -> str | None:
    """Return the traceback of an exception from the user's environment, from its first frame on;
    None if it was not raised there.
    """
    file = locate(env, folder) if is_own(env) else None
    while error is not None and file is not None:
        place = error.__traceback__
        while (
            place is not None
            and Path(place.tb_frame.f_code.co_filename).resolve().parent != file.parent
        ):
            place = place.tb_next
        if place is not None:
            return printable(
                "".join(traceback.format_exception(type(error), error, place, chain=False))
            )
        error = error.__cause__ or error.__context__
    return None


def configures(found: Any) -> bool:
    """Return whether a function's signature declares that it returns an RLlib AlgorithmConfig."""
    if not inspect.isfunction(found):
        return False
    said = found.__annotations__.get("return")
    if isinstance(said, str):
        text = said
        try:
            said = typing.get_type_hints(found).get("return")
        except Exception:  # noqa: BLE001 - a name that only type checkers know
            name = text.rpartition(".")[2].strip("'\"")
            return name == _ROOT or name.removesuffix("Config") in (*ONLINE, *OFFLINE)
    return isinstance(said, type) and any(
        base.__name__ == _ROOT and base.__module__.startswith("ray.rllib.") for base in said.__mro__
    )


def may_configure(spec: Spec) -> bool:
    """Return whether a trainable's function may return an AlgorithmConfig, by its source, which is
    not run.
    """
    if (
        spec.command
        or spec.trainable == "pickled"
        or (file := locate(spec.trainable, spec.working_dir)) is None
    ):
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
    """Return the configuration that a user's function makes from the parameters. Raises SpecError
    if it returns something else.
    """
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    made = configure(parameters)
    if not isinstance(made, AlgorithmConfig):
        raise SpecError(
            "trainable",
            path,
            f"returned {type(made).__name__}, not an AlgorithmConfig",
            "return the configuration",
        )
    return made


def unknown(name: str, known: list[str], what: str) -> tuple[str, str]:
    """Return problem and hint for an unknown setting. There are 200, too many to list."""
    near = nearest(name, known)
    return f"is no setting of {what}", near if near.startswith("did") else "see its documentation"
