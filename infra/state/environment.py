"""What an experiment ran with: the code's commit, the packages, the machine. Never the contents of
environment variables.

Collected once per session by the driver, so it describes the driver's machine and the folder of the
user's code.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from importlib.metadata import distributions, version
from typing import Any

from regrow.infra.machine import capacity, gpus
from regrow.infra.machine.commands import run
from regrow.infra.state.sources import sources
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import background

PATIENCE_SECONDS = 5.0
"""Seconds for an answer of git; what is not known by then is left out."""


_NAMED = 5
"""Most packages that are named in a line."""
_begun: dict[tuple[str | None, str], Future[dict[str, Any]]] = {}


def begin_collecting(folder: str | None, trainable: str = "") -> None:
    """Start collecting for the code in `folder`, for the next session of this process.

    In a thread beside other work: it takes 0.2 s of CPU with 250 packages, plus `git status` on a
    large tree.
    """
    found = Future[dict[str, Any]]()

    def run() -> None:
        result: dict[str, Any] = {}
        try:
            result = collect(folder, trainable)
        finally:
            found.set_result(result)

    background.start(run, name="environment")
    _begun[folder, trainable] = found


def collected(folder: str | None, trainable: str = "") -> dict[str, Any]:
    """Return what was collected for the code in `folder`; collects now if nothing was."""
    if (folder, trainable) not in _begun:
        begin_collecting(folder, trainable)
    return _begun.pop((folder, trainable)).result()


def collect(folder: str | None, trainable: str = "") -> dict[str, Any]:
    """Return the environment as plain data. What cannot be found out is left out.

    Keys:
        git: commit, branch, dirty, remote; missing if `folder` is in no repository.
        code, files: hashes of the source files, see sources.py.
        python, regrow: versions.
        packages: name -> version.
        machine: host, os, gpus, and the cpus and memory_bytes that this process may use.
        user: name of the user.
    """
    machine = {
        "host": platform.node(),
        "os": platform.platform(),
        "cpus": capacity.cpus(),
        "memory_bytes": _memory(),
        "gpus": [gpu.name for gpu in gpus.found()],
    }
    found = {
        "git": _git(folder) if folder is not None else {},
        **(sources(folder, trainable) if folder is not None else {}),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "regrow": version("regrow"),
        "user": _user(),
        "machine": {key: value for key, value in machine.items() if value},
        "packages": _packages(),
    }
    return {key: value for key, value in found.items() if value}


def _packages() -> dict[str, str]:
    # Not by `.name`: a package whose metadata is damaged has none. `metadata` is parsed again on
    # each access (0.1 s for all packages), so it is read once.
    installed = (found.metadata for found in distributions())
    found = {str(one["Name"]): str(one["Version"]) for one in installed if one["Name"]}
    return dict(sorted(found.items(), key=lambda one: one[0].lower()))


def differences(theirs: Mapping[str, str]) -> str | None:
    """Return a line about packages that another machine has, and this one lacks or has in another
    version; None if there are none. `theirs`: name -> version.
    """
    ours = {name.lower(): version for name, version in _packages().items()}
    found = [
        f"{name} {version} (here {ours.get(name.lower(), 'missing')})"
        for name, version in theirs.items()
        if ours.get(name.lower()) != version
    ]
    if not found:
        return None
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"the leader's machine has other packages: {', '.join(found[:_NAMED])}{more}"


def _git(folder: str) -> dict[str, Any]:
    """Return commit, branch, remote and dirty. Empty without git or a readable repository."""
    git = ["git", "-C", folder]
    commit = _output_of([*git, "rev-parse", "HEAD"])
    if not commit:
        return {}
    status = ["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]
    changed = _output_of([*git, *status])
    # None for a detached head.
    branch = _output_of([*git, "symbolic-ref", "--short", "-q", "HEAD"])
    remote = _output_of([*git, "config", "--get", "remote.origin.url"])
    found = {
        "commit": commit,
        "branch": branch,
        "remote": without_credentials(remote or ""),
        "dirty": None if changed is None else changed != "",
    }
    return {key: value for key, value in found.items() if value not in (None, "")}


def without_credentials(url: str) -> str:
    """Return a repository's address without credentials, and without the part after "?"."""
    return re.sub(r"^(\w[\w+.-]*://)[^/]*@", r"\1", url).partition("?")[0]


def _memory() -> int | None:
    try:
        return capacity.memory()
    except (ValueError, OSError, AttributeError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user id without a name
        return ""


def _output_of(command: list[str]) -> str | None:
    """Return the output of a command, None if it failed or took too long."""
    quiet = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    with suppress(RegrowError, OSError):
        done = run(command, seconds=PATIENCE_SECONDS, env={**os.environ, **quiet})
        return done.stdout.strip() if done.returncode == 0 else None
    return None
