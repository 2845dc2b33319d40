"""Finding the user's trainable and running it: a function of a Trial, or a class with setup, step, save and load."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
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
from regrow.tasks.command import run_command
from regrow.tasks.errors import UserError
from regrow.tasks.messages import Job
from regrow.tasks.own_code import second_name
from regrow.tasks.ports import Store
from regrow.tasks.trial import Trial

_IMPORTING = threading.RLock()
"""Held while a module is made: another thread would take a half-made one for the whole."""


class Trainable(Protocol):
    """A class trainable. `setup`, `step` and at least nothing else are required; with `save` and `load` it survives.

    Before `setup` it is given `self.event`, what started the run (None where nothing did).
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Builds the model from a configuration."""

    def step(self) -> Mapping[str, float]:
        """Trains one step and returns its metrics; `{"done": True, ...}` ends the trial."""
        ...

    def save(self, folder: Path) -> None:
        """Writes all that is needed to go on into the empty folder."""

    def load(self, folder: Path) -> None:
        """Takes it back."""

    def cleanup(self) -> None:
        """Frees what `setup` took; called however the attempt ends."""


class Frameworks(Protocol):
    """Other libraries whose own objects may stand in a trainable's place."""

    def trainable(self, job: Job, found: Any) -> Callable[[Trial], object] | None:
        """What `job` says in their words, or `found` at `job.trainable`, as a function of a Trial; None if it is none of theirs.

        `found` is None where nothing is named. Raises SpecError or UserError for what cannot be used.
        """
        ...


def load(job: Job, store: Store, frameworks: Frameworks | None = None) -> Callable[[Trial], object]:
    """The trainable of a job as a function of a Trial; `frameworks` None: of none but our own.

    Raises SpecError or UserError where it cannot be found; an exception of the user's own module passes through unchanged.
    """
    if job.command:
        return lambda trial: run_command(job, trial)
    found = None
    if job.rllib is None:
        found = unpickled(store, *job.code) if job.code else find(job.trainable, job.folder)
    theirs = frameworks.trainable(job, found) if frameworks is not None else None
    return theirs or adapt(found, job.trainable)


@contextmanager
def as_a_script(path: str, folder: str | None) -> Iterator[None]:
    """Has sys.argv within the block as a script has it that was started without arguments.

    Many parse theirs as they are imported, or at the top of their training function, and would be given Ray's, or ours.
    """
    place = path.partition(":")[0]
    before, sys.argv = sys.argv, [str(Path(folder or ".", place)) if place.endswith(".py") else place]
    try:
        yield
    finally:
        sys.argv = before


def find(path: str, folder: str | None) -> Any:
    """The object at `file.py:name` (relative to `folder`) or `package.module:name`. Raises SpecError where there is none."""
    place, _, name = path.partition(":")
    file = locate(path, folder)
    if file is None and _spec_of(place) is None:
        raise _no_module(path, place, folder)
    module = importlib.import_module(place) if file is None else _module_of(file)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [n for n, v in vars(module).items() if _offered(v, module) and not n.startswith("_")]
            raise _no_name(path, name, names)
        found = getattr(found, part)
    return found


def locate(path: str, folder: str | None) -> Path | None:
    """The file of `file.py:name`, None for a module, whose top-level package is looked for; imports nothing.

    Puts `folder` on the import path. Raises SpecError where nothing is.
    """
    place = path.partition(":")[0]
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    if place.endswith(".py"):
        file = Path(folder or ".", place).resolve()
        if not file.is_file():
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


def glance(file: Path, path: str) -> None:
    """Looks at a trainable's source without running it: what is wrong there for certain is told before anything starts.

    Raises SyntaxError, and SpecError if the name is not bound in the module and nothing could bind it unseen.
    """
    source, _ = parsed(file)
    name = path.partition(":")[2].partition(".")[0]
    unseen = rb"import \*|\b(?:exec|eval|globals|vars|setattr|__getattr__|__dict__|modules)\b"
    table = symtable.symtable(source.decode("utf-8-sig", errors="replace"), str(file), "exec")
    if name not in _bound(table) and not re.search(unseen, source):
        raise _no_name(path, name, functions(file))


def functions(file: Path) -> list[str]:
    """Names of the functions and classes that a file defines, without running it; none for what is not Python."""
    try:
        _, tree = parsed(file)
    except (SyntaxError, ValueError):
        return []
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [n.name for n in tree.body if isinstance(n, defined) and not n.name.startswith("_")]


def _bound(table: symtable.SymbolTable, *, inside: bool = False) -> set[str]:
    """The names that a module's source binds at its top, also by `global` in a function."""
    own = {
        s.get_name() for s in table.get_symbols()
        if (s.is_assigned() or s.is_imported() or s.is_namespace()) and (not inside or s.is_declared_global())
    }
    return own.union(*(_bound(inner, inside=True) for inner in table.get_children()))


def parsed(file: Path) -> tuple[bytes, ast.Module]:
    """A Python file's source and syntax tree. Raises SyntaxError."""
    source = file.read_bytes()
    try:
        return source, ast.parse(source, str(file))
    except SyntaxError as error:
        raise error.with_traceback(None) from None  # where the parser stood is not the user's business


def _spec_of(place: str) -> object:
    try:
        return importlib.util.find_spec(place)
    except ModuleNotFoundError:
        return None


def _offered(value: Any, module: Any) -> bool:
    """Whether it may be a trainable: callable, and defined in the module rather than imported into it."""
    return callable(value) and getattr(value, "__module__", module.__name__) == module.__name__


def _module_of(file: Path) -> Any:
    """The module of a file, imported under its own name as `import` from its folder would, and only once."""
    with _IMPORTING:
        return _imported(file)


def _imported(file: Path) -> Any:
    loaded = sys.modules.get(file.stem)
    if loaded is not None and getattr(loaded, "__file__", None) and Path(str(loaded.__file__)).resolve() == file:
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
    """The trainable that this experiment pickled. Raises UserError, unpickling nothing, if its hash is another."""
    data = store.read(key)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UserError(f"the pickled trainable {key} is not the one that this experiment wrote: its hash differs")
    return pickle.loads(data)  # noqa: S301 - written by this experiment, verified by the hash in its log


def adapt(found: Any, path: str) -> Callable[[Trial], object]:
    """A function of a Trial from a function or a class. Raises SpecError for anything else."""
    if isinstance(found, type):
        missing = [m for m in ("setup", "step") if not callable(getattr(found, m, None))]
        if missing:
            problem = f"class {found.__name__} has no method {' and no '.join(missing)}"
            raise _wrong(path, problem, "define it, see regrow.Trainable")
        return lambda trial: _run_class(found, trial)
    if not callable(found):
        raise _wrong(path, f"is {_a(type(found).__name__)}, not a function or a class", "name one of these")
    run: Callable[[Trial], object] = found
    return run


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _run_class(cls: type, trial: Trial) -> None:
    model: Any = cls()
    save = getattr(model, "save", None)
    try:
        if getattr(model, "event", None) is None:  # else it is something of the user's own
            with suppress(AttributeError):  # of a class with slots
                model.event = trial.event
        model.setup(trial.config)
        if trial.restored is not None:
            model.load(trial.restored)
        for _ in trial.steps():
            metrics = dict(model.step())
            if metrics.pop("done", False):
                trial.ends_with_next_report()
            trial.report(metrics, checkpoint=save)
    finally:
        cleanup = getattr(model, "cleanup", None)
        if cleanup is not None:
            cleanup()
