"""What a machine of a scale set asks Azure, with the rights of its identity; see
`fleet_machine.py`.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

_SECONDS = 60.0
_GONE_SECONDS = 600.0
"""Seconds in which Azure deletes a machine: one that only turned itself off would cost more."""


def environment(_: dict[str, Any]) -> bytes:
    """Raise OSError: the script that Azure ran has written the variables."""
    raise OSError("the file of the variables is missing")


def forget(fleet: dict[str, Any]) -> None:
    """Do nothing: Azure has the variables encrypted in the scale set alone."""


def delete(fleet: dict[str, Any]) -> None:
    """Delete the experiment's scale sets with their machines, this one's last."""
    for group in sorted(fleet["groups"], key=lambda one: one == fleet["here"]):
        _ask(fleet, "DELETE", group)
    time.sleep(_GONE_SECONDS)


def left(fleet: dict[str, Any]) -> None:
    """Have this machine made anew, unless Azure takes it or its set's machines come on need."""
    if fleet["on_need"]:
        unable(fleet)
        return
    _ask(fleet, "POST", _this(fleet) + "/reimage")
    time.sleep(_GONE_SECONDS)


def unable(fleet: dict[str, Any]) -> None:
    """Take this machine out of its scale set, which then is smaller."""
    _ask(fleet, "DELETE", _this(fleet))
    time.sleep(_GONE_SECONDS)


def machines(fleet: dict[str, Any]) -> dict[str, int]:
    """Return how many machines the sets have that come on need, those that start included."""
    return {
        name: int(_ask(fleet, "GET", url)["sku"]["capacity"])
        for name, url in fleet["start"].items()
    }


def start(fleet: dict[str, Any], group: str, count: int) -> None:
    """Start more machines of a set that come on need."""
    url = fleet["start"][group]
    sku = _ask(fleet, "GET", url)["sku"]
    _ask(fleet, "PATCH", url, {"sku": {**sku, "capacity": int(sku["capacity"]) + count}})


def _this(fleet: dict[str, Any]) -> str:
    instance = _metadata("instance/compute?api-version=2021-02-01")
    return str(fleet["api"] + instance["resourceId"])


def _metadata(what: str) -> Any:
    host = os.environ.get("REGROW_AZURE_METADATA_ENDPOINT") or "http://169.254.169.254"
    asked = urllib.request.Request(f"{host}/metadata/{what}", headers={"Metadata": "true"})
    with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
        return json.loads(answer.read())


def _ask(fleet: dict[str, Any], method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    """Send a request. Raises OSError for what is refused, unless it is not there any more."""
    what = "identity/oauth2/token?api-version=2018-02-01&resource={}/&msi_res_id={}"
    token = _metadata(what.format(fleet["api"], fleet["identity"]))["access_token"]
    kind = {"Content-Length": "0"} if body is None else {"Content-Type": "application/json"}
    asked = urllib.request.Request(
        "{}?api-version={}".format(url, fleet["version"]),
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", **kind},
    )
    try:
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        if error.code == 404 and method == "DELETE":
            return {}
        message = error.read(500).decode(errors="replace")
        raise OSError(f"{method} {url}: {error.code} {message}") from None
