"""Where a command was typed: the folder and the variables, for processes that were started somewhere else, before it was."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from regrow.tasks import own_code
from regrow.tasks.variables import put_back

_OWN = ("PREFECT_", "RAY_", "REGROW_STATION")
"""How a process finds its servers is not the user's to say once it has found them."""
_SHELL = {"_", "OLDPWD", "PWD", "SHLVL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What a process that runs for a command takes over. `folder` None: stays where it is; a variable that is None goes."""

    folder: str | None = None
    variables: Mapping[str, str | None]

    @classmethod
    def otherwise(cls, folder: str, variables: Mapping[str, str]) -> Typed:
        """What is otherwise there than in this process."""
        mine = {name: value for name, value in os.environ.items() if _counts(name)}
        theirs = {name: value for name, value in variables.items() if _counts(name)}
        gone: dict[str, str | None] = dict.fromkeys(mine.keys() - theirs.keys())
        return cls(folder=folder, variables={**gone, **{k: v for k, v in theirs.items() if mine.get(k) != v}})

    def take_over(self) -> None:
        """Makes this process as if it had been started there."""
        put_back(self.variables)
        if self.folder is not None:
            with suppress(OSError):  # of another machine
                os.chdir(self.folder)

    def inherited(self) -> dict[str, str]:
        """The same as variables of a process that is to be started; what is gone here is still there."""
        there = {name: value for name, value in self.variables.items() if value is not None}
        return there if self.folder is None else {**there, own_code.WORK: self.folder}


def _counts(name: str) -> bool:
    return not name.startswith(_OWN) and name not in _SHELL
