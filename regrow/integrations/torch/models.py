"""Prepares a model for a worker: replicated (DistributedDataParallel) or sharded (FSDP2)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from regrow.integrations.torch import group
from regrow.tasks.errors import UserError

Shards = bool | type[nn.Module] | tuple[type[nn.Module], ...]


def prepare(
    model: nn.Module,
    *,
    fsdp: Shards = False,
    device: torch.device | str | None = None,
    **options: Any,
) -> nn.Module:
    """Return the model for this worker, on its device; all workers begin with the weights of rank
    0.

    With several workers it is wrapped by DistributedDataParallel, or with `fsdp` by FSDP2, which
    divides parameters, gradients and the optimizer's state among them: True makes a unit of each
    layer in an `nn.Sequential` or `nn.ModuleList` and of the rest, one or several classes make one
    of each module of these. With one worker it is not wrapped. `device` is `rg.torch.device()` if
    None. `options` are those of DistributedDataParallel or `fully_shard`, checked for one worker,
    too.

    Create the optimizer afterwards, with the parameters of the returned model. Raises UserError for
    unknown options, a model that is already prepared or has no memory yet (device "meta"), and
    workers that cannot connect.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"rg.torch.prepare takes a model (nn.Module), not {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        raise UserError(
            "rg.torch.prepare: this model is a DistributedDataParallel already; prepare it once"
        )
    function = fully_shard if fsdp else DistributedDataParallel.__init__
    own = ("self", "module", "device_ids", "kwargs")
    known = [name for name in inspect.signature(function).parameters if name not in own]
    for name in options:
        if name not in known:
            what = "fully_shard" if function is fully_shard else "DistributedDataParallel"
            raise UserError(
                f"rg.torch.prepare: {what} has no option {name!r}; it has {', '.join(known)}"
            )
    if any(tensor.is_meta for tensor in _tensors(model)):
        raise UserError(
            'rg.torch.prepare: the model is on the device "meta", without memory; make it on a'
            " device, or shard it yourself with fully_shard (rg.torch.State saves it all the same)"
        )
    here = group.join()
    place = group.device() if device is None else torch.device(device)
    model = model.to(place)
    if here.size == 1:
        return model
    if fsdp:
        return _sharded(model, fsdp, place, options)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model  # DistributedDataParallel refuses it: there is no gradient to share
    return DistributedDataParallel(
        model, device_ids=None if place.type == "cpu" else [place], **options
    )


def _sharded(
    model: nn.Module, fsdp: Shards, place: torch.device, options: dict[str, Any]
) -> nn.Module:
    # As DistributedDataParallel does; else each shard would be of another model.
    for tensor in _tensors(model):
        dist.broadcast(tensor.detach(), 0)
    options.setdefault("mesh", init_device_mesh(place.type, (dist.get_world_size(),)))
    units = _layers(model)
    if not isinstance(fsdp, bool):
        units = (one for one in model.modules() if isinstance(one, fsdp))
    for unit in reversed(dict.fromkeys([model, *units])):  # inner units first
        fully_shard(unit, **options)
    return model


def _layers(module: nn.Module) -> Iterable[nn.Module]:
    """Yield the outermost layers with parameters that are in a list of layers."""
    for child in module.children():
        listed = isinstance(module, nn.Sequential | nn.ModuleList)
        if listed and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from _layers(child)


def _tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    return chain(model.parameters(), model.buffers())
