"""TLS between the agents' Ray nodes, as Ray's own variables set it up on the leader's machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from regrow.tasks.errors import UserError

_SWITCH = "RAY_USE_TLS"
_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
"""Variables with the paths of a machine's certificate, its key, and the authority's certificate."""


def of_this_machine(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return Ray's variables for TLS; empty: TLS is off. Raises UserError for a missing file."""
    if environment.get(_SWITCH, "0") == "0":
        return {}
    return {_SWITCH: "1", **{name: _there(name, environment.get(name, "")) for name in _FILES}}


def like_the_leader(
    theirs: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables of a node in the leader's cluster: this machine's own paths, else the
    leader's. Raises UserError for a missing file.
    """
    if not theirs:
        return {_SWITCH: "0"}
    found = {name: environment.get(name) or theirs.get(name, "") for name in _FILES}
    return {_SWITCH: "1", **{name: _there(name, path) for name, path in found.items()}}


def _there(name: str, path: str) -> str:
    if not path or not Path(path).is_file():
        raise UserError(
            f"the agents' cluster uses TLS, and {name} names no file here: {path or 'nothing'}; put"
            f" the certificate there, or set {name}"
        )
    return path
