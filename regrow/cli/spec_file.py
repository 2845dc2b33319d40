"""Reads the specification of a command's FILE, and prints warnings about it to standard error
before anything starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regrow.show.live.terminal import tell

if TYPE_CHECKING:
    from regrow.search.spec import Spec


def read(file: Path, trials: int | None = None) -> Spec:
    """See `infra.state.spec_file.read_spec`. Raises as that does."""
    from regrow.infra.state.spec_file import read_spec

    return read_spec(
        file, trials=trials, tell=lambda line: tell(f"regrow: {line}", error=True, flush=True)
    )
