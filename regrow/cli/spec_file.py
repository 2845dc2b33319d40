"""The specification of a command's FILE, and on the standard error what is said of it before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regrow.search.spec import Spec


def read(file: Path, trials: int | None = None) -> Spec:
    """See `infra.state.spec_file.read_spec`. Raises as that does."""
    from regrow.infra.state.spec_file import read_spec

    return read_spec(file, trials=trials, tell=lambda line: print(f"regrow: {line}", file=sys.stderr, flush=True))
