"""What fleets of agents need in a project of Google Cloud: firewall rules, instance templates,
a secret and the instance groups; created, shown and deleted here.

All of it has a name that begins with `regrow-` and the cluster's.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Any

from regrow.infra.clusters.clouds import fleet, fleet_export, gcp
from regrow.infra.clusters.clouds.fleet import (
    AGENTS_TAG,
    EXPERIMENT_TAG,
    GROUP_TAG,
    STATE_TAG,
    USER_TAG,
    CloudFleet,
    Order,
)
from regrow.infra.clusters.clouds.fleet_export import Call
from regrow.infra.clusters.clouds.rest import Json, RestApi, output_of
from regrow.infra.clusters.description import Gcp
from regrow.infra.clusters.prices import Prices
from regrow.tasks.errors import RegrowError

_TOKEN = ("gcloud", "auth", "print-access-token")
_HINT = "install Google Cloud's command line, and type `gcloud auth login`"


class GcpAccount:
    """The project of a cluster file, as the user of `gcloud` sees it; see FleetAccount."""

    place = "Compute Engine"

    def __init__(self, cluster: Gcp) -> None:
        self._cluster = cluster
        self._ask = RestApi("Google Cloud", lambda: output_of(_TOKEN, _HINT))
        # As gcloud has them.
        over = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
        compute = os.environ.get(f"{over}COMPUTE") or "https://compute.googleapis.com/compute/v1/"
        secret = os.environ.get(f"{over}SECRETMANAGER") or "https://secretmanager.googleapis.com/"
        self._apis = compute.rstrip("/"), secret.rstrip("/")
        self._compute = gcp.compute(cluster, self._apis[0])
        self._managers = gcp.managers(cluster, self._apis[0])
        self._secrets = gcp.secrets(cluster, self._apis[1])

    def exported(self, order: Order) -> str:
        return ""

    def check(self, order: Order, prices: Prices) -> None:
        fleet.check_keys(self._cluster)
        for place in range(len(self._cluster.workers)):
            self._template(order, prices, place)

    def files(self, order: Order, prices: Prices, parcel: bytes) -> dict[str, bytes]:
        name = fleet.base(self._cluster, order)
        secret = f"{self._secrets}/{name}"
        asked = [
            *((f"{self._compute}/global/firewalls", one) for one in gcp.firewalls(self._cluster)),
            (f"{self._secrets}?secretId={name}", gcp.secret(self._cluster)),
            (f"{secret}:setIamPolicy", gcp.readers(self._cluster)),
            (f"{secret}:addVersion", {"payload": {"data": fleet_export.VALUES}}),
        ]
        for place in range(len(self._cluster.workers)):
            template = self._template(order, prices, place)
            asked.append((f"{self._compute}/global/instanceTemplates", template))
            asked.append((self._managers, gcp.manager(self._cluster, order, place)))
        calls = [Call("POST", url, body) for url, body in asked]
        return fleet_export.files(self._cluster, order, parcel, " ".join(_TOKEN), calls)

    def prepare(self, order: Order, prices: Prices, say: Callable[[str], None]) -> None:
        for one, tags in self._groups():
            fleet.check_user(self._cluster, tags[USER_TAG], one["name"])
        for body in gcp.firewalls(self._cluster):
            if self._ask("GET", f"{self._compute}/global/firewalls/{body['name']}") is None:
                self._do("POST", f"{self._compute}/global/firewalls", body)
        used = {one["name"] for one, _ in self._groups()}
        for one, tags in self._templates():
            if tags[EXPERIMENT_TAG] == order.experiment and one["name"] not in used:
                self._do("DELETE", f"{self._compute}/global/instanceTemplates/{one['name']}")
        for place in range(len(self._cluster.workers)):
            template = self._template(order, prices, place)
            self._do("POST", f"{self._compute}/global/instanceTemplates", template)

    def start(self, order: Order, prices: Prices, environment: bytes) -> list[str]:
        """See FleetAccount. If one group cannot be created, none is left."""
        name = fleet.base(self._cluster, order)
        secret = f"{self._secrets}/{name}"
        ids: list[str] = []
        # What is to be deleted is noted before it is asked for: the answer may be lost.
        with ExitStack() as made:
            made.callback(self._ask, "DELETE", secret)
            self._ask("POST", f"{self._secrets}?secretId={name}", gcp.secret(self._cluster))
            self._ask("POST", f"{secret}:setIamPolicy", gcp.readers(self._cluster))
            data = base64.b64encode(environment).decode()
            self._ask("POST", f"{secret}:addVersion", {"payload": {"data": data}})
            for place in range(len(self._cluster.workers)):
                body = gcp.manager(self._cluster, order, place)
                made.callback(self._do, "DELETE", f"{self._managers}/{body['name']}")
                self._do("POST", self._managers, body)
                ids.append(body["name"])
            made.pop_all()
        return ids

    def fleets(self) -> list[CloudFleet]:
        return [
            CloudFleet(
                id=one["name"],
                experiment=tags[EXPERIMENT_TAG],
                group=tags[GROUP_TAG],
                most=int(one.get("targetSize", 0)),
                running=int(one.get("currentActions", {}).get("none", 0)),
            )
            for one, tags in self._groups()
        ]

    def submitted(self) -> list[tuple[str, str, float]]:
        found = {
            (tags[EXPERIMENT_TAG], tags[STATE_TAG]): datetime.fromisoformat(
                one["creationTimestamp"]
            ).timestamp()
            for one, tags in self._templates()
        }
        return sorted(((*key, t) for key, t in found.items()), key=lambda one: one[2])

    def end(self, say: Callable[[str], None]) -> None:
        for name in self._ours_of_secrets():
            self._ask("DELETE", f"{self._secrets}/{name}")
        there = [one["name"] for one, _ in self._groups()]
        if there:
            say(f"  deleting {', '.join(there)}")
        for name in there:
            self._do("DELETE", f"{self._managers}/{name}")
        for one, _ in self._templates():
            self._do("DELETE", f"{self._compute}/global/instanceTemplates/{one['name']}")
        for body in gcp.firewalls(self._cluster):
            self._do("DELETE", f"{self._compute}/global/firewalls/{body['name']}")
        left = [one["name"] for one, _ in (*self._groups(), *self._templates())]
        if left := [*left, *self._ours_of_secrets()]:
            raise RegrowError(
                f"of the cluster {self._cluster.name} this is left in {self._cluster.project}:"
                f" {', '.join(left)}"
            )
        say(f"nothing of the cluster {self._cluster.name} is left in {self._cluster.project}")

    def _template(self, order: Order, prices: Prices, place: int) -> Json:
        return gcp.template(self._cluster, order, prices, place, apis=self._apis)

    def _do(self, method: str, url: str, body: Json | None = None) -> None:
        """Send a request, and wait for its end. What is to be deleted may be gone."""
        done = self._ask(method, url, body)
        while done is not None and done["status"] != "DONE":
            done = self._ask("POST", f"{done['selfLink']}/wait")
        if done is not None and (errors := done.get("error", {}).get("errors")):
            raise RegrowError(f"Google Cloud: {errors[0].get('message', errors[0])}")

    def _groups(self) -> list[tuple[Json, dict[str, str]]]:
        """Return the instance groups, with the tags in their descriptions."""
        return list(self._ours(self._managers))

    def _templates(self) -> list[tuple[Json, dict[str, str]]]:
        return list(self._ours(f"{self._compute}/global/instanceTemplates"))

    def _ours(self, url: str) -> Iterator[tuple[Json, dict[str, str]]]:
        for one in self._ask.listed(url, "items", "nextPageToken"):
            tags: Any = None
            if one["name"].startswith(f"regrow-{self._cluster.name}-"):
                with suppress(ValueError):  # a person's own
                    tags = json.loads(one.get("description") or "null")
            if isinstance(tags, dict) and tags.get(AGENTS_TAG) == self._cluster.name:
                yield one, tags

    def _ours_of_secrets(self) -> list[str]:
        url = f"{self._secrets}?filter=labels.{AGENTS_TAG}={self._cluster.name}"
        found = self._ask.listed(url, "secrets", "nextPageToken")
        return [one["name"].rpartition("/")[2] for one in found]
