"""Runs beside the head of a cluster, and suspends the cluster once nothing has run for some time:
the pods are deleted, the objects stay.

    python -m regrow.infra.clusters.kubernetes.idle --cluster NAME --namespace NAME --seconds S

It needs nothing outside the cluster. `regrow cluster up` resumes a suspended cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import requests

from regrow.infra.clusters.jobs import under_way
from regrow.infra.clusters.provider import DASHBOARD_PORT

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK_SECONDS = 10.0


class Idleness:
    """Measures how long there was no work. `seconds`: how long there may be none."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds, self._since = seconds, now

    def over(self, busy: bool, now: float) -> bool:
        """Return whether the limit is exceeded. `busy`: whether anything runs, or may run."""
        if busy:
            self._since = now
        return now - self._since > self._seconds


def suspension(api: str, cluster: str, namespace: str, token: str) -> requests.PreparedRequest:
    """Return the request that suspends the cluster."""
    return requests.Request(
        "PATCH",
        f"{api}/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{cluster}",
        data=json.dumps({"spec": {"suspend": True}}),
        headers={
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/merge-patch+json",
        },
    ).prepare()


def suspend(cluster: str, namespace: str) -> None:
    """Suspend the cluster, with the rights of the pod's service account. Raises OSError."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    api = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    request = suspension(api, cluster, namespace, (_ACCOUNT / "token").read_text().strip())
    trusted = str(_ACCOUNT / "ca.crt")
    requests.Session().send(request, verify=trusted, timeout=30).raise_for_status()


def main(words: Sequence[str]) -> None:
    """Check every ten seconds. Never ends: after a failure it reports that and tries again."""
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
                works = under_way(DASHBOARD_PORT, os.environ["RAY_AUTH_TOKEN"])
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
