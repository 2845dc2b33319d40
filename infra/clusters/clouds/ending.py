"""Deletes the machine that it runs on: `python -m regrow.infra.clusters.clouds.ending gcp|azure`.

On these clouds a machine that shuts down is kept, and partly still costs. The right to delete it is
the machine's own, through its metadata service. A machine without that right is refused, and this
program ends with an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import requests

_TIMEOUT = 20.0
_GCP, _AZURE = (
    "http://metadata.google.internal/computeMetadata/v1",
    "http://169.254.169.254/metadata",
)
_GCP_HEADERS, _AZURE_HEADERS = {"Metadata-Flavor": "Google"}, {"Metadata": "true"}
_COMPUTE, _MANAGEMENT = "https://compute.googleapis.com/compute/v1", "https://management.azure.com"

Ask = Callable[..., Any]


def gcp(get: Ask = requests.get, delete: Ask = requests.delete) -> None:
    """Delete this machine through Compute Engine. Raises RequestException if it is refused."""

    def told(what: str) -> Any:
        return _checked(get(f"{_GCP}/{what}", headers=_GCP_HEADERS, timeout=_TIMEOUT))

    token = told("instance/service-accounts/default/token").json()["access_token"]
    machine = f"{told('instance/zone').text}/instances/{told('instance/name').text}"
    _checked(delete(f"{_COMPUTE}/{machine}", headers=_bearer(token), timeout=_TIMEOUT))


def azure(get: Ask = requests.get, delete: Ask = requests.delete) -> None:
    """Delete this machine through the Resource Manager. Raises RequestException if refused."""

    def told(what: str) -> Any:
        return _checked(get(f"{_AZURE}/{what}", headers=_AZURE_HEADERS, timeout=_TIMEOUT)).json()

    token = told(f"identity/oauth2/token?api-version=2018-02-01&resource={_MANAGEMENT}/")[
        "access_token"
    ]
    machine = told("instance/compute?api-version=2021-02-01")["resourceId"]
    _checked(
        delete(
            f"{_MANAGEMENT}{machine}?api-version=2024-07-01",
            headers=_bearer(token),
            timeout=_TIMEOUT,
        )
    )


def _checked(answer: Any) -> Any:
    answer.raise_for_status()
    return answer


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


if __name__ == "__main__":
    try:
        {"gcp": gcp, "azure": azure}[sys.argv[1]]()
    except requests.RequestException as refused:
        sys.exit(f"this machine could not be deleted: {refused}")
