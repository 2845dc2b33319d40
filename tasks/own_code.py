"""The trial's own code in other processes: what a trial starts (Ray's tasks and actors) unpickles functions and classes by the
names of their modules, and knows nothing of the trial but the environment that it inherits.

Called in each worker process as it starts, so little is imported here.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

CODE = "REGROW_CODE"
"""The variable that says where the code is: a trainable's import path and its folder."""
WORK = "REGROW_WORK"
"""The variable that says in which folder the trial runs, where that is not the folder in which workers are started."""
TRIAL = "REGROW_TRIAL"
"""The variable that workers have which are a trial's: of these alone is the code anybody's business."""
INSTALL = "regrow.tasks.own_code.install"
"""What workers are to call."""


def told(trainable: str, folder: str | None) -> dict[str, str]:
    """The variable for a trainable's import path and the folder of its code, None for the one in which workers are started."""
    return {CODE: json.dumps([trainable, folder])}


def second_name(file: Path) -> str:
    """The name of a file's module where another one has the file's."""
    return f"regrow_trainable_{hashlib.sha256(bytes(file)).hexdigest()[:12]}"


def install(environment: Mapping[str, str] = os.environ) -> None:
    """Has modules that nobody else finds looked for in the folder of the trial's code, if the environment speaks of one."""
    if TRIAL not in environment or CODE not in environment:
        return
    trainable, folder = json.loads(environment[CODE])
    sys.meta_path.append(OwnCode(trainable, Path(folder or ".").resolve()))
    if (work := environment.get(WORK)) and os.path.isdir(work):
        os.chdir(work)


class OwnCode:
    """Finds what the trial finds: the modules of its folder, and the trainable's, whatever folder or second name that has.

    It is asked last. The folder comes to the front of the import path, where the trial has it, only when something of it is
    needed: before that a user's `queue.py` would be taken for Python's.
    """

    def __init__(self, trainable: str, folder: Path) -> None:
        place = trainable.partition(":")[0]
        self._folder = str(folder)
        self._file = Path(folder, place).resolve() if place.endswith(".py") else None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        if path is not None:  # within a package, which knows its own
            return None
        found = PathFinder.find_spec(name, [self._folder])
        if found is None and self._file is not None and name in (self._file.stem, second_name(self._file)):
            found = spec_from_file_location(name, self._file)
        if found is not None and self._folder not in sys.path:
            sys.path.insert(0, self._folder)
        return found
