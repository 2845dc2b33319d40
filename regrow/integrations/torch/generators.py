"""Random generators: each rank's states, and states for ranks that are new."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from regrow.integrations.torch import group
from regrow.integrations.torch.plain import digest, plain, restored

Generator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


@dataclass(frozen=True)
class _Source:
    """A generator: functions that get its state, set its state, and seed it with 32 bits."""

    get: Callable[[], Any]
    put: Callable[[Any], object]
    seed: Callable[[int], object]


def states(own: Mapping[str, Generator]) -> dict[str, Any]:
    """Return the states of all global generators, this GPU's too, and of those in `own`."""
    return {name: plain(source.get(), name) for name, source in _sources(own).items()}


def restore(own: Mapping[str, Generator], saved: Mapping[str, Any]) -> None:
    """Restore what the rank saved; one that was not saved, for lack of a GPU, is left as it is."""
    for name, source in _sources(own).items():
        if name in saved:
            source.put(restored(saved[name]))


def save_to(file: Path) -> None:
    """Write the states of the global generators, for `restore_from`."""
    torch.save(states({}), file)


def restore_from(file: Path) -> None:
    """Restore the global generators."""
    restore({}, torch.load(file, weights_only=True))


def begin(own: Mapping[str, Generator], saved: Sequence[Mapping[str, Any]], rank: int) -> None:
    """Initialize the generators of a rank that did not exist when the others' were `saved`.

    If all ranks had the same state, as of a generator with a common seed, it is used; otherwise a
    new state is derived, which is the same whenever this checkpoint is restored by this many ranks.
    """
    for name, source in _sources(own).items():
        found = [one[name] for one in saved if name in one]
        if not found:
            continue
        if len({digest(one) for one in found}) == 1:
            source.put(restored(found[0]))
        else:
            source.seed(int.from_bytes(digest([found[rank % len(found)], rank])[:4], "little"))


def _sources(own: Mapping[str, Generator]) -> dict[str, _Source]:
    found = {
        "@torch": _of(torch.default_generator),
        # NumPy's global generator has no other interface.
        "@numpy": _Source(
            lambda: np.random.get_state(legacy=False),  # noqa: NPY002 - see above
            np.random.set_state,
            np.random.seed,
        ),
        "@python": _Source(
            lambda: _tensor(random.getstate()),
            lambda state: random.setstate(_tuple(state)),
            random.seed,
        ),
    }
    place = group.device()
    if place.type == "cuda":
        found["@cuda"] = _Source(
            lambda: torch.cuda.get_rng_state(place),
            lambda state: torch.cuda.set_rng_state(state, place),
            torch.cuda.manual_seed,
        )
    return found | {name: _of(generator) for name, generator in own.items()}


def _of(generator: Generator) -> _Source:
    match generator:
        case torch.Generator():
            return _Source(generator.get_state, generator.set_state, generator.manual_seed)
        case random.Random():
            return _Source(
                lambda: _tensor(generator.getstate()),
                lambda state: generator.setstate(_tuple(state)),
                generator.seed,
            )
        case np.random.RandomState():
            return _Source(
                lambda: generator.get_state(legacy=False), generator.set_state, generator.seed
            )
    bits = generator.bit_generator

    def put(state: Any) -> None:
        bits.state = state

    return _Source(lambda: bits.state, put, lambda seed: put(type(bits)(seed).state))


def _tensor(state: tuple[Any, ...]) -> list[Any]:
    """Return Python's state with its 625 numbers as a tensor, which saves 10 ms each time."""
    version, numbers, gauss = state
    return [version, torch.tensor(numbers), gauss]


def _tuple(state: list[Any]) -> tuple[Any, ...]:
    version, numbers, gauss = state
    return version, tuple(numbers.tolist()), gauss
