"""A trial's parameters as W&B's `config`; the sweep's values cannot be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regrow.integrations.wandb.messages import print_once


class Config(dict[str, Any]):
    """The trial's parameters, which override the program's."""

    def __init__(self, swept: Mapping[str, Any]) -> None:
        super().__init__(swept)
        object.__setattr__(self, "_swept", dict(swept))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the config has no {name!r}; it has: {', '.join(self)}") from None

    def __setitem__(self, name: str, value: Any) -> None:
        swept: Mapping[str, Any] = object.__getattribute__(self, "_swept")
        if name not in swept:
            super().__setitem__(name, value)
        elif swept[name] != value:
            print_once(f"config: {name} stays {swept[name]!r}, as the sweep decides it")

    __setattr__ = __setitem__

    def update(self, given: Any = (), allow_val_change: bool | None = None, **more: Any) -> None:  # type: ignore[override]  # W&B's signature
        """Add the program's values. Raises TypeError for the path of a file, which is not read."""
        for name, value in {**as_map(given), **more}.items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def setdefaults(self, given: Any) -> None:
        for name, value in as_map(given).items():
            self.setdefault(name, value)

    def as_dict(self) -> dict[str, Any]:
        return dict(self)


def as_map(given: Any) -> dict[str, Any]:
    """Convert a map, pairs, or an object with attributes (argparse's namespace) to a map."""
    if isinstance(given, str):
        raise TypeError(f"wandb.config: the file {given!r} is not read; give a map of its values")
    found = vars(given) if hasattr(given, "__dict__") and not isinstance(given, Mapping) else given
    return {str(name): value for name, value in dict(found or ()).items()}
