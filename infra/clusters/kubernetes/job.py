"""What a RayJob runs: the experiment's command, in the project's folder.

    python -m regrow.infra.clusters.kubernetes.job --in FOLDER [--set NAME=VALUE]...
        -- regrow run ...

For every exit code but 0, KubeRay starts again with a new cluster. So a wrong specification would
start a hundred clusters. Therefore an end that another cluster would repeat is reported, and passed
on as 0; the log says whether the experiment has finished or failed. An end that was caused by the
loss of the machine is passed on unchanged.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from regrow.infra.clusters.kubernetes.leave import LEAVING

_FINAL = {
    1: "the experiment failed",
    2: "the input or the environment is wrong",
    4: "the durable state is damaged",
}
"""Exit codes of `regrow run` that would be the same with another cluster."""
_INTERRUPTED = 3


def passed_on(code: int, leaving: bool) -> tuple[int, str]:
    """Return the exit code for KubeRay, and a message. `leaving`: the pod is being ended."""
    if code in _FINAL:
        return (
            0,
            f"ended with exit code {code}: {_FINAL[code]}; another cluster would not change that",
        )
    if code == _INTERRUPTED and not leaving:
        return 0, "was stopped; `regrow run` or `regrow resume` continue with it"
    if code:
        return (
            code if code > 0 else 128 - code
        ), f"ended with {code}; it continues with another cluster"
    return 0, ""


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code for KubeRay."""
    parser = argparse.ArgumentParser(prog="regrow.infra.clusters.kubernetes.job")
    parser.add_argument("--in", dest="folder", required=True)
    parser.add_argument("--set", dest="variables", action="append", default=[])
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(words)
    command = (
        [sys.executable, "-m", *asked.command] if asked.command[0] == "regrow" else asked.command
    )
    # The job's end is signalled to all of its processes. This one ignores the signal and waits for
    # the experiment.
    signal.signal(signal.SIGTERM, lambda *_: None)
    given = dict(one.split("=", 1) for one in asked.variables)
    done = subprocess.run(command, cwd=asked.folder, env={**os.environ, **given}, check=False)
    code, said = passed_on(done.returncode, LEAVING.exists())
    if said:
        sys.stderr.write(f"regrow: {said}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
