"""Prefect's settings for all our processes: logs of runs go to the server, not into the terminal of
the live view.
"""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Mapping
from pathlib import Path

from regrow.infra.machine.host_environment import direct
from regrow.infra.prefect.server import configured_api_url
from regrow.infra.prefect.server_settings import CLIENT_ENVIRONMENT
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError
from regrow.tasks.process import temporary

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}
_TRIES = "PREFECT_CLIENT_MAX_RETRIES"
_FILES = {"prefect.toml": "", "pyproject.toml": "tool.prefect", ".env": "prefect_"}
"""The files with settings that Prefect reads in the current folder, and the word without which they
have none.
"""


def own_home(places: Places) -> dict[str, str]:
    """Return the variable that gives Prefect an empty home, private to this process; empty if the
    user has configured a server.

    Prefect runs code that it finds in its home (`logging.yml`) and follows settings there
    (`profiles.toml`). So the home is never in a state root, which may come from a stranger. Raises
    UserError as `refuse_settings` does, and if there is no place for temporary files.
    """
    refuse_settings(places)
    if configured_api_url() is not None:
        return {}
    try:
        home = temporary.process_temp_dir() / "prefect"
        home.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(
            f"there is no place for temporary files ({error}); name another one in TMPDIR"
        ) from error
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return {"PREFECT_HOME": str(home)}


def refuse_settings(places: Places) -> None:
    """Raise UserError if the current folder is in the state root and Prefect would read settings
    from it, which can run code.
    """
    try:
        here = Path.cwd()
    except OSError:  # the current folder was deleted
        return
    for name, word in _FILES.items() if here.is_relative_to(places.root) else ():
        if (file := here / name).is_file() and word in file.read_text(errors="replace").lower():
            hint = "go to another folder, or move that file out of the state root"
            raise UserError(
                f"{file} is in the state root {places.root}, and Prefect would take its settings"
                f" from there; {hint}"
            )


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a session beyond those of its server."""
    retries = {_TRIES: environment.get(_TRIES, "3")}  # 14 s in total, not a minute
    return {**QUIET, **CLIENT_ENVIRONMENT, **retries, **direct(environment)}
