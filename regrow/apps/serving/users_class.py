"""The user's class: imported, checked, and wrapped as a model that computes JSON from inputs.
Errors are reported in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from regrow.apps.serving.batching import Result
from regrow.apps.serving.served import Served
from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.tasks.attempt.trainable import as_a_script, find
from regrow.tasks.errors import UserCodeError, UserError
from regrow.tasks.output.traces import in_a_line, user_trace


def found(path: str, folder: str) -> type[Served]:
    """Import and check the class at FILE.py:CLASS or module:CLASS. Raises User(Code)Error."""
    if not all(path.partition(":")[::2]):
        raise UserError(
            f"--model: {path!r} names no class; write FILE.py:CLASS, such as serve.py:Digits"
        )
    try:
        with as_a_script(path, folder):
            kind: Any = find(path, folder)
    except SpecError as wrong:
        hint = (
            "" if wrong.hint.startswith("install it") else f"; {wrong.hint}" if wrong.hint else ""
        )
        raise UserError(f"--model: {path}: {wrong.problem}{hint}") from None
    except (KeyboardInterrupt, UserError):
        raise
    except BaseException as error:  # SystemExit too: a script's main()
        raise UserCodeError(
            f"--model: {path}: importing it raised {in_a_line(error)}", user_trace(error)
        ) from error
    for problem in _wrong(path, kind):
        raise UserError(f"--model: {path}{problem}")
    made: type[Served] = kind
    return made


def _wrong(path: str, kind: Any) -> Iterator[str]:
    """Yield what is wrong with the class; later checks need what the earlier ones ask for."""
    if not (isinstance(kind, type) and issubclass(kind, Served)):
        name = path.rpartition(":")[2]
        yield f" is no subclass of rg.Served; write `class {name}(rg.Served):`"
        return
    given = getattr(kind, "Input", None)
    if given is None:
        yield " has no Input; write `class Input(pydantic.BaseModel):` in it, with its fields"
    elif (
        not (isinstance(given, type) and issubclass(given, BaseModel))
        or given.__pydantic_root_model__
    ):
        yield ": Input is no pydantic model with fields; write `class Input(pydantic.BaseModel):`"
    if missing := [
        name for name in ("load", "predict") if getattr(kind, name) is getattr(Served, name)
    ]:
        yield f" has no method {' and no '.join(missing)}"
    known = [name for name in vars(Served) if name.startswith("max_")]
    for name in vars(kind):
        if name.startswith("max_") and name not in known:
            yield f" sets {name}, which is no limit; {nearest(name, known)}"
    for name in ("max_batch", "max_inputs", "max_body", "max_items", "max_answer", "max_waiting"):
        if not isinstance(value := getattr(kind, name), int) or value < 1:
            yield f": {name} is {value!r}; write a whole number of 1 or more"
    if not isinstance(most := kind.max_seconds, int | float) or not most > 0:
        yield f": max_seconds is {most!r}; write seconds, more than 0"
    if not isinstance(wait := kind.max_wait, int | float) or not 0 <= wait <= 10:
        yield f": max_wait is {wait!r}; write seconds, from 0 to 10"


class Computing:
    """A loaded model: computes outputs as JSON from lists of inputs.

    It is loaded and called in one thread, `thread`, so that a library's thread-local settings
    (PyTorch: whether gradients are enabled) are the same in `predict` as in `load`.
    """

    def __init__(
        self,
        kind: type[Served],
        folder: Path,
        config: dict[str, Any],
        example: BaseModel | None = None,
    ) -> None:
        """Load it, and try it with `example`, if any. The user's exceptions are raised as is."""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        wrong = self.thread.submit(self._load, kind, folder, config, example).result()
        if wrong is not None:
            self.thread.shutdown(wait=False)
            raise wrong

    def run(self, inputs: list[Any]) -> Sequence[Result]:
        """Return each input's result; the inputs of a batch that raises are computed singly."""
        try:
            outputs = _listed(self._model.predict(inputs))
            if len(outputs) != len(inputs):
                raise ValueError(
                    f"predict returned {len(outputs)} outputs for {len(inputs)} inputs"
                )
            return [self._dump(output) for output in outputs]
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            if len(inputs) == 1:
                return [error]
        return [self.run([each])[0] for each in inputs]

    def _load(
        self, kind: type[Served], folder: Path, config: dict[str, Any], example: BaseModel | None
    ) -> BaseException | None:
        try:
            self._dump = _dumper(kind)
            self._model = kind()
            self._model.load(folder, config)
            result = b"" if example is None else self.run([example])[0]
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            return error
        return None if isinstance(result, bytes) else result


def _listed(outputs: Any) -> list[Any]:
    """Return the outputs as a list. Raises TypeError for what would be taken apart into something
    else than outputs: the keys of a map, the letters of a text, the names of a table's columns.
    """
    if (
        isinstance(outputs, int | float | Mapping | set | frozenset | str | bytes)
        or outputs is None
        or hasattr(outputs, "columns")
    ):
        what = "None" if outputs is None else f"a value of type {type(outputs).__name__}"
        raise TypeError(f"predict returned {what}; return a list, one output for each input")
    return list(outputs)


def example_of(kind: type[Served], sample: str | None) -> BaseModel | None:
    """Return the input for a warm-up: the class's example, else `sample` (JSON), else None. Raises
    UserError for a wrong example.
    """
    model: type[BaseModel] = kind.Input
    if kind.example is None:
        return None if sample is None else model.model_validate_json(sample)
    try:
        return model.model_validate(kind.example)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"--model: the example of {kind.__name__} is no Input: {where}: {first['msg']}"
        ) from None


def _dumper(kind: type[Served]) -> Callable[[Any], bytes]:
    if kind.Output is None:
        return lambda output: to_json(output, fallback=_plain, inf_nan_mode="null")
    adapter = TypeAdapter[Any](kind.Output)

    def dump(output: Any) -> bytes:
        return adapter.dump_json(
            adapter.validate_python(_plain(output) if hasattr(output, "tolist") else output)
        )

    return dump


def _plain(value: Any) -> Any:
    """Convert NumPy's and PyTorch's numbers and arrays to Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"predict returned {type(value).__name__}, which cannot be written as JSON")
