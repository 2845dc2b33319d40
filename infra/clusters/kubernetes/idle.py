"""Runs beside the head of a cluster, and suspends the cluster once nothing has run for some time:
the pods are deleted, the objects stay.

    python -m regrow.infra.clusters.kubernetes.idle --cluster NAME --namespace NAME --seconds S

It needs nothing outside the cluster. `regrow cluster up` resumes a suspended cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regrow.infra.clusters.kubernetes.pods import DASHBOARD_PORT

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK_SECONDS = 10.0
_UNDER_WAY = ("PENDING", "RUNNING")


class Idleness:
    """Measures how long there was no work. `seconds`: how long there may be none."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds, self._since = seconds, now

    def over(self, busy: bool, now: float) -> bool:
        """Return whether the limit is exceeded. `busy`: whether anything runs, or may run, at the
        monotonic time `now`.
        """
        if busy:
            self._since = now
        return now - self._since > self._seconds


def busy(jobs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether any of Ray's jobs and drivers, as listed by its dashboard, has not ended."""
    return any(job.get("status") in _UNDER_WAY for job in jobs)


def listed(address: str, token: str) -> list[dict[str, Any]]:
    """Return Ray's jobs. Raises OSError or ValueError if they are not available."""
    asked = urllib.request.Request(
        f"{address}/api/jobs/", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked, timeout=_LOOK_SECONDS) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def suspension(api: str, cluster: str, namespace: str, token: str) -> urllib.request.Request:
    """Return the request that suspends the cluster."""
    return urllib.request.Request(
        f"{api}/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{cluster}",
        data=json.dumps({"spec": {"suspend": True}}).encode(),
        headers={
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/merge-patch+json",
        },
        method="PATCH",
    )


def suspend(cluster: str, namespace: str) -> None:
    """Suspend the cluster, with the rights of the pod's service account. Raises OSError."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    api = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    request = suspension(api, cluster, namespace, (_ACCOUNT / "token").read_text().strip())
    trusted = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    urllib.request.urlopen(request, timeout=30, context=trusted).close()


def main(words: Sequence[str]) -> None:
    """Check every ten seconds. Never ends, as nothing would start it again: after a failure it
    reports that and tries again.
    """
    parser = argparse.ArgumentParser(prog="regrow.infra.clusters.kubernetes.idle")
    for name in ("--cluster", "--namespace"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args(words)
    idleness = Idleness(asked.seconds, time.monotonic())
    while True:
        time.sleep(_LOOK_SECONDS)
        try:
            try:
                works = busy(
                    listed(f"http://127.0.0.1:{DASHBOARD_PORT}", os.environ["RAY_AUTH_TOKEN"])
                )
            except (OSError, ValueError):
                works = True  # unknown: the probes handle a head that does not answer
            if idleness.over(works, time.monotonic()):
                sys.stdout.write(
                    f"nothing has run for {asked.seconds:g} s: the cluster is suspended\n"
                )
                sys.stdout.flush()
                suspend(asked.cluster, asked.namespace)
        except (OSError, KeyError, ValueError) as error:
            sys.stderr.write(f"the cluster could not be suspended: {error}\n")
            sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
