"""The Host of attempts that run in the calling process, such as a script or a debugger."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from regrow.search.events import Place


@dataclass(frozen=True, slots=True)
class LocalHost:
    """It gives no notices, and signals keep the behaviour that the process has. `name`: of its
    node.
    """

    name: str

    def place(self) -> Place:
        return Place(self.name)

    def end_children(self) -> None:
        """See Host. Does nothing: children belong to the user's process, and a debugger may be one
        of them.
        """

    def listen(self, _: Callable[[str, bool], None]) -> AbstractContextManager[object]:
        return nullcontext()
