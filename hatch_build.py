"""Refuses to build from a copy whose links are files: such a package would be without the four
folders that they lead to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("search", "tasks", "flows", "infra")


class Links(BuildHookInterface):  # type: ignore[type-arg]  # of its configuration, which it has none of
    """Checks the links before anything is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Check the links. Raises RuntimeError if one of them leads to no package."""
        lost = [
            name for name in FOLDERS if not Path(self.root, "regrow", name, "__init__.py").is_file()
        ]
        if lost:
            raise RuntimeError(
                f"{self.root}/regrow/{lost[0]} is no folder: this copy was made without symbolic"
                " links; install from git (on Windows with `git config core.symlinks true`), from"
                " the sdist or from a wheel"
            )
