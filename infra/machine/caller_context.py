"""The folder and environment variables of a user's shell, for processes that were started elsewhere
and earlier, and run the shell's command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from regrow.tasks.process import own_code
from regrow.tasks.process.variables import put_back

_OWN = ("PREFECT_", "RAY_", "REGROW_STATION")
"""Never taken over: the process has found its servers with its own."""
_SHELL = {"_", "OLDPWD", "PWD", "SHLVL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerContext:
    """What a process takes over to run a shell's command.

    Attributes:
        folder: the working folder; None: unchanged.
        variables: values to set; None: the variable is removed.

    """

    folder: str | None = None
    variables: Mapping[str, str | None]

    @classmethod
    def of_shell(cls, folder: str, variables: Mapping[str, str]) -> CallerContext:
        """Return the differences between the shell and this process."""
        mine = {name: value for name, value in os.environ.items() if _counts(name)}
        theirs = {name: value for name, value in variables.items() if _counts(name)}
        gone: dict[str, str | None] = dict.fromkeys(mine.keys() - theirs.keys())
        return cls(
            folder=folder,
            variables={**gone, **{k: v for k, v in theirs.items() if mine.get(k) != v}},
        )

    def take_over(self) -> None:
        """Set the variables and the working folder of this process."""
        put_back(self.variables)
        if self.folder is not None:
            with suppress(OSError):  # a folder of another machine
                os.chdir(self.folder)

    def inherited(self) -> dict[str, str]:
        """Return the variables for a process to be started, which cannot remove any."""
        given = {name: value for name, value in self.variables.items() if value is not None}
        return given if self.folder is None else {**given, own_code.WORK: self.folder}


def _counts(name: str) -> bool:
    return not name.startswith(_OWN) and name not in _SHELL
