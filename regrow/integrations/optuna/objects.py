"""Any value of Python's in the log, and back: choices and attributes that are no plain JSON.

Plain JSON stays as it is. Numbers, containers, classes and functions have a written form; any other
object is pickled into a file of the trial, which the form names by its SHA-256.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import pickle
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import numpy as np

from regrow.tasks.media.items import MOST_BYTES, latest, listed
from regrow.tasks.ports.store import Missing, Store

OBJECT = "regrow:object"
"""Key of a map that stands for a value which JSON has not; its value is the kind."""
MOST_INLINE = 64 << 10
"""Bytes of JSON of an attribute at most; a larger one is kept as a file."""
_MOST_TEXT = 200
_EXACT = 1 << 63
_PLAIN = (type(None), bool, str)
KeepFile = Callable[[str, Path], object]
"""Keeps a file of the trial under a name; see `Trial.log_file`."""


class NotStorable(Exception):
    """The object has no form. The message says why."""


def form(value: Any, name: str, keep: KeepFile, *, exact: bool) -> Any:
    """Return a value as JSON. `name`: of the file in which `keep` puts what has to be pickled.

    `exact`: NumPy's numbers and tuples come back as such; else as Python's numbers and lists, as
    from a storage of Optuna's. Raises NotStorable if it cannot be pickled, or is too large.
    """
    try:
        found = _form(value, exact)
        if len(msgspec.json.encode(found)) <= MOST_INLINE:
            return found
    except (_Foreign, RecursionError, ValueError):  # half of a surrogate pair; 4,300 digits
        pass
    from ray import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:  # a user's class may raise anything
        raise NotStorable(f"it cannot be pickled ({error})") from error
    if len(data) > MOST_BYTES:
        raise NotStorable(f"pickled, it has {len(data):,} bytes, and {MOST_BYTES:,} are the most")
    with tempfile.TemporaryDirectory(prefix="regrow-") as folder:
        file = Path(folder) / "object.pkl"
        file.write_bytes(data)
        keep(name, file)
    digest = hashlib.sha256(data).hexdigest()
    return {OBJECT: "file", "name": name, "sha256": digest, "text": described(value)}


def described(value: Any) -> str:
    """Return a short text for a value that is not kept; the same in all processes."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's class
        text = f"a {type(value).__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)[:_MOST_TEXT]


def is_filed(found: Any) -> bool:
    """Return whether a form names a file."""
    return isinstance(found, dict) and found.get(OBJECT) == "file"


def plain_value(found: Any) -> Any:
    """Return the value of a form without files."""
    return value_of(found, None, 0)


def value_of(found: Any, store: Store | None, trial: int) -> Any:
    """Return the value of a form. A file that is not there is its description; `store` None: all.

    Unpickles files of the trial whose hash is in the log: for the script of the study alone.
    """
    match found:
        case list():
            return [value_of(one, store, trial) for one in found]
        case dict() if OBJECT not in found:
            return {key: value_of(one, store, trial) for key, one in found.items()}
        case {"regrow:object": "float", "value": str(text)}:
            return float(text)
        case {"regrow:object": "int", "value": str(text)}:
            return int(text)
        case {"regrow:object": "numpy", "type": str(kind), "value": one}:
            return np.dtype(kind).type(value_of(one, store, trial))
        case {"regrow:object": "tuple", "items": list(items)}:
            return tuple(value_of(one, store, trial) for one in items)
        case {"regrow:object": "map", "items": list(items)}:
            pairs = [value_of(one, store, trial) for one in items]
            return {key: one for key, one in pairs}  # noqa: C416 - of lists of two
        case {"regrow:object": "name", "module": str(module), "name": str(name)}:
            try:
                return _named(module, name)
            except (ImportError, AttributeError):  # the script has no such class any more
                return f"{module}.{name}"
        case {"regrow:object": "file"}:
            return found.get("text") if store is None else _loaded(found, store, trial)
    return found


class _Foreign(Exception):
    """The value has to be pickled."""


def _form(value: Any, exact: bool) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if -_EXACT <= value < _EXACT else {OBJECT: "int", "value": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {OBJECT: "float", "value": str(value)}
    if isinstance(value, np.bool_ | np.integer | np.floating) and kind is not np.longdouble:
        plain = _form(value.item(), exact)
        return {OBJECT: "numpy", "type": value.dtype.str, "value": plain} if exact else plain
    if kind is list or (kind is tuple and not exact):
        return [_form(one, exact) for one in value]
    if kind is tuple:
        return {OBJECT: "tuple", "items": [_form(one, exact) for one in value]}
    if kind is dict:
        if all(type(key) is str for key in value) and OBJECT not in value:
            return {key: _form(one, exact) for key, one in value.items()}
        pairs = [[_form(key, exact), _form(one, exact)] for key, one in value.items()]
        return {OBJECT: "map", "items": pairs}
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, Enum):
        name = f"{kind.__qualname__}.{value.name}"
    if isinstance(module, str) and isinstance(name, str) and _has_name(value, module, name):
        return {OBJECT: "name", "module": module, "name": name}
    raise _Foreign


def _has_name(value: Any, module: str, name: str) -> bool:
    """Return whether a class or a function is found by its name, also in the script's process."""
    if module == "__main__":  # a worker has a copy, of which its own main module knows nothing
        return isinstance(value, type | FunctionType | Enum) and "<" not in name
    try:
        return _named(module, name) is value
    except (ImportError, AttributeError):
        return False


def _named(module: str, name: str) -> Any:
    found = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _loaded(found: Mapping[str, Any], store: Store, trial: int) -> Any:
    text, items = found.get("text"), latest(listed(store, trial))
    for item in reversed(items.values()):
        if item.name != found.get("name"):
            continue
        try:
            data = store.read(item.key)
        except Missing:
            continue
        if hashlib.sha256(data).hexdigest() == found.get("sha256"):
            return pickle.loads(data)  # noqa: S301 - written by this study, verified by the hash in its log
    return text
