"""Checks that a framework is installed, and names the extra to install in one line."""

from __future__ import annotations

from importlib.util import find_spec

from regrow.tasks.errors import UserError


def need(extra: str, *packages: str) -> None:
    """Raise UserError, naming the extra, unless all packages are installed; imports none."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        are = "which is" if len(missing) == 1 else "which are"
        raise UserError(
            f"regrow.integrations.{extra} needs {' and '.join(missing)}, {are} not installed; pip"
            f' install "regrow[{extra}]"'
        )
