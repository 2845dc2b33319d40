"""Code in an interpreter of its own: for what imports, limits and signals change. No test lives
here.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def fresh(
    code: str, *arguments: object, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The code, run to its end; `options` of subprocess.run."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    usual: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(command, check=check, **usual, **options)


def printed(code: str, *arguments: object, **options: Any) -> str:
    """What the code prints, which has to end well."""
    done = fresh(code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
