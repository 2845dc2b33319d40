"""A checkpoint of `State` as plain state_dicts, for `torch.load` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regrow.integrations.torch.files import CheckpointFolder
from regrow.integrations.torch.optimizers import PACKED, numbered
from regrow.integrations.torch.plain import restored
from regrow.integrations.torch.state import ABOUT, OBJECTS
from regrow.tasks.errors import UserError


def export(folder: Path | str, file: Path | str) -> list[str]:
    """Write a checkpoint of `State` as one file for `torch.load(file, weights_only=True)`.

    Returns the names of the parts in it. The file holds a map from them to what `load_state_dict`
    of the models, the optimizers and the others takes: whole, also where workers had shards, and on
    the CPU. Generators are left out. Raises UserError for a folder without such a checkpoint.
    """
    saved = CheckpointFolder(Path(folder))
    if ABOUT not in saved.keys:
        raise UserError(f"rg.torch: the checkpoint in {folder} was not saved by rg.torch.State")
    (about,) = saved.objects(ABOUT)
    names = [name for name in about["parts"] if f"{OBJECTS}.{name}" in saved.keys]
    objects = saved.objects(*(f"{OBJECTS}.{name}" for name in names))
    tensors: dict[str, torch.Tensor] = {}
    for key in saved.keys:
        if key.partition(".")[0] in names:
            size, dtype = saved.tensor(key)
            tensors[key] = torch.zeros(size, dtype=dtype)
    saved.fill(tensors)
    found: dict[str, Any] = {}
    for name, rest in zip(names, objects, strict=True):
        own = {
            key.partition(".")[2]: tensor
            for key, tensor in tensors.items()
            if key.partition(".")[0] == name
        }
        if isinstance(rest, dict) and rest.keys() == PACKED:
            packed = {tuple(path): own[".".join(path)] for path in rest["tensors"]}
            found[name] = numbered(packed, restored(rest))
        else:
            found[name] = {**own, **restored(rest)} if own else restored(rest)
    torch.save(found, file)
    return list(found)
