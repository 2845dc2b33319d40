"""Starts a Ray worker with its runtime environment, in place of Ray's script of the same name.

Ray's script imports all of Ray for that, and the worker then does so again: 0.3 s of CPU each time.
Other settings of a runtime environment, and arguments that are not as in Ray 2.60, are left to
Ray's script. Standard library only.
"""

import json
import os
import signal
import sys
from pathlib import Path

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language=PYTHON"


def main(worker: str, *arguments: str) -> None:
    """Become the worker. `worker`: path of Ray's script for it, which is in the folder of Ray's
    setup script.
    """
    # An agent's node blocks it (node_script.py), which its workers and their children must not.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    given = [word.removeprefix(CONTEXT) for word in arguments if word.startswith(CONTEXT)]
    known = len(given) == 1 and LANGUAGE in arguments
    context = json.loads(given[0]) if known else {}
    variables, python = context.pop("env_vars", {}), context.pop("py_executable", sys.executable)
    if (
        known
        and python == sys.executable
        and not any(context.values())
        and "$" not in "".join(variables.values())
    ):
        os.environ.update(variables)
        words = [worker, *(word for word in arguments if not word.startswith((CONTEXT, LANGUAGE)))]
    else:
        words = [str(Path(worker).with_name(Path(__file__).name)), worker, *arguments]
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - as Ray does


if __name__ == "__main__":
    main(*sys.argv[1:])
