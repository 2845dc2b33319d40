"""Notices from the clouds' metadata services that this machine is about to be taken away.

Each cloud is one class with one method, `poll`, which asks once. There are no threads here, and
only what the next question needs is stored. The forms are the documented ones:

* AWS, IMDSv2: a session token by PUT, then `spot/instance-action` (404 until there is a notice, two
  minutes ahead). AWS recommends to ask every 5 s. The rebalance recommendation, which may come much
  earlier or never, counts only if wanted.
* GCP: `instance/preempted` turns to TRUE 30 s ahead; `instance/maintenance-event` says
  TERMINATE_ON_HOST_MAINTENANCE for a machine that cannot be moved (one with a GPU), up to an hour
  ahead.
* Azure: `scheduledevents` lists events of the whole group of machines, at least 30 s ahead; ours
  are those that name our machine among their resources. They are not acknowledged, as that would
  hasten the end.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from regrow.tasks.errors import UserError

TIMEOUT_SECONDS = 1.0
"""The service is on the machine's host, and answers in milliseconds or does not exist."""
_MOST_BYTES = 1 << 20
_CLOUDS = ("auto", "aws", "gcp", "azure", "none")


class Unanswered(Exception):
    """The service gave no answer, or an undocumented one."""


class Cloud(Protocol):
    """Asks one cloud's metadata service."""

    def poll(self) -> str | None:
        """Return why the cloud takes this machine away; None: it has announced nothing. Raises
        Unanswered.
        """
        ...


def cloud(environment: Mapping[str, str], dmi: Path = Path("/sys/class/dmi/id")) -> Cloud | None:
    """Return the cloud to ask: the one in REGROW_CLOUD, else the one detected from the machine's
    firmware; None: there is none.

    Raises UserError if REGROW_CLOUD is not one of auto, aws, gcp, azure and none.
    """
    chosen = environment.get("REGROW_CLOUD", "").strip().lower() or "auto"
    if chosen not in _CLOUDS:
        raise UserError(
            f"REGROW_CLOUD={chosen!r} is unknown: set it to one of {', '.join(_CLOUDS)}, or"
            " unset it"
        )
    match _by_firmware(dmi) if chosen == "auto" else chosen:
        case "aws" if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
            return AwsMetadata(
                environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254",
                rebalance=environment.get("REGROW_AWS_REBALANCE") == "1",
            )
        case "gcp":
            return GcpMetadata(environment.get("GCE_METADATA_HOST") or "metadata.google.internal")
        case "azure":
            return AzureMetadata(
                environment.get("REGROW_AZURE_METADATA_ENDPOINT") or "http://169.254.169.254"
            )
        case _:
            return None


def _by_firmware(dmi: Path) -> str:
    # Nitro, or Xen.
    if _line(dmi / "sys_vendor") == "Amazon EC2" or "amazon" in _line(dmi / "bios_version"):
        return "aws"
    if _line(dmi / "product_name") == "Google Compute Engine":
        return "gcp"
    # Every Azure machine has this tag. Its vendor, Microsoft Corporation, is also that of any
    # Hyper-V machine.
    if _line(dmi / "chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77":
        return "azure"
    return "none"


def _line(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


class AwsMetadata:
    """EC2's instance metadata service. `rebalance`: recommendations to leave count, too."""

    def __init__(self, endpoint: str, *, rebalance: bool = False) -> None:
        self._at, self._rebalance = endpoint.rstrip("/"), rebalance
        self._token: str | None = None

    def poll(self) -> str | None:
        """See Cloud."""
        if (found := self._get("spot/instance-action")) is not None:
            action = _object(found)
            if action.get("action") not in ("terminate", "stop", "hibernate"):
                raise Unanswered(f"no such action is documented: {found[:80]}")
            when = action.get("time", "an unknown time")
            return f"AWS takes the spot instance back ({action['action']} at {when})"
        if self._rebalance and (found := self._get("events/recommendations/rebalance")) is not None:
            when = _object(found).get("noticeTime", "an unknown time")
            return f"AWS recommends to leave the spot instance (noticed at {when})"
        return None

    def _get(self, path: str) -> str | None:
        if self._token is None:
            self._token = self._new_token()
        for last in (False, True):
            header = {"X-aws-ec2-metadata-token": self._token} if self._token else {}
            status, body = _ask(f"{self._at}/latest/meta-data/{path}", header)
            if status == 401 and not last:  # the token has expired
                self._token = self._new_token()
                continue
            if status == 404:
                return None
            if status != 200:
                break
            return body
        self._token = None
        raise Unanswered(f"status {status}")

    def _new_token(self) -> str:
        """Return a session token; empty if the service has none (IMDSv1), and needs none."""
        header = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}  # the longest that AWS grants
        status, body = _ask(f"{self._at}/latest/api/token", header, method="PUT")
        if status == 200:
            return body.strip()
        if status in (403, 404, 405):
            return ""
        raise Unanswered(f"status {status} for a token")


class GcpMetadata:
    """Compute Engine's metadata server; `host` may have a port."""

    def __init__(self, host: str) -> None:
        self._at = f"http://{host}/computeMetadata/v1/instance"

    def poll(self) -> str | None:
        """See Cloud."""
        if self._get("preempted") == "TRUE":
            return "GCP preempts the instance"
        if self._get("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE":
            return "GCP terminates the instance for maintenance of its host"
        return None

    def _get(self, key: str) -> str:
        known = _text(f"{self._at}/{key}", {"Metadata-Flavor": "Google"}).strip().upper()
        if not known.replace("_", "").isalpha():
            raise Unanswered("no word")
        return known


class AzureMetadata:
    """Azure's instance metadata service."""

    def __init__(self, endpoint: str) -> None:
        self._at = f"{endpoint.rstrip('/')}/metadata"
        self._name: str | None = None

    def poll(self) -> str | None:
        """See Cloud."""
        if self._name is None:
            name = self._get("instance/compute/name?api-version=2021-02-01&format=text")
            self._name = name.strip().lower()
        events = _object(self._get("scheduledevents?api-version=2020-07-01")).get("Events")
        if not isinstance(events, list):
            raise Unanswered("no list of events")
        for event in events:
            if not isinstance(event, dict):
                continue
            kind, resources = event.get("EventType"), event.get("Resources")
            ours = [str(one).lower() for one in resources] if isinstance(resources, list) else []
            if kind in ("Preempt", "Terminate") and self._name in ours:
                when = event.get("NotBefore") or "now"
                return f"Azure takes the machine away ({kind}, not before {when})"
        return None

    def _get(self, path: str) -> str:
        return _text(f"{self._at}/{path}", {"Metadata": "true"})


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Bypasses proxies: the address means this machine, and a proxy would answer for its own."""


def _ask(url: str, headers: Mapping[str, str], *, method: str = "GET") -> tuple[int, str]:
    try:
        request = urllib.request.Request(url, headers=dict(headers), method=method)
        with _OPENER.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return answer.status, answer.read(_MOST_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unanswered(str(error) or type(error).__name__) from error


def _text(url: str, headers: Mapping[str, str]) -> str:
    status, body = _ask(url, headers)
    if status != 200:
        raise Unanswered(f"status {status}")
    return body


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Unanswered("no JSON") from error
    if not isinstance(found, dict):
        raise Unanswered("no JSON object")
    return found
