"""The engine for agents in a cloud, which keeps fleets of machines: they join the experiment, and
delete their fleets at its end.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec

from regrow.infra.clusters import project
from regrow.infra.clusters.agents import Agent, AgentWork, Output, Submission
from regrow.infra.clusters.clouds import fleet, groups
from regrow.infra.clusters.clouds.fleet import CloudFleet, FleetAccount, Order
from regrow.infra.clusters.clouds.fleet_machine import ENDED, PARCEL
from regrow.infra.clusters.description import OnVms, Workers
from regrow.infra.clusters.folder import variables
from regrow.infra.clusters.prices import Prices
from regrow.infra.state.places import Places
from regrow.search.durations import in_words
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Missing

END_SECONDS = 120.0
"""Seconds in which the machines delete their fleets after the experiment's end."""
_TICK = 2.0


class MachineFailure(msgspec.Struct, frozen=True, kw_only=True):
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


class FleetEngine:
    """The fleets of one cluster file; see AgentEngine."""

    sends = True
    reads = True
    no_output = "they were deleted, or their time (`expires`) was over"

    def __init__(self, cluster: OnVms, account: FleetAccount) -> None:
        self.cluster, self.place = cluster, account.place
        self._account, self._prices = account, Prices.of_cluster(cluster)

    def check(self) -> None:
        variables(self.cluster, os.environ)

    def offer(self, work: AgentWork) -> list[str]:
        self._checked(work)
        if self._there(work.experiment):
            return []
        workers, region = self.cluster.workers, self.cluster.region
        prices = [self._prices.of(one.type, region, one.market) for one in workers]
        head = f"{work.experiment} on fleets of {self.cluster.name}, in {region}:"
        until = f"  until the experiment ends, at most for {in_words(self.cluster.expires)}"
        need = "  those on demand but one only as trials wait for them"
        needed = [need] if groups.has_elastic_groups(self.cluster) else []
        return [head, *described(workers, prices), *needed, until]

    def files(self, work: AgentWork, say: Callable[[str], None]) -> dict[str, bytes]:
        """Return the files for the cloud's command line, without values of variables."""
        order = self._checked(work)
        return self._account.files(order, self._prices, self._parcel(work, order, say))

    def submit(self, work: AgentWork, say: Callable[[str], None]) -> Submission:
        """Start fleets, unless the experiment has some."""
        made = Submission(experiment=work.experiment, state=work.state, t=time.time())
        if self._there(work.experiment):
            say(f"{work.experiment} has fleets already")
            return made
        order, places = self._checked(work), Places.at(work.state)
        parcel = self._parcel(work, order, say)
        environment = fleet.environment(variables(self.cluster, os.environ))
        self._account.prepare(order, self._prices, say)
        fleet.forget(places, work.experiment, self.cluster.name)
        try:
            fleet.send(places, self.cluster, order, PARCEL, parcel)
            ids = self._account.start(order, self._prices, environment)
        except BaseException:
            fleet.forget(places, work.experiment, self.cluster.name)
            raise
        most = sum(one.most for one in self.cluster.workers)
        say(f"{work.experiment}: made {', '.join(ids)} of at most {most} machines")
        return made

    def submissions(self) -> list[Submission]:
        """Return what was submitted, from anywhere, until `end`."""
        return [
            Submission(experiment=experiment, state=state, t=t)
            for experiment, state, t in self._account.submitted()
        ]

    def agents(self, *of: Submission) -> list[Agent]:
        """Return the machines that fleets have and lack; with `of`, also those that were unable."""
        names = {one.experiment for one in of}
        found = [
            Agent(
                name=f"{one.id}/{place}",
                experiment=one.experiment,
                state="running" if place < one.running else "missing",
                node=one.group if place < one.running else "",
                reason="" if place < one.running else f"{one.group}, {one.id}",
            )
            for one in self._account.fleets()
            if not of or one.experiment in names
            for place in range(one.most)
        ]
        return found + [
            Agent(
                name=unable.host,
                experiment=one.experiment,
                state="unable",
                reason=next((line for line in reversed(unable.lines) if line.strip()), "").strip(),
                there=False,
                failed=True,
            )
            for one in of
            for unable in self._unable(one)
        ]

    def outputs(self, of: Submission) -> list[Output]:
        """Return what machines printed that could not take part."""
        return [
            Output(
                title=f"{one.host} ({one.group}), exit status {one.status}",
                lines=one.lines,
                t=one.t,
            )
            for one in self._unable(of)
        ]

    def done(self, of: Submission, say: Callable[[str], None]) -> None:
        """Delete what is left, unless others run there. The machines delete their fleets
        themselves, if they get the time.
        """
        deadline = time.monotonic() + END_SECONDS
        while (there := self._account.fleets()) and time.monotonic() < deadline:
            if others := [one for one in there if one.experiment != of.experiment]:
                names = ", ".join(dict.fromkeys(one.experiment for one in others))
                say(f"fleets of {self.cluster.name} stay, as {names} runs there")
                return
            time.sleep(_TICK)
        self.end(say)
        say(f"nothing of {of.experiment} is left in {self.cluster.region}")

    def end(self, say: Callable[[str], None]) -> None:
        submitted = self._account.submitted()
        try:
            self._account.end(say)
        finally:
            for experiment, state, _ in submitted:
                fleet.forget(Places.at(state), experiment, self.cluster.name)

    def _there(self, experiment: str) -> list[CloudFleet]:
        return [one for one in self._account.fleets() if one.experiment == experiment]

    def _unable(self, of: Submission) -> list[MachineFailure]:
        """Return the newest machines that could not take part, the newest last."""
        store, found = Places.at(of.state).store(of.experiment), []
        keys = [key for key in store.list(f"{fleet.objects(self.cluster.name)}/") if ENDED in key]
        for key in keys[-100:]:
            with suppress(Missing, msgspec.MsgspecError):
                found.append(msgspec.json.decode(store.read(key), type=MachineFailure))
        return sorted(found, key=lambda one: one.t)

    def _checked(self, work: AgentWork) -> Order:
        """Return the order of an experiment. Raises SpecError and UserError for mistakes that are
        found without an account.
        """
        self.check()
        ends = datetime.now(UTC) + timedelta(seconds=self.cluster.expires)
        order = Order(
            experiment=work.experiment,
            state=work.state,
            words=work.words,
            user=getpass.getuser(),
            expires=ends.isoformat(timespec="seconds"),
            endpoint=os.environ.get("AWS_ENDPOINT_URL"),
        )
        if len(order.state) > fleet.MOST_TAG:
            raise UserError(
                f"--state {order.state[:60]}...: has more than {fleet.MOST_TAG} characters, and a"
                " tag of a cloud has no more; give a shorter prefix"
            )
        self._account.check(order, self._prices)
        return order

    def _parcel(self, work: AgentWork, order: Order, say: Callable[[str], None]) -> bytes:
        """Return the agents' files, without values of variables."""
        files = project.packed(
            work.project, say, most=fleet.MOST_PROJECT, of="machines of a fleet get"
        )
        return fleet.parcel(self.cluster, order, files, self._account.exported(order))


def described(workers: Sequence[Workers], prices: Sequence[float | None]) -> list[str]:
    """Describe what may be started and what it costs, for people to confirm. `prices`: USD per hour
    of a machine of each group; None: unknown.
    """
    lines, unknown, total = [], dict[str, None](), 0.0
    for one, price in zip(workers, prices, strict=True):
        what = f"up to {one.most} x {one.type}" if one.most > 1 else one.type
        costs = f", {price * one.most:.2f} USD an hour" if price else ""
        lines.append(f"  {what}, {one.market}{costs}")
        total += (price or 0) * one.most
        if price is None:
            unknown[one.type] = None
    if unknown:
        hint = "give a file of prices at `prices` in the cluster file"
        return [*lines, f"  what {', '.join(unknown)} costs is not known; {hint}"]
    return [*lines, f"  at most {total:.2f} USD an hour"] if total else lines
