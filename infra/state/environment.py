"""What an experiment ran with: the code's commit, the packages, the machine. Never what stands in environment variables.

Collected once a session, by the driver, so that it describes the driver's machine and the folder of the user's code.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import subprocess
import threading
from importlib.metadata import distributions, version
from typing import Any

from regrow.infra.state.sources import sources

PATIENCE_SECONDS = 5.0
"""How long git, or the GPU's driver, may take to answer; what is not known by then is left out."""


class Collecting(threading.Thread):
    """Collects beside whatever else there is to do: it takes 0.2 s of CPU with 250 packages, and `git status` on a large tree."""

    def __init__(self, folder: str | None, trainable: str) -> None:
        super().__init__(name="regrow-environment", daemon=True)
        self._folder, self._trainable = folder, trainable
        self._found: dict[str, Any] = {}
        self.start()

    def run(self) -> None:
        """See Thread."""
        self._found = collect(self._folder, self._trainable)

    def result(self) -> dict[str, Any]:
        """What was found; waits for it."""
        self.join()
        return self._found


_begun: dict[str | None, Collecting] = {}


def begin_collecting(folder: str | None, trainable: str = "") -> None:
    """Begins to collect for the code in `folder`, for the next session of this process."""
    _begun[folder] = Collecting(folder, trainable)


def collected(folder: str | None, trainable: str = "") -> dict[str, Any]:
    """What was found for the code in `folder` since it was begun; collects now if it was not."""
    return (_begun.pop(folder, None) or Collecting(folder, trainable)).result()


def collect(folder: str | None, trainable: str = "") -> dict[str, Any]:
    """Plain data: `git` (commit, branch, dirty, remote; missing where `folder` is in no repository), `code` and `files` (hashes,
    see sources.py), `python`, `regrow`, `packages` (name -> version), `machine` (host, os, cpus, memory_bytes, gpus), `user`.
    What cannot be told is left out.
    """
    machine = {
        "host": platform.node(), "os": platform.platform(), "cpus": os.cpu_count(), "memory_bytes": _memory(), "gpus": _gpus(),
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
    # Not by `.name`: a package whose metadata is damaged has none. Each time it is asked for, it is parsed anew (0.1 s for all).
    told = (found.metadata for found in distributions())
    found = {str(one["Name"]): str(one["Version"]) for one in told if one["Name"]}
    return dict(sorted(found.items(), key=lambda one: one[0].lower()))


def _git(folder: str) -> dict[str, Any]:
    """Empty where there is no git, no repository, or none that may be read."""
    commit = _said(["git", "-C", folder, "rev-parse", "HEAD"])
    if not commit:
        return {}
    changed = _said(["git", "-C", folder, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no"])
    branch = _said(["git", "-C", folder, "symbolic-ref", "--short", "-q", "HEAD"])  # none: a detached head
    remote = _said(["git", "-C", folder, "config", "--get", "remote.origin.url"])
    found = {
        "commit": commit, "branch": branch, "remote": without_credentials(remote or ""),
        "dirty": None if changed is None else changed != "",
    }
    return {key: value for key, value in found.items() if value not in (None, "")}


def without_credentials(url: str) -> str:
    """A repository's address without user, password or token, and without what comes after "?"."""
    return re.sub(r"^(\w[\w+.-]*://)[^/]*@", r"\1", url).partition("?")[0]


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    said = _said(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in (said or "").splitlines() if line.strip()]


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user id without a name
        return ""


def _said(command: list[str]) -> str | None:
    """The output of a command, None if it failed or took too long."""
    quiet = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_SECONDS, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, **quiet},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
