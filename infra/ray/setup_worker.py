"""Starts a worker of Ray with the variables of its runtime environment, in place of Ray's own script of this name.

Ray's imports all of Ray to do that, and then again in the worker: 0.4 s of CPU for each. Whatever else a runtime environment
asks for is left to Ray's. Standard library only.
"""

import json
import os
import sys
from pathlib import Path

CONTEXT = "--serialized-runtime-env-context="


def main(worker: str, *arguments: str) -> None:
    """Become the worker; `worker` is the path of Ray's script for that, which lies beside its own of this name."""
    context = json.loads(next((word for word in arguments if word.startswith(CONTEXT)), CONTEXT + "{}")[len(CONTEXT):])
    variables, python = context.pop("env_vars", {}), context.pop("py_executable", sys.executable)
    if python == sys.executable and not any(context.values()) and "$" not in "".join(variables.values()):
        os.environ.update(variables)
        words = [worker, *(word for word in arguments if not word.startswith((CONTEXT, "--language=")))]
    else:
        words = [str(Path(worker).with_name(Path(__file__).name)), worker, *arguments]
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - as Ray does


if __name__ == "__main__":
    main(*sys.argv[1:])
