"""Experiments on fleets of AWS: what `regrow cluster submit --agents` does on this machine.

EC2 keeps the machines, which are agents of the experiment; they run it, whatever happens here, and
delete their fleets at its end.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from regrow.flows.remote import RunRequest, joining, offer
from regrow.infra.clusters.clouds import fleet, fleet_export
from regrow.infra.clusters.clouds.fleet import Order
from regrow.infra.clusters.clouds.fleet_account import Fleet, FleetAccount
from regrow.infra.clusters.clouds.fleet_machine import ENDED, ENVIRONMENT, PARCEL
from regrow.infra.clusters.description import Aws
from regrow.infra.clusters.folder import Folder, variables
from regrow.infra.clusters.kubernetes import project
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.provider import Offer
from regrow.infra.log.reading import survey
from regrow.infra.machine import confidential
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import Places
from regrow.search.durations import in_words
from regrow.search.errors import SpecError
from regrow.search.events import Closed
from regrow.search.history import History
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.ports.store import Missing

LOOK_SECONDS = 20.0
"""Seconds between two questions to EC2, which limits their number."""
END_SECONDS = 120.0
"""Seconds in which the machines delete their fleets after the experiment's end."""
_MOST_UNABLE = 100
_TICK = 2.0
_OTHER_SERVER = "AWS_ENDPOINT_URL_S3"


class Gone(UserError):
    """No fleet of the experiment is there any more, and it has not ended."""


class Unable(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that could not take part, as it put itself into the bucket.

    Attributes:
        host: its name.
        group: its group of workers.
        status: exit status of its agent, or the name of a signal.
        t: when, seconds since the epoch.
        lines: the last lines of its output.

    """

    host: str
    group: str
    status: str
    t: float
    lines: list[str] = []

    def in_words(self) -> str:
        """Return the last of its output, for people."""
        said = next((line for line in reversed(self.lines) if line.strip()), "it printed nothing")
        return f"{self.host}: {said.strip()}"


@dataclass(slots=True, kw_only=True)
class FleetRun:
    """Runs experiments on fleets. `say` gets lines for people, `file` is the cluster file."""

    cluster: Aws
    file: Path
    say: Callable[[str], None]
    prices: Prices = field(init=False)

    def __post_init__(self) -> None:
        self.prices = Prices.of_cluster(self.cluster)

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
        if self.cluster.mounts:
            hint = "have the files in the project's folder, in a bucket or in the image"
            raise SpecError("mounts", list(self.cluster.mounts), "are not sent to agents", hint)
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
        stopped = _ended(order) == "stopped"
        described, name = self._order(order, resume=stopped), order.spec.name
        packed = {
            PARCEL: self._parcel(order, described),
            ENVIRONMENT: fleet.environment(variables(self.cluster, os.environ)),
        }
        account = FleetAccount(self.cluster)
        with Folder(self.cluster.name).alone(self.say):
            if self.there(name):
                self.say(f"{name} has fleets already")
                return
            made = account.prepare_agents(described, self.say)
            account.make_templates(described, made, self.prices)
            fleet.forget(order.places, name, self.cluster.name)
            folder = fleet.objects(self.cluster.name, described)
            for called, content in packed.items():
                order.places.store(name).create(f"{folder}/{called}", content)
            try:
                ids = account.start(described, made)
            except BaseException:
                fleet.forget(order.places, name, self.cluster.name)
                raise
        most = sum(one.most for one in self.cluster.workers)
        self.say(f"{name}: made {', '.join(ids)} of at most {most} machines")

    def files(self, order: RunRequest) -> dict[str, bytes]:
        """Return the files for the aws CLI, without values of variables. Raises as `check`."""
        self.check(order)
        described = self._order(order)
        parcel = self._parcel(order, described)
        return fleet_export.files(self.cluster, described, self.prices, parcel)

    def fleets(self) -> list[Fleet]:
        """Return the fleets that start machines."""
        return FleetAccount(self.cluster).fleets()

    def there(self, experiment: str) -> list[Fleet]:
        """Return the fleets of an experiment that start machines."""
        return [one for one in self.fleets() if one.experiment == experiment]

    def over(self, order: RunRequest) -> bool:
        """Return whether the experiment has ended, and nothing more is asked for."""
        if _ended(order) is None:
            return False
        found = prepare(order.places, order.spec.name, order.spec, trials=order.trials, code=None)
        return found.nothing_left

    def unable(self, places: Places, experiment: str) -> list[Unable]:
        """Return the newest machines that could not take part, the newest last."""
        store = places.store(experiment)
        found = []
        keys = [key for key in store.list(f"{fleet.objects(self.cluster.name)}/") if ENDED in key]
        for key in keys[-_MOST_UNABLE:]:
            with suppress(Missing, msgspec.MsgspecError):
                found.append(msgspec.json.decode(store.read(key), type=Unable))
        return sorted(found, key=lambda one: one.t)

    def all_unable(self) -> list[Unable]:
        """Return the newest machines that could not take part, of all that was submitted."""
        there = FleetAccount(self.cluster).submitted()
        return [one for name, state in there for one in self.unable(Places.at(state), name)]

    def done(self, experiment: str) -> None:
        """Delete what is left after the experiment's end, unless others run there. The machines
        delete their fleets themselves, if they get the time.
        """
        account, deadline = FleetAccount(self.cluster), time.monotonic() + END_SECONDS
        with Folder(self.cluster.name).alone(self.say):
            while (there := account.fleets()) and time.monotonic() < deadline:
                if others := [one for one in there if one.experiment != experiment]:
                    names = ", ".join(dict.fromkeys(one.experiment for one in others))
                    self.say(f"fleets of {self.cluster.name} stay, as {names} runs there")
                    return
                time.sleep(_TICK)
            account.end(self.say)
        self.say(f"nothing of {experiment} is left in {self.cluster.region}")

    def _order(self, order: RunRequest, *, resume: bool = False) -> Order:
        if os.environ.get(_OTHER_SERVER):
            raise UserError(
                f"{_OTHER_SERVER} names another server, and the machines of a fleet get their files"
                " from a bucket of Amazon's; unset it"
            )
        words = joining(order, str(order.file.resolve().relative_to(order.project)))
        ends = datetime.now(UTC) + timedelta(seconds=self.cluster.expires)
        return Order(
            experiment=order.spec.name,
            state=order.places.root,
            words=words + ["--resume"] * resume,
            user=getpass.getuser(),
            expires=ends.isoformat(timespec="seconds"),
            endpoint=os.environ.get("AWS_ENDPOINT_URL"),
        )

    def _parcel(self, order: RunRequest, described: Order) -> bytes:
        """Return the agents' files, without values of variables."""
        left_out = confidential.confidential(order.project)
        files = project.packed(
            order.project, left_out, most=fleet.MOST_PROJECT, of="what a fleet's machines get has"
        )
        if left_out:
            self.say(confidential.told(left_out))
        return fleet.parcel(self.cluster, described, files)


def _ended(order: RunRequest) -> str | None:
    """Return how the experiment has ended; None for one that has not, or that is not there."""
    last = survey(order.places.store(order.spec.name)).last
    return last.status if isinstance(last, Closed) else None


class Agents:
    """Who runs an experiment on fleets, for its live view. `over`: nobody, as it has ended."""

    def __init__(self, run: FleetRun, places: Places, experiment: str, *, over: bool) -> None:
        self._run, self._places, self._name, self._over = run, places, experiment, over
        self._asked: float | None = None
        self._missing = False
        self._told = ""

    def heard(self) -> None:
        """Take note that the log has grown."""
        self._missing = False

    def banner(self, history: History | None = None) -> str:
        """Return a message while no machine runs, or some could not take part. Raises Gone."""
        now = time.monotonic()
        if self._over or (self._asked is not None and now - self._asked < LOOK_SECONDS):
            return self._told
        self._asked = now
        try:
            there = self._run.there(self._name)
            unable = self._run.unable(self._places, self._name)
        except RegrowError as error:
            self._told = str(error)
            return self._told
        last = unable[-1].in_words() if unable else ""
        if not there:
            # The log may tell the end a moment later than EC2.
            if self._missing:
                raise Gone(f"the fleets of {self._name} ended before it; {last}".rstrip("; "))
            self._missing = True
        running = sum(one.running for one in there)
        waits = f"waiting for EC2: {running} of {sum(one.most for one in there)} machines run"
        failed = f"{len(unable)} machines could not take part, such as {last}"
        self._told = failed if unable else waits if there and not running else ""
        return self._told
