"""Experiments on fleets of AWS: what `regrow cluster submit --agents` does on this machine.

EC2 keeps the machines, which are agents of the experiment; they run it, whatever happens here, and
delete their fleets at its end.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from regrow.flows.remote import RunRequest, joining, offer
from regrow.infra.clusters.clouds import fleet, fleet_export
from regrow.infra.clusters.clouds.fleet import Order
from regrow.infra.clusters.clouds.fleet_account import Fleet, FleetAccount
from regrow.infra.clusters.clouds.fleet_machine import ENVIRONMENT, PARCEL
from regrow.infra.clusters.description import Aws
from regrow.infra.clusters.folder import Folder, variables
from regrow.infra.clusters.kubernetes import project
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.provider import Offer
from regrow.infra.machine import confidential
from regrow.infra.state.places import Places
from regrow.search.durations import in_words
from regrow.tasks.errors import UserError

_OTHER_SERVER = "AWS_ENDPOINT_URL_S3"


@dataclass(slots=True, kw_only=True)
class FleetRun:
    """Runs experiments on fleets. `say` gets lines for people, `file` is the cluster file."""

    cluster: Aws
    file: Path
    say: Callable[[str], None]
    prices: Prices = field(init=False)

    def __post_init__(self) -> None:
        self.prices = Prices(Path(self.cluster.prices) if self.cluster.prices else None)

    def offer(self, order: RunRequest) -> list[str]:
        """Describe what is started and what it costs at most, for people to confirm."""
        started = [
            Offer(
                role="workers",
                type=one.type,
                market=one.market,
                most=one.most,
                price=self.prices.of(one.type, self.cluster.region, one.market),
            )
            for one in self.cluster.workers
        ]
        head = f"{order.spec.name} on fleets of {self.cluster.name}, in {self.cluster.region}:"
        until = f"  until the experiment ends, at most for {in_words(self.cluster.expires)}"
        waits = [f"workers.{n}" for n, one in enumerate(self.cluster.workers) if one.after]
        at_once = [f"  {', '.join(waits)}: `after` is not used, all groups start at once"]
        return [head, *offer(started), until, *at_once * bool(waits)]

    def check(self, order: RunRequest) -> None:
        """Check for mistakes without an account. Raises SpecError and UserError."""
        variables(self.cluster, os.environ)
        described = self._order(order)
        for place in range(len(self.cluster.workers)):
            fleet.launch_template(
                self.cluster, described, self.prices, place, image="", security_group=""
            )

    def submit(self, order: RunRequest) -> None:
        """Start fleets of agents, unless the experiment has some. Raises RegrowError, SpecError and
        UserError.
        """
        self.check(order)
        described, name = self._order(order), order.spec.name
        packed = self._packed(order, described)
        account = FleetAccount(self.cluster)
        with Folder(self.cluster.name).alone(self.say):
            if there := [one.id for one in account.fleets() if one.experiment == name]:
                self.say(f"{name} has fleets already: {', '.join(there)}")
                return
            made = account.prepare_agents(described, self.say)
            account.make_templates(described, made, self.prices)
            self._put(order.places, name, packed)
            ids = account.start(described, made)
        most = sum(one.most for one in self.cluster.workers)
        self.say(f"{name}: made {', '.join(ids)} of at most {most} machines")

    def files(self, order: RunRequest) -> dict[str, bytes]:
        """Return the files for the aws CLI, without values of variables. Raises as `check`."""
        self.check(order)
        described = self._order(order)
        parcel = self._packed(order, described)[PARCEL]
        return fleet_export.files(self.cluster, described, self.prices, parcel)

    def fleets(self) -> list[Fleet]:
        """Return the fleets that start machines."""
        return FleetAccount(self.cluster).fleets()

    def _order(self, order: RunRequest) -> Order:
        if os.environ.get(_OTHER_SERVER):
            raise UserError(
                f"{_OTHER_SERVER} names another server, and the machines of a fleet get their files"
                " from a bucket of Amazon's; unset it"
            )
        ends = datetime.now(UTC) + timedelta(seconds=self.cluster.expires)
        return Order(
            experiment=order.spec.name,
            state=order.places.root,
            words=joining(order, str(order.file.resolve().relative_to(order.project))),
            user=getpass.getuser(),
            expires=ends.isoformat(timespec="seconds"),
            endpoint=os.environ.get("AWS_ENDPOINT_URL"),
        )

    def _packed(self, order: RunRequest, described: Order) -> dict[str, bytes]:
        """Return the objects that the machines get, by name."""
        left_out = confidential.confidential(order.project)
        files = project.packed(
            order.project, left_out, most=fleet.MOST_PROJECT, of="what a fleet's machines get has"
        )
        if left_out:
            self.say(confidential.told(left_out))
        values = variables(self.cluster, os.environ)
        return {
            PARCEL: fleet.parcel(self.cluster, described, files),
            ENVIRONMENT: fleet.environment(values),
        }

    def _put(self, places: Places, experiment: str, packed: dict[str, bytes]) -> None:
        """Put the objects in place of those of an earlier fleet."""
        fleet.forget(places, experiment, self.cluster.name)
        for name, content in packed.items():
            places.store(experiment).create(f"{fleet.objects(self.cluster.name)}/{name}", content)
