"""What a machine of a group asks Google, with the rights of its service account; see
`fleet_machine.py`.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from typing import Any

_SECONDS = 60.0


def environment(fleet: dict[str, Any]) -> bytes:
    """Return the file of the agent's variables."""
    found = _ask("GET", "{}/versions/latest:access".format(fleet["secret"]))
    return base64.b64decode(found["payload"]["data"])


def forget(fleet: dict[str, Any]) -> None:
    """Delete the variables, which may be secret."""
    _ask("DELETE", fleet["secret"])


def delete(fleet: dict[str, Any]) -> None:
    """Delete the experiment's groups with their machines, this one's last."""
    for group in sorted(fleet["groups"], key=lambda one: one == fleet["here"]):
        _ask("DELETE", group)


def left(fleet: dict[str, Any]) -> None:
    """Do nothing, as the group replaces a machine that ends, unless its machines come on need."""
    if fleet["on_need"]:
        unable(fleet)


def machines(fleet: dict[str, Any]) -> dict[str, int]:
    """Return how many machines the groups have that come on need, those that start included."""
    return {name: _ask("GET", url)["targetSize"] for name, url in fleet["start"].items()}


def start(fleet: dict[str, Any], group: str, count: int) -> None:
    """Start more machines of a group that come on need."""
    url = fleet["start"][group]
    size = _ask("GET", url)["targetSize"] + count
    _ask("POST", f"{url}/resize?size={size}")


def unable(fleet: dict[str, Any]) -> None:
    """Take this machine out of its group, which then is smaller."""
    this = "{}/instances/{}".format(_metadata("instance/zone"), _metadata("instance/name"))
    asked = {"instances": [this], "skipInstancesOnValidationError": True}
    _ask("POST", "{}/deleteInstances".format(fleet["here"]), asked)


def _metadata(what: str) -> str:
    host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/{what}"
    asked = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
        return str(answer.read().decode())


def _ask(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    """Send a request. Raises OSError for what is refused, unless it is not there any more."""
    token = json.loads(_metadata("instance/service-accounts/default/token"))["access_token"]
    asked = urllib.request.Request(
        url,
        method=method,
        data=(b"" if method == "POST" else None) if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        if error.code == 404 and method == "DELETE":
            return {}
        message = error.read(500).decode(errors="replace")
        raise OSError(f"{method} {url}: {error.code} {message}") from None
