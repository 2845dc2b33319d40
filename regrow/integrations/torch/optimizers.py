"""An optimizer's state by the names of its parameters, for any number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor, Replicate, zeros
from torch.optim import SGD, Optimizer

from regrow.integrations.torch.plain import plain
from regrow.tasks.errors import UserError

Path = tuple[str, ...]
"""A parameter's name and the keys below it: ("0.weight", "exp_avg")."""
PACKED = frozenset({"state", "tensors", "other", "groups", "more"})
"""Keys of the rest that `pack` returns."""


def names(model: nn.Module, parameters: Sequence[torch.Tensor]) -> list[str]:
    """Return the parameters' names without DistributedDataParallel's and torch.compile's."""
    if not parameters:
        return []
    # PyTorch names the entries of an optimizer's state. Without a state, it would run a step to
    # create one.
    probe = SGD(parameters, lr=0.0)
    probe.state[parameters[0]] = {"named": True}
    found: Any = get_optimizer_state_dict(model, probe)["param_groups"]
    return list(found[0]["params"])


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return its parameters, in the order in which its `state_dict` numbers them."""
    return list(dict.fromkeys(one for group in optimizer.param_groups for one in group["params"]))


def pack(
    name: str, optimizer: Optimizer, model: nn.Module
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split its state into tensors, nested by names, and the rest with the tensors' paths."""
    whole = optimizer.state_dict()
    known = names(model, parameters_of(optimizer))
    tensors: dict[str, Any] = {}
    rest: dict[str, Any] = {"state": {}, "tensors": [], "other": {}}
    for key, state in whole["state"].items():
        if not (isinstance(key, int) and 0 <= key < len(known)):
            rest["other"][key] = state  # does not belong to a parameter
            continue
        rest["state"][known[key]] = {}
        for path, value in _leaves((known[key],), state):
            if isinstance(value, DTensor) or (isinstance(value, torch.Tensor) and value.dim()):
                _put(tensors, path, value)
                rest["tensors"].append(path)
            else:
                _put(rest["state"], path, value)
    rest["groups"] = [
        {**group, "params": [known[one] for one in group["params"]]}
        for group in whole.pop("param_groups")
    ]
    rest["more"] = {key: value for key, value in whole.items() if key != "state"}
    return tensors, plain(rest, name)


def room(
    name: str,
    saved: Mapping[Path, tuple[torch.Size, torch.dtype]],
    rest: Mapping[str, Any],
    optimizer: Optimizer,
    model: nn.Module,
) -> dict[Path, torch.Tensor]:
    """Return empty tensors for the saved ones, each divided among the workers like its parameter.

    Raises UserError if the optimizer's groups contain other parameters than the saved ones.
    """
    of = parameters_of(optimizer)
    order, groups = names(model, of), optimizer.state_dict()["param_groups"]
    now = [{order[one] for one in group["params"]} for group in groups]
    if [set(group["params"]) for group in rest["groups"]] != now:
        raise UserError(
            f"rg.torch.State: {name!r} has other parameters, or groups of them, than when it was"
            " saved"
        )
    parameters = dict(zip(order, of, strict=True))
    found = {}
    for path, (size, dtype) in saved.items():
        parameter = parameters[path[0]]
        if not isinstance(parameter, DTensor):
            found[path] = torch.zeros(size, dtype=dtype, device=parameter.device)
        elif size == parameter.size():
            found[path] = torch.zeros_like(parameter.detach(), dtype=dtype)
        else:  # such as Adafactor's, with one number per row: whole on each worker
            mesh = parameter.device_mesh
            whole = [Replicate()] * mesh.ndim
            found[path] = zeros(size, dtype=dtype, device_mesh=mesh, placements=whole)
    return found


def unpack(
    optimizer: Optimizer,
    model: nn.Module,
    tensors: Mapping[Path, torch.Tensor],
    rest: Mapping[str, Any],
) -> None:
    """Load what `pack` returned for another optimizer, with the tensors that `room` made."""
    now = optimizer.state_dict()["param_groups"]
    made = numbered(tensors, rest, names(model, parameters_of(optimizer)))
    groups = [
        {**group, "params": own["params"]}
        for group, own in zip(made["param_groups"], now, strict=True)
    ]
    optimizer.load_state_dict({**made, "param_groups": groups})


def numbered(
    tensors: Mapping[Path, torch.Tensor],
    rest: Mapping[str, Any],
    named: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return what `pack` returned as the `state_dict` of an optimizer.

    `named`: the names of its parameters in their order; None: in the order of the saved one.
    """
    if named is None:
        named = [name for group in rest["groups"] for name in group["params"]]
    known = {parameter: number for number, parameter in enumerate(named)}
    state: dict[Any, Any] = dict(rest["other"])
    for parameter, values in rest["state"].items():
        state[known[parameter]] = values
    for path, tensor in tensors.items():
        _put(state, (known[path[0]], *path[1:]), tensor)
    groups = [
        {**group, "params": [known[name] for name in group["params"]]} for group in rest["groups"]
    ]
    return {**rest["more"], "state": state, "param_groups": groups}


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, one in value.items():
            yield from _leaves((*path, key), one)
    else:
        yield path, value


def _put(root: dict[Any, Any], path: Sequence[Any], value: Any) -> None:
    for key in path[:-1]:
        root = root.setdefault(key, {})
    root[path[-1]] = value
