"""What fleets of agents need in a resource group of Azure: a network with its security group, and
the scale sets; created, shown and deleted here.

All of it has the tag `regrow-agents` with the cluster's name.
"""

from __future__ import annotations

import base64
import getpass
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from regrow.infra.clusters.clouds import azure, fleet, fleet_export
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
from regrow.infra.clusters.clouds.rest import Json, RestApi, output_of, until
from regrow.infra.clusters.description import Azure
from regrow.infra.clusters.prices import Prices
from regrow.tasks.errors import RegrowError

_HINT = "install Azure's command line, and type `az login`"
_TOKEN = ("az", "account", "get-access-token", "--output", "tsv", "--query", "accessToken")


class AzureAccount:
    """The resource group of a cluster file, as the user of `az` sees it; see FleetAccount."""

    place = "Azure"

    def __init__(self, cluster: Azure) -> None:
        self._cluster = cluster
        self._ask = RestApi("Azure", lambda: output_of(self._token, _HINT))

    @property
    def _token(self) -> tuple[str, ...]:
        chosen = self._cluster.subscription
        return (*_TOKEN, "--subscription", chosen) if chosen else _TOKEN

    @cached_property
    def _api(self) -> str:
        """The address of Azure's interface, without a slash at its end."""
        query = ("--query", "endpoints.resourceManager", "--output", "tsv")
        return output_of(("az", "cloud", "show", *query), _HINT).rstrip("/")

    @cached_property
    def _group(self) -> str:
        query = ("--query", "id", "--output", "tsv")
        subscription = self._cluster.subscription or output_of(
            ("az", "account", "show", *query), _HINT
        )
        return f"/subscriptions/{subscription}/resourceGroups/{self._cluster.resource_group}"

    @property
    def _sets(self) -> str:
        return f"{self._group}/providers/Microsoft.Compute/virtualMachineScaleSets"

    @property
    def _security(self) -> str:
        name = azure.resource_name(self._cluster)
        return f"{self._group}/providers/Microsoft.Network/networkSecurityGroups/{name}"

    @property
    def _network(self) -> str:
        name = azure.resource_name(self._cluster)
        return f"{self._group}/providers/Microsoft.Network/virtualNetworks/{name}"

    def exported(self, order: Order) -> str:
        return ""

    def check(self, order: Order, prices: Prices) -> None:
        fleet.check_keys(self._cluster)
        for place in range(len(self._cluster.workers)):
            azure.script(self._cluster, order, prices, place, api="", above="")
            azure.scale_set(self._cluster, order, place, subnet="", script="", password="")

    def files(self, order: Order, prices: Prices, parcel: bytes) -> dict[str, bytes]:
        calls = [
            Call("PUT", self._url(path, azure.NETWORK_VERSION), body)
            for path, body in self._shared()
        ]
        for place in range(len(self._cluster.workers)):
            url = self._url(f"{self._sets}/{self._name(order, place)}", azure.VERSION)
            body = self._set(order, place, fleet_export.SCRIPT, fleet_export.PASSWORD)
            calls.append(Call("PUT", url, body, self._script(order, prices, place)))
        return fleet_export.files(self._cluster, order, parcel, " ".join(self._token), calls)

    def prepare(self, order: Order, prices: Prices, say: Callable[[str], None]) -> None:
        there = self._ask("GET", self._url(self._network, azure.NETWORK_VERSION)) or {}
        if (user := there.get("tags", {}).get(USER_TAG)) is not None:
            fleet.check_user(self._cluster, user, azure.resource_name(self._cluster))
        for path, body in self._shared():
            url = self._url(path, azure.NETWORK_VERSION)
            self._ask("PUT", url, body)
            until(lambda url=url: self._made(url), f"Azure has not made {path}")  # type: ignore[misc]

    def start(self, order: Order, prices: Prices, environment: bytes) -> list[str]:
        """See FleetAccount. If one scale set is refused, none is left."""
        values = base64.b64encode(environment).decode()
        names: list[str] = []
        # What is to be deleted is noted before it is asked for: the answer may be lost.
        with ExitStack() as made:
            for place in range(len(self._cluster.workers)):
                script = self._script(order, prices, place).replace(fleet_export.VALUES, values)
                packed = base64.b64encode(script.encode()).decode()
                # Azure wants one. Nobody knows it, and nobody reaches the machine.
                body = self._set(order, place, packed, f"aA1-{secrets.token_urlsafe(48)}")
                names.append(self._name(order, place))
                url = self._url(f"{self._sets}/{names[-1]}", azure.VERSION)
                made.callback(self._ask, "DELETE", url)
                self._ask("PUT", url, body)
            made.pop_all()
        return names

    def fleets(self) -> list[CloudFleet]:
        return [
            CloudFleet(
                id=one["name"],
                experiment=one["tags"][EXPERIMENT_TAG],
                group=one["tags"][GROUP_TAG],
                most=int(one["sku"]["capacity"]),
                running=self._running(one["name"]),
            )
            for one in self._ours()
        ]

    def submitted(self) -> list[tuple[str, str, float]]:
        found = {}
        for one in self._ours():
            made = one["properties"].get("timeCreated")
            t = datetime.fromisoformat(made) if made else datetime.fromtimestamp(0, UTC)
            found[one["tags"][EXPERIMENT_TAG], one["tags"][STATE_TAG]] = t.timestamp()
        return sorted(((*key, t) for key, t in found.items()), key=lambda one: one[2])

    def end(self, say: Callable[[str], None]) -> None:
        if there := [one["name"] for one in self._ours()]:
            say(f"  deleting {', '.join(there)}")
        for name in there:
            self._ask("DELETE", self._url(f"{self._sets}/{name}", azure.VERSION))
        until(lambda: not self._ours(), f"Azure has not deleted {', '.join(there)}")
        for path in (self._network, self._security):
            url = self._url(path, azure.NETWORK_VERSION)
            self._ask("DELETE", url)
            until(lambda url=url: self._ask("GET", url) is None, f"Azure has not deleted {path}")  # type: ignore[misc]
        say(f"nothing of the cluster {self._cluster.name} is left in {self._cluster.region}")

    def _shared(self) -> list[tuple[str, Json]]:
        user = getpass.getuser()
        return [
            (self._security, azure.security(self._cluster, user)),
            (self._network, azure.network(self._cluster, user, self._security)),
        ]

    def _script(self, order: Order, prices: Prices, place: int) -> str:
        return azure.script(self._cluster, order, prices, place, api=self._api, above=self._sets)

    def _name(self, order: Order, place: int) -> str:
        return azure.name(self._cluster, order, place)

    def _set(self, order: Order, place: int, script: str, password: str) -> Json:
        subnet = f"{self._network}/subnets/machines"
        return azure.scale_set(
            self._cluster, order, place, subnet=subnet, script=script, password=password
        )

    def _made(self, url: str) -> bool:
        found = self._ask("GET", url) or {}
        state = found.get("properties", {}).get("provisioningState")
        if state == "Failed":
            raise RegrowError(f"Azure: {found['name']} could not be made")
        return bool(state == "Succeeded")

    def _running(self, name: str) -> int:
        view = self._ask("GET", self._url(f"{self._sets}/{name}/instanceView", azure.VERSION)) or {}
        counts = view.get("virtualMachine", {}).get("statusesSummary", ())
        return sum(one["count"] for one in counts if one["code"] == "ProvisioningState/succeeded")

    def _ours(self) -> list[dict[str, Any]]:
        found = self._ask.listed(self._url(self._sets, azure.VERSION), "value", "nextLink")
        return [one for one in found if one.get("tags", {}).get(AGENTS_TAG) == self._cluster.name]

    def _url(self, path: str, version: str) -> str:
        return f"{self._api}{path}?api-version={version}"
