"""The trial's code in other processes. Ray tasks and actors that a trial starts unpickle functions
and classes by module name, and know of the trial only what their environment says.

Called in each worker process as it starts, so little is imported here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

CODE = "REGROW_CODE"
"""Variable with the location of the code: a trainable's import path and its folder."""
WORK = "REGROW_WORK"
"""Variable with the folder in which the trial runs, if workers start in another one."""
TRIAL = "REGROW_TRIAL"
"""Variable that only workers of a trial have: others do not need the trial's code."""
_SHIPPED, _NODE = "working_dir_files", "RAY_RAYLET_PID"
"""Ray's folder of unpacked working directories, and the variable that names a host's node."""
INSTALL = "regrow.tasks.process.own_code.install"
"""Function that workers call at their start."""


def variables(trainable: str, folder: str | None) -> dict[str, str]:
    """Return the variable for a trainable's path and folder (None: where workers start)."""
    return {CODE: json.dumps([trainable, folder])}


def second_name(file: Path) -> str:
    """Return the module name of a file whose own name is already used by another module."""
    return f"regrow_trainable_{hashlib.sha256(bytes(file)).hexdigest()[:12]}"


def install(environment: Mapping[str, str] = os.environ) -> None:
    """Make imports that find nothing else search the folder in the environment, if any."""
    # by name; it may belong to another folder by now
    try:
        here = Path.cwd()
    except FileNotFoundError:
        here = Path(environment.get("PWD", "/"))
    if here.parent.name == _SHIPPED:
        _keep(here, environment.get(_NODE, ""))
    if TRIAL not in environment or CODE not in environment:
        return
    trainable, folder = json.loads(environment[CODE])
    sys.meta_path.append(OwnCode(trainable, Path(folder or ".").resolve()))
    if (work := environment.get(WORK)) and os.path.isdir(work):
        os.chdir(work)


def _keep(folder: Path, node: str) -> None:
    """Move this process into a copy of a folder that Ray has shipped. The copy consists of hard
    links and takes no space.

    Each node of a cluster unpacks the folder and deletes what was there before, even if processes
    of another node on the same host run in it (Ray 2.60).
    """
    kept = folder.with_name(f"{folder.name}-{node}")
    with suppress(OSError), open(f"{folder}.zip.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Ray's lock: excludes deleting and unpacking meanwhile
        if not kept.is_dir():
            partial = folder.with_name(f"{kept.name}.{os.getpid()}")
            shutil.copytree(folder, partial, symlinks=True, copy_function=_named)
            partial.rename(kept)
        os.chdir(kept)
        places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            str(kept) if place == str(folder) else place for place in places
        )
        sys.path[:] = [str(kept) if place == str(folder) else place for place in sys.path]


def _named(file: str, name: str) -> None:
    """Create a hard link to a file, or a copy if the file system has no links."""
    try:
        os.link(file, name, follow_symlinks=False)
    except OSError:
        shutil.copy2(file, name, follow_symlinks=False)


class OwnCode:
    """Finds the modules that the trial finds: those of its folder, and the trainable's, under its
    file name or second name.

    It is the last finder. The folder is put at the front of the import path, as in the trial, only
    when something in it is needed: otherwise a user's `queue.py` would replace Python's.
    """

    def __init__(self, trainable: str, folder: Path) -> None:
        place = trainable.partition(":")[0]
        self._folder = str(folder)
        self._file = Path(folder, place).resolve() if place.endswith(".py") else None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:  # within a package, which finds its own modules
            return None
        found = PathFinder.find_spec(name, [self._folder])
        if (
            found is None
            and self._file is not None
            and name in (self._file.stem, second_name(self._file))
        ):
            found = spec_from_file_location(name, self._file)
        if found is not None and self._folder not in sys.path:
            sys.path.insert(0, self._folder)
        return found
