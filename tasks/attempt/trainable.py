"""Finding and running the user's trainable: a function of a Trial, or a class with steps."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import pickle
import re
import symtable
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.tasks.errors import UserCodeError, UserError
from regrow.tasks.output.traces import in_a_line, user_trace
from regrow.tasks.ports.store import Store
from regrow.tasks.process.own_code import second_name
from regrow.tasks.trial.trial import Trial

_METHODS: dict[str, tuple[str, list[object]]] = {
    "setup": ("one argument, the configuration", [{}]),
    "step": ("no arguments", []),
    "save": ("one argument, the folder", [Path()]),
    "load": ("one argument, the folder", [Path()]),
    "cleanup": ("no arguments", []),
}
"""What the methods of a class are called with, in words and as examples."""
_IMPORTING = threading.RLock()
"""Held during an import, so that no other thread uses a half-initialized module."""


class Trainable(Protocol):
    """A class trainable. Only `setup` and `step` are required; with `save` and `load` it survives
    kills.

    Before `setup`, `self.event` is set to what triggered the run (None for no trigger).
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Build the model from a configuration."""

    def step(self) -> Mapping[str, float]:
        """Train one step and return its metrics; `{"done": True, ...}` ends the trial."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything needed to continue into the empty folder."""

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""

    def cleanup(self) -> None:
        """Free the resources of `setup`; called however the attempt ends."""


@contextmanager
def as_a_script(path: str, folder: str | None) -> Iterator[None]:
    """Within the block, set sys.argv as for a script started without arguments.

    Many scripts parse sys.argv on import or at the top of their training function, and would get
    the arguments of Ray or regrow.
    """
    place = path.partition(":")[0]
    before, sys.argv = (
        sys.argv,
        [str(Path(folder or ".", place)) if place.endswith(".py") else place],
    )
    try:
        yield
    finally:
        sys.argv = before


def find(path: str, folder: str | None) -> Any:
    """Return the object at `file.py:name` in `folder`, or `module:name`. Raises SpecError."""
    place, _, name = path.partition(":")
    file = locate(path, folder)
    if file is None and _spec_of(place) is None:
        raise _no_module(path, place, folder)
    module = importlib.import_module(place) if file is None else _module_of(file)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [
                n for n, v in vars(module).items() if _offered(v, module) and not n.startswith("_")
            ]
            raise _no_name(path, name, names)
        found = getattr(found, part)
    return found


def locate(path: str, folder: str | None) -> Path | None:
    """Return the file of `file.py:name`; None for a module, of which only the top-level package is
    looked up.

    Imports nothing. Puts `folder` on the import path. Raises SpecError if neither file nor package
    exists.
    """
    place = path.partition(":")[0]
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    if place.endswith(".py"):
        file = Path(os.path.realpath(Path(folder or ".", place)))
        if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
            raise _wrong(path, f"there is no file {file}", "put it back, or correct the path")
        return file
    if _spec_of(place.partition(".")[0]) is None:
        raise _no_module(path, place, folder)
    return None


def _no_module(path: str, place: str, folder: str | None) -> SpecError:
    problem = f"there is no module {place!r} on the import path (working_dir: {folder})"
    return _wrong(path, problem, "install it, or write file.py:function")


def _wrong(path: str, problem: str, hint: str) -> SpecError:
    return SpecError(key="trainable", value=path, problem=problem, hint=hint)


def _no_name(path: str, name: str, names: list[str]) -> SpecError:
    hint = nearest(name, names) if names else "it has nothing callable"
    return _wrong(path, f"{path.partition(':')[0]} has no {name!r}", hint)


def check_syntax(file: Path, path: str) -> None:
    """Check a trainable's source without running it, so that certain errors are reported before
    anything starts.

    Raises SyntaxError, and SpecError if the name is not bound in the module and cannot be bound
    dynamically.
    """
    source, _ = parsed(file)
    name = path.partition(":")[2].partition(".")[0]
    unseen = rb"import \*|\b(?:exec|eval|globals|vars|setattr|__getattr__|__dict__|modules)\b"
    table = symtable.symtable(source.decode("utf-8-sig", errors="replace"), str(file), "exec")
    if name not in _bound(table) and not re.search(unseen, source):
        raise _no_name(path, name, functions(file))


def functions(file: Path) -> list[str]:
    """Return the functions and classes that a file defines, without running it."""
    try:
        _, tree = parsed(file)
    except (SyntaxError, ValueError):
        return []
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [n.name for n in tree.body if isinstance(n, defined) and not n.name.startswith("_")]


def _bound(table: symtable.SymbolTable, *, inside: bool = False) -> set[str]:
    """Return the names that a module binds at top level, including by `global` in a function."""
    own = {
        s.get_name()
        for s in table.get_symbols()
        if (s.is_assigned() or s.is_imported() or s.is_namespace())
        and (not inside or s.is_declared_global())
    }
    return own.union(*(_bound(inner, inside=True) for inner in table.get_children()))


def parsed(file: Path) -> tuple[bytes, ast.Module]:
    """Return a Python file's source and syntax tree. Raises SyntaxError, and UserError where it
    cannot be read.
    """
    try:
        source = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        return source, ast.parse(source, str(file))
    except SyntaxError as error:
        raise error.with_traceback(None) from None  # the parser's own frames do not help the user


def _spec_of(place: str) -> object:
    try:
        return importlib.util.find_spec(place)
    except ModuleNotFoundError:
        return None


def _offered(value: Any, module: Any) -> bool:
    """Return whether the object may be a trainable: callable, and not imported."""
    return callable(value) and getattr(value, "__module__", module.__name__) == module.__name__


def _module_of(file: Path) -> Any:
    """Import a file under its own name, as `import` from its folder would, and only once."""
    with _IMPORTING:
        loaded = sys.modules.get(file.stem)
        place = getattr(loaded, "__file__", None)
        if place and Path(str(place)).resolve() == file:
            return loaded
        name = file.stem if loaded is None else second_name(file)
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise _wrong(str(file), "is not a Python file", "write file.py:function")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def unpickled(store: Store, key: str, sha256: str) -> Any:
    """Load the pickled trainable. Raises UserError, without unpickling, for another hash."""
    data = store.read(key)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UserError(
            f"the pickled trainable {key} is not the one that this experiment wrote: its hash"
            " differs"
        )
    return pickle.loads(data)  # noqa: S301 - written by this experiment, verified by the hash in its log


def adapt(found: Any, path: str) -> Callable[[Trial], object]:
    """Convert a function or a class to a function of a Trial. Raises SpecError otherwise."""
    if isinstance(found, type):
        missing = [m for m in ("setup", "step") if not callable(getattr(found, m, None))]
        if missing:
            problem = f"class {found.__name__} has no method {' and no '.join(missing)}"
            raise _wrong(path, problem, "define it, see regrow.Trainable")
        check_call(found, "trainable", path, "no arguments", "give all parameters a default")
        for name, (what, arguments) in _METHODS.items():
            if inspect.isfunction(method := inspect.getattr_static(found, name, None)):
                _check_body(method, f"{path}.{name}")
                hint = f"see {name} of regrow.Trainable"
                check_call(method, "trainable", f"{path}.{name}", what, hint, None, *arguments)
        return lambda trial: _run_class(found, trial)
    hint = "write `def train(trial):`, and read parameters from trial.config"
    check_call(found, "trainable", path, "one argument, the trial", hint, None)
    _check_body(found, path)
    run: Callable[[Trial], object] = found
    return run


def _check_body(found: object, path: str) -> None:
    """Raise SpecError for a function whose call does not run its body."""
    if inspect.iscoroutinefunction(found):
        hint = "write a plain function that calls asyncio.run"
        raise _wrong(path, "is an async function, whose body would not run", hint)
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        problem = "is a generator (it has a yield), whose body would not run"
        raise _wrong(path, problem, "call trial.report in place of yield")


def check_call(found: Any, key: str, path: str, what: str, hint: str, *arguments: object) -> None:
    """Raise SpecError for what is no function or class, or cannot be called with these arguments.

    Args:
        found: what the user's code has at `path`.
        key: the key of the specification that names it.
        path: the value of the key.
        what: the arguments, in words.
        hint: what to do.
        arguments: as many as it will get.

    """
    if not callable(found):
        noun = type(found).__name__
        problem = f"is {'an' if noun[:1] in 'aeiou' else 'a'} {noun}, not a function or a class"
        raise SpecError(key, path, problem, "name one of these")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # of a built-in function, or a class without one
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        problem = f"takes {str(signature)[:200]}, and is called with {what}"
        raise SpecError(key, path, problem, hint) from None


def _run_class(cls: type, trial: Trial) -> None:
    model: Any = cls()
    save = getattr(model, "save", None)
    try:
        if getattr(model, "event", None) is None:  # else the user's class uses the name
            with suppress(AttributeError):  # raised by a class with slots
                model.event = trial.event
        model.setup(trial.config)
        if trial.restored is not None:
            model.load(trial.restored)
        for _ in trial.steps():
            metrics = model.step()
            if isinstance(metrics, Mapping) and (metrics := dict(metrics)).pop("done", False):
                trial.ends_with_next_report()
            trial.report(metrics, checkpoint=save)
    finally:
        cleanup = getattr(model, "cleanup", None)
        if cleanup is not None:
            cleanup()


@contextmanager
def user_code(key: str, value: str) -> Iterator[None]:
    """Raise exceptions of the user's code in the block as UserCodeError, about this key."""
    try:
        yield
    except (UserError, SpecError, KeyboardInterrupt):
        raise
    except BaseException as error:
        verb = "imported" if key == "trainable" else "run"
        hint = ""
        if isinstance(error, SystemExit):
            hint = 'put what is to run only as a script below `if __name__ == "__main__":`'
        refused = SpecError(key, value, f"cannot be {verb}: {in_a_line(error)}", hint)
        raise UserCodeError(str(refused), user_trace(error)) from error
