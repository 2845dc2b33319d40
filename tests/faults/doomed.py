"""Processes that run an experiment in a folder and kill themselves. No test lives here.

`python -m tests.faults.doomed SCENARIO FOLDER` reads numbers; for each it forks a process that runs
the scenario over a store in FOLDER/number and sends itself SIGKILL at the transition of that
number, and writes the number once it is dead.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

from regrow.infra.stores.local import LocalStore
from tests.faults.scenarios import SEED, run
from tests.faults.still import stillness
from tests.faults.world import Process, Transition, World


def die(scenario: str, folder: Path, number: int) -> None:
    """Runs until the transition, and no further."""

    def kill(here: Transition, _: Process) -> None:
        if here.number == number:
            os.kill(os.getpid(), signal.SIGKILL)

    with stillness():
        run(World(LocalStore(folder), on=kill), scenario, seed=SEED)


def main(scenario: str, folder: Path) -> None:
    """Until there are no more numbers."""
    importlib.import_module("regrow.search.samplers.tpe_model")  # 1 s: not in each of them
    for line in sys.stdin:
        number = int(line)
        child = os.fork()
        if child == 0:
            try:
                die(scenario, folder / str(number), number)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        print(
            number
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            else f"{number} lived",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
