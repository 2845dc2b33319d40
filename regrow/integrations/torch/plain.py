"""Converts a `state_dict` to what `torch.load(weights_only=True)` accepts."""

from __future__ import annotations

import hashlib
import io
import operator
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from regrow.tasks.errors import UserError

_ARRAY = "@numpy"
"""Key of a map that represents an array."""


def plain(value: Any, name: str) -> Any:
    """Return the value without NumPy types: numbers as Python's, arrays as tensors.

    Raises UserError, with the name of the part, for a tensor that is divided among the workers.
    """

    def change(leaf: Any) -> Any:
        if isinstance(leaf, DTensor):
            raise UserError(
                f"rg.torch.State: {name!r} holds a tensor divided among workers, which only models"
                " and optimizers may"
            )
        if isinstance(leaf, np.generic):
            return leaf.item()
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
            return {_ARRAY: torch.from_numpy(np.ascontiguousarray(leaf).reshape(leaf.shape).copy())}
        return leaf

    return _changed(value, change)


def restored(value: Any) -> Any:
    """Undo `plain`; NumPy numbers stay Python numbers."""

    def change(node: Any) -> Any:
        whole = isinstance(node, dict) and node.keys() == {_ARRAY}
        return node[_ARRAY].numpy() if whole else node

    return _changed(value, change)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with its changed parts; the same object if nothing in it changed."""
    if (new := change(value)) is not value:
        return new
    if isinstance(value, Mapping):
        new = {key: _changed(one, change) for key, one in value.items()}
        return value if all(new[key] is one for key, one in value.items()) else new
    if isinstance(value, list | tuple):
        items = [_changed(one, change) for one in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    return value


def check(value: Any, name: str) -> None:
    """Raise UserError if a part's state could not be loaded, as it holds objects."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True, map_location="cpu")
    except (pickle.PicklingError, pickle.UnpicklingError, AttributeError, TypeError) as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        raise UserError(
            f"rg.torch.State: the state_dict of {name!r} could not be loaded again: it holds more"
            " than tensors, numbers, text, lists and maps"
            f" ({named[1] if named else str(error).partition(chr(10))[0]})"
        ) from None


def digest(value: Any) -> bytes:
    """Return a hash of a plain value; equal values have the same."""
    found = hashlib.sha256()

    def add(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            found.update(
                repr((one.dtype, one.shape)).encode() + one.cpu().contiguous().numpy().tobytes()
            )
        elif isinstance(one, Mapping):
            for key in one:
                found.update(repr(key).encode())
                add(one[key])
        elif isinstance(one, list | tuple):
            found.update(b"%d" % len(one))
            for part in one:
                add(part)
        else:
            found.update(repr(one).encode())

    add(value)
    return found.digest()
