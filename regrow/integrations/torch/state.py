"""The complete state of a training, saved by all ranks, loaded by any number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer

from regrow.integrations.torch import generators, group, optimizers
from regrow.integrations.torch.files import CheckpointFolder, write
from regrow.integrations.torch.plain import check, plain, restored
from regrow.tasks.errors import UserError

VERSION = 1
_ABOUT, _OBJECTS, _RANKS = "@saved", "@objects", "@rank"
"""Keys beside the parts, whose names are identifiers: the save, and each rank's generators."""
_WAYS = ("state_dict", "load_state_dict")
_SHOWN = 3
"""Maximum names in a message, of possibly thousands."""


class State:
    """The parts of a training by names that the user chooses: `rg.torch.State(model=model,
    optimizer=optimizer, data=data)`.

    A part is a model, an optimizer (whose model must be a part, too), a random generator of
    PyTorch, NumPy or Python, or anything with `state_dict` and `load_state_dict`: a learning rate
    schedule, a GradScaler, `rg.torch.shard(...)`. The global generators of PyTorch, NumPy and
    Python, and the worker's GPU's, are always saved.

    Models and optimizers are saved by the names that their parameters have without
    DistributedDataParallel, FSDP2 and torch.compile, whole or in shards, so that any number of
    workers loads what any other number saved. Generators are saved for each rank; buffers (running
    means) and everything else are rank 0's. Raises UserError for other parts.
    """

    def __init__(self, **parts: Any) -> None:
        self._models: dict[str, nn.Module] = {}
        self._optimizers: dict[str, Optimizer] = {}
        self._generators: dict[str, generators.Generator] = {}
        self._others: dict[str, Any] = {}
        self._checked = False
        """Whether it was checked that the state can be loaded; once, as it takes time."""
        for name, part in parts.items():
            if not name.isidentifier():
                raise UserError(f"rg.torch.State: {name!r} is no name; use letters, digits and _")
            if isinstance(part, nn.Module):
                self._models[name] = part
            elif isinstance(part, Optimizer):
                self._optimizers[name] = part
            elif isinstance(part, generators.KINDS):
                self._generators[name] = part
            elif all(callable(getattr(part, way, None)) for way in _WAYS):
                self._others[name] = part
            else:
                raise UserError(
                    f"rg.torch.State: {name!r} is a {type(part).__name__}, which has no state_dict"
                    " and load_state_dict; save it beside (json, torch.save)"
                )
        if not parts:
            raise UserError(
                "rg.torch.State: name what to save, such as State(model=model, optimizer=optimizer)"
            )
        for name, model in self._models.items():
            if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
                raise UserError(
                    f"rg.torch.State: {name!r} is sharded by FSDP1; use FSDP2:"
                    " rg.torch.prepare(model, fsdp=True)"
                )
        for name in self._optimizers:
            self._model_of(name)

    def save(self, folder: Path | str) -> None:
        """Write this rank's part into `folder`. All ranks call it at the same step:
        `trial.report(..., checkpoint=state.save)`.

        Each rank may have its own folder, or all share one: no two ranks write the same file.
        Raises UserError, on all ranks, for a part that could not be loaded again; OSError if a
        rank's disk cannot be written.
        """
        here = group.join()
        first = here.rank == 0
        files: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        for name, model in self._models.items():
            named = set(optimizers.names(model, list(model.parameters())))
            values = get_model_state_dict(model)
            tensors = {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}
            files[name] = {key: value for key, value in tensors.items() if first or key in named}
            rest = {key: value for key, value in values.items() if key not in tensors}
            objects[name] = plain(rest, name)
        for name, optimizer in self._optimizers.items():
            files[name], objects[name] = optimizers.pack(name, optimizer, self._model_of(name))
        for name, part in self._others.items():
            objects[name] = plain(part.state_dict(), name)
        if not self._checked:
            for name, value in objects.items():
                check(value, name)
            self._checked = True
        if first:
            parts = sorted([*objects, *self._generators])
            about = {"version": VERSION, "ranks": here.size, "parts": parts}
            files[_ABOUT] = (about,)  # in a tuple, which is saved unchanged
            files[_OBJECTS] = {name: (value,) for name, value in objects.items()}
        files[_RANKS] = {str(here.rank): (generators.states(self._generators),)}
        write(files, Path(folder))

    def load(self, folder: Path | str) -> None:
        """Restore the parts from `folder`, which has the files of all ranks:
        `state.load(trial.restored)`.

        Any number of ranks may load, and fewer parts than were saved. The files cannot run code.
        Raises UserError, before anything is changed, for a folder without a complete checkpoint,
        and for parts that are missing or have other shapes.
        """
        here = group.world()
        saved, about = _opened(folder)
        wanted = [*self._models, *self._optimizers, *self._others, *self._generators]
        if missing := [name for name in wanted if name not in about["parts"]]:
            raise UserError(
                f"rg.torch.State: the checkpoint in {folder} has no {', '.join(missing)}; it has"
                f" {', '.join(about['parts'])}"
            )
        stored = [*self._models, *self._optimizers, *self._others]
        found = saved.objects(*(f"{_OBJECTS}.{name}" for name in stored))
        objects = dict(zip(stored, found, strict=True))
        tensors: dict[str, torch.Tensor] = {}
        models = {name: get_model_state_dict(model) for name, model in self._models.items()}
        for name, values in models.items():
            tensors |= _fitting(name, values, saved)
        states = {}
        for name, optimizer in self._optimizers.items():
            rest = objects[name]
            sizes = {tuple(path): saved.tensor(".".join([name, *path])) for path in rest["tensors"]}
            made = optimizers.room(name, sizes, rest, optimizer, self._model_of(name))
            tensors |= {".".join([name, *path]): tensor for path, tensor in made.items()}
            states[name] = made
        saved.fill(tensors)
        for name, model in self._models.items():
            set_model_state_dict(model, models[name] | restored(objects[name]))
        for name, optimizer in self._optimizers.items():
            optimizers.unpack(
                optimizer, self._model_of(name), states[name], restored(objects[name])
            )
        for name, part in self._others.items():
            part.load_state_dict(restored(objects[name]))
        if here.rank < about["ranks"]:
            generators.restore(self._generators, *saved.objects(f"{_RANKS}.{here.rank}"))
        else:
            others = saved.objects(*(f"{_RANKS}.{rank}" for rank in range(about["ranks"])))
            generators.begin(self._generators, others, here.rank)

    def _model_of(self, name: str) -> nn.Module:
        """Return the model with an optimizer's parameters, or a module of several."""
        own = set(optimizers.parameters_of(self._optimizers[name]))
        found = {at: model for at, model in self._models.items() if own & set(model.parameters())}
        if not own <= {parameter for model in found.values() for parameter in model.parameters()}:
            raise UserError(
                f"rg.torch.State: {name!r} has parameters of no model that is given; give its"
                " model, too, as rg.torch.prepare returned it, and make the optimizer from that"
                " one's parameters"
            )
        for model in found.values():
            if own <= set(model.parameters()):
                return model
        several = nn.Module()
        for at, model in found.items():
            several.add_module(at, model)
        return several


def export(folder: Path | str, file: Path | str) -> list[str]:
    """Write a checkpoint of `State` as one file for `torch.load(file, weights_only=True)`.

    Returns the names of the parts in it. The file holds a map from them to what `load_state_dict`
    of the models, the optimizers and the others takes: whole, also where workers had shards, and on
    the CPU. Generators are left out. Raises UserError for a folder without such a checkpoint.
    """
    saved, about = _opened(folder)
    names = [name for name in about["parts"] if f"{_OBJECTS}.{name}" in saved.keys]
    objects = saved.objects(*(f"{_OBJECTS}.{name}" for name in names))
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
        if isinstance(rest, dict) and rest.keys() == optimizers.PACKED:
            packed = {tuple(path): own[".".join(path)] for path in rest["tensors"]}
            found[name] = optimizers.numbered(packed, restored(rest))
        else:
            found[name] = {**own, **restored(rest)} if own else restored(rest)
    torch.save(found, file)
    return list(found)


def _opened(folder: Path | str) -> tuple[CheckpointFolder, dict[str, Any]]:
    """Return a checkpoint of `State`, and what it says of itself. Raises UserError for others."""
    saved = CheckpointFolder(Path(folder))
    if _ABOUT not in saved.keys:
        raise UserError(
            f"rg.torch.State: the checkpoint in {folder} was not saved by rg.torch.State"
        )
    (about,) = saved.objects(_ABOUT)
    if about["version"] != VERSION:
        version = f"of version {about['version']}; this regrow reads {VERSION}"
        raise UserError(f"rg.torch.State: the checkpoint in {folder} is {version}")
    return saved, about


def _fitting(name: str, values: dict[str, Any], saved: CheckpointFolder) -> dict[str, torch.Tensor]:
    """Return a model's tensors by their keys; UserError if some are missing or of another size."""
    tensors = {f"{name}.{k}": v for k, v in values.items() if isinstance(v, torch.Tensor)}
    saved_keys = {key for key in saved.keys if key.startswith(f"{name}.")}
    if missing := [key for key in tensors if key not in saved_keys]:
        raise UserError(
            f"rg.torch.State: the checkpoint in {saved.folder} has no {_some(missing)}; the model"
            " is another one"
        )
    if more := sorted(saved_keys - tensors.keys()):
        raise UserError(
            f"rg.torch.State: the model has no {_some(more)}, which the checkpoint in"
            f" {saved.folder} has"
        )
    for key, tensor in tensors.items():
        size, _ = saved.tensor(key)
        if size != tensor.size():
            saved_as = f"{tuple(size)} in the checkpoint in {saved.folder}"
            raise UserError(f"rg.torch.State: {key} is {tuple(tensor.size())} here, and {saved_as}")
    return tensors


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
