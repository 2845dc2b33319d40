"""Which names of Ray, Prefect, MLflow, Optuna and Python a module uses that their documentation does
not promise; read from its source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

LIBRARIES = ("mlflow", "optuna", "prefect", "ray")
STANDARD = ("multiprocessing", "sys", "threading")
"""Modules of Python itself: their private names change without notice as well."""
INTERNAL = (
    "mlflow.server.fastapi_app",
    "mlflow.store",
    "mlflow.system_metrics",
    "mlflow.tracking.fluent",
    "mlflow.utils",
    "optuna.search_space.group_decomposed",
    "prefect.context.refresh_global_settings_context",
    "prefect.events.clients",
    "prefect.events.worker",
    "prefect.flow_engine",
    "prefect.logging.configuration",
    "prefect.server",
    "prefect.task_engine",
    "prefect.utilities.engine",
    "ray.autoscaler.v2",
    "ray.core",
    "ray.dashboard",
    "ray.scripts",
)
"""Modules (and a function) without an underscore that are no part of the documented interface
either.
"""
PRIVATE = {
    "regrow.infra.clusters.private",
    "regrow.show.exports.optuna_private",
    "regrow.infra.mlflow.private",
    "regrow.infra.prefect.private",
    "regrow.infra.ray.private",
    "regrow.integrations.rllib.private",
    "regrow.search.samplers.optuna_private",
    "regrow.integrations.optuna.private",
    "regrow.integrations.tune.private",
    # of Python's own
    "regrow.infra.machine.descendants",
    "regrow.tasks.attempt.stall_watchdog",
    "regrow.tasks.output.capture",
    "regrow.tasks.process.forking",
}
"""The modules that may use them."""


def internal(name: str) -> bool:
    """Whether a dotted name is of one of the libraries and not of its public interface."""
    library, *parts = name.split(".")
    if library not in LIBRARIES:
        return False
    return any(hidden(part) for part in parts) or any(
        name == one or name.startswith(f"{one}.") for one in INTERNAL
    )


def hidden(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.endswith("__")


def used(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Each use of such a name: `module:name` or `module` for one that is imported, `.name` for an
    attribute or an option.
    """
    objects, modules = _objects(tree), _modules(tree)
    yield from _options(tree, objects)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node, alias.name) for alias in names if internal(alias.name))
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    if internal(f"{module}.{alias.name}"):
                        yield node, f"{module}:{alias.name}"
            case ast.Call(
                args=[ast.Constant(value=str(module)), ast.Constant(value=str(name)), *_]
            ) if internal(module):
                yield node, f"{module}:{name}"
            case ast.Attribute(value=value, attr=name) if (
                found := modules.get(ast.unparse(value))
            ) is not None:
                yield node, f"{found}:{name}"
            # what import_module, and those that call it, are given
            case ast.Constant(value=str(text)) if internal(text):
                yield node, text
            case ast.Constant(value=str(text)) if "import " in text and any(
                library in text for library in LIBRARIES
            ):
                yield from ((node, name) for _, name in used(_program(text)))
            case ast.Attribute(value=value, attr=name) if hidden(name) and _root(value) in objects:
                yield node, f".{name}"
            case ast.ClassDef(bases=bases) if any(_root(base) in objects for base in bases):
                own = _own(node)
                for one in ast.walk(node):
                    if isinstance(one, ast.Attribute) and _root(one) == "self":
                        first = _first(one)
                        if hidden(first) and first not in own:
                            yield one, f".{first}"


def _options(tree: ast.AST, objects: set[str]) -> Iterator[tuple[ast.AST, str]]:
    """Each option of a call of a library: a keyword, or a key of a map that a call may be given.
    Variables of the environment are keys in capitals.
    """
    for node in ast.walk(tree):
        names: list[object] = []
        match node:
            case ast.Call(func=func, keywords=keywords) if _root(func) in objects:
                names = [keyword.arg for keyword in keywords]
            case ast.Dict(keys=keys) if objects:
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
        for name in names:
            if isinstance(name, str) and hidden(name) and not name.isupper():
                yield node, f".{name}"


def _program(text: str) -> ast.AST:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def _objects(tree: ast.AST) -> set[str]:
    """Names of what comes from a library, as far as can be told: imported, made of that, or
    annotated with it.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {
                    alias.asname or alias.name.partition(".")[0]
                    for alias in names
                    if _foreign(alias.name)
                }
            case ast.ImportFrom(module=str(module), names=names, level=0) if _foreign(module):
                found |= {alias.asname or alias.name for alias in names}
    before = -1
    while before != len(found):
        before = len(found)
        for node in ast.walk(tree):
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.NamedExpr(target=ast.Name(id=name), value=value)
                ) if _root(value) in found or _loads(value):
                    found.add(name)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _root(
                    value
                ) in found or _loads(value):
                    found.add(name)
                case ast.arg(arg=name, annotation=ast.expr() as annotation) if (
                    _root(annotation) in found
                ):
                    found.add(name)
    return found


def _modules(tree: ast.AST) -> dict[str, str]:
    """The internal modules that expressions stand for: a call with the name, and what it is
    assigned to.
    """
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.Constant(value=str(name))]) if internal(name):
                found[ast.unparse(node)] = name
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                made := found.get(ast.unparse(value))
            ) is not None:
                found[name] = made
    return found


def _foreign(module: str) -> bool:
    return module.partition(".")[0] in (*LIBRARIES, *STANDARD)


def _loads(node: ast.AST) -> bool:
    """Whether an expression begins with a call that is given the name of a library's module, or
    `sys.modules` is.
    """
    for one in ast.walk(node):
        match one:
            case (
                ast.Call(args=[ast.Constant(value=str(name)), *_])
                | ast.Subscript(slice=ast.Constant(value=str(name)))
            ):
                if _foreign(name) and name.isascii() and " " not in name and "." in name:
                    return True
    return False


def _root(node: ast.AST) -> str | None:
    """The name with which a chain of attributes, calls and subscripts begins."""
    while True:
        match node:
            case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Await(value=value):
                node = value
            case ast.Call(func=func):
                node = func
            case ast.Name(id=name):
                return name
            case _:
                return None


def _first(node: ast.Attribute) -> str:
    """The attribute next to the root of a chain."""
    while isinstance(node.value, ast.Attribute):
        node = node.value
    return node.attr


def _is_of_self(target: ast.AST) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )


def _own(node: ast.ClassDef) -> set[str]:
    """What a class defines or assigns to `self` by itself."""
    found: set[str] = set()
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                every = (part for target in targets for part in ast.walk(target))
                found |= {part.attr for part in every if _is_of_self(part)}
            case ast.AnnAssign(target=ast.Attribute(attr=name) as target) if _is_of_self(target):
                found.add(name)
    return found
