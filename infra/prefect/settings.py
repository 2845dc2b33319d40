"""Prefect's settings for our processes: logs of runs go to the server, not to the terminal."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from regrow.infra.machine.host_environment import direct
from regrow.infra.prefect.server import (
    CLIENT_ENVIRONMENT,
    SETTINGS_FILES,
    configured_api_url,
    has_word,
)
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError
from regrow.tasks.process import temporary
from regrow.tasks.process.variables import within

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}
_TRIES = "PREFECT_CLIENT_MAX_RETRIES"
_FILES = {**SETTINGS_FILES, "prefect.toml": "", ".env": "prefect_"}
"""The files that Prefect reads in the current folder, and the words without which they have no
settings at all.
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
    """Raise UserError if Prefect would read settings, which can run code, of a state root, or its
    client cannot be made with this process's proxies.
    """
    _refuse_proxies()
    try:
        here = Path.cwd()
    except OSError:  # the current folder was deleted
        return
    for name, word in _FILES.items() if here.is_relative_to(places.root) else ():
        if has_word(file := here / name, word):
            hint = "go to another folder, or move that file out of the state root"
            raise UserError(
                f"{file} is in the state root {places.root}, and Prefect would take its settings"
                f" from there; {hint}"
            )


def _refuse_proxies() -> None:
    names = [
        name
        for name, value in sorted(os.environ.items())
        if name.lower().endswith("_proxy") and value
    ]
    if not names:
        return
    import httpx  # 0.1 s

    try:
        with within(direct(os.environ)):
            httpx.Client(verify=False).close()  # noqa: S501 - it sends nothing
    except Exception as error:
        # The error itself may show a part of a password.
        raise UserError(
            f"Prefect's client cannot be made with {' and '.join(names)}: httpx takes http://,"
            " https://, socks5:// and socks5h:// for a proxy, and in NO_PROXY neither brackets nor"
            " ranges of IPv6; correct one, or unset it"
        ) from error


def refused_setting(error: BaseException) -> str:
    """Return which setting of the user's Prefect does not take, and why, if that is the error, else
    "". Values are not shown: some are secrets.
    """
    if not isinstance(error, ValidationError) or not error.title.endswith("Settings"):
        return ""
    first = error.errors(include_url=False)[0]
    given = str(first["input"]).casefold()
    names = [
        name
        for name, value in sorted(os.environ.items())
        if name.startswith("PREFECT_") and value.casefold() == given
    ]
    key = ".".join(map(str, first["loc"]))
    where = ", ".join(names) or f"a variable PREFECT_... for {error.title}.{key}"
    return f"Prefect does not take the value of {where}: {first['msg']}; correct or unset it"


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a session beyond those of its server."""
    retries = {_TRIES: environment.get(_TRIES, "3")}  # 14 s in total, not a minute
    return {**QUIET, **CLIENT_ENVIRONMENT, **retries, **direct(environment)}
