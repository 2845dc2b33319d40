"""One agent: takes part in an experiment from its start to its end, as a worker or as the leader.

The leader's process has a Ray head and the experiment's driver, an ordinary `regrow run` or
`resume` on that head; every other agent has a Ray node of that cluster. A new leader is a new
cluster and a new session, which continues from the log.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from regrow.apps.agent import election, reach
from regrow.apps.agent.reach import Calls, Ports
from regrow.flows.interrupts import PAUSED
from regrow.infra.clusters.node import versions
from regrow.infra.log.reading import replay, survey
from regrow.infra.machine import capacity, tied
from regrow.infra.machine.supervised import Backoff, Supervised
from regrow.infra.ray.labels import AGENT, AGENT_LABEL, ENDS_LABEL, MARKET_LABEL
from regrow.infra.ray.own_node import OwnNode
from regrow.infra.state.agents import Agents, Head, Member, Over, Term
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import AGAIN, CLUSTER, Places
from regrow.search.events import Closed, Status
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.process import background
from regrow.tasks.process.forking import handling

LOOK_SECONDS = 1.0
"""Seconds between two looks at the state."""
CALL_SECONDS = 20.0
"""Seconds that an agent which reaches the leader waits for the leader's call."""
ENDS_SECONDS = 60.0
"""Seconds before the end of its machine at which an agent leaves."""
TRIES = 3
"""Times that the leader starts a driver again that ended without an end of the session."""
HANDOVER_SECONDS = 50.0
"""Seconds that a driver has to save its trials and close the log."""
_TICK = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What an agent is asked to do.

    Attributes:
        name: the experiment.
        places: where its state is.
        spec: its specification; None: it exists already.
        trials: another total of trials; None: the specification's.
        command: words of the command `regrow` with which a leader runs it.
        stopped: whether an experiment that was stopped by its user is continued.
        cpus: CPUs for trials; None: all that this process may use.
        gpus: GPUs for trials; None: all that are visible.
        labels: further labels of its node.
        address: its machine's address, as the others reach it; None: found out.
        ports: its ports; None: any free ones.
        ends: when its machine ends, seconds since the epoch; None: unknown.
        leads: whether it may lead.
        works: whether trials run here.

    """

    name: str
    places: Places
    spec: Spec | None
    trials: int | None
    command: tuple[str, ...]
    stopped: bool = False
    cpus: int | None = None
    gpus: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    ports: Ports | None = None
    ends: float | None = None
    leads: bool = True
    works: bool = True


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How an agent's part ended: the experiment's end, or `why` this agent leaves before it."""

    why: str
    status: Status | None = None


def take_part(request: Request, say: Callable[[str], None]) -> Ended:
    """Be an agent of an experiment until it has ended, or this agent has to leave.

    Raises UserError for what makes it impossible here, such as other versions than the leader's.
    """
    if (over := _over_before(request)) is not None:
        return over
    here = request.address or reach.own_address()
    name, nonce = f"{_host()}-{uuid.uuid4().hex[:6]}", secrets.token_hex(16)
    port = 0 if request.ports is None else request.ports.call
    with _notices(request) as notices, reach.waiting(here, port, nonce) as calls:
        member = Member(
            id=name,
            host=socket.gethostname(),
            process=os.getpid(),
            joined=time.time(),
            address=here,
            port=calls.port,
            nonce=nonce,
            cpus=_cpus(request),
            gpus=request.gpus or 0,
            market=request.labels.get(MARKET_LABEL, ""),
            ends=request.ends,
            leads=request.leads,
        )
        agent = _Agent(request, member, notices, calls, say)
        with agent.agents.present(member) as because:
            ended = agent.run()
            because(ended.why)
            return ended


def _over_before(request: Request) -> Ended | None:
    """Return how the experiment has ended; None if there is something to do. Raises UserError or
    SpecError for what cannot be run.
    """
    places = request.places
    store = places.store(request.name)
    last = survey(store).last
    if isinstance(last, Closed) and last.status == "stopped" and not request.stopped:
        raise UserError(
            f"{request.name} was stopped by its user, and agents leave it so; `--resume` continues"
            " it"
        )
    if isinstance(last, Closed):
        found = prepare(places, request.name, request.spec, trials=request.trials, code=None)
        if found.nothing_left:
            return Ended(why=_ended(request.name, last.status), status=last.status)
    return None


class _Agent:
    """An agent at work."""

    def __init__(
        self,
        request: Request,
        member: Member,
        notices: _Notices,
        calls: Calls,
        say: Callable[[str], None],
    ) -> None:
        self.request, self.me, self.notices, self.calls = request, member, notices, calls
        self.say = say
        self.store = request.places.store(request.name)
        self.agents = Agents(self.store)
        self._called: dict[int, set[str]] = {}
        """The agents that this one has called as the leader of a term."""
        self._failures: list[int] = []
        """The terms whose cluster could not be joined, once for each try."""
        self._looked = 0.0
        self._told = ""

    def run(self) -> Ended:
        """Lead or work, whatever is needed, until the experiment or this agent's part ends."""
        self.look(now=True)
        # The end of a term before this agent joined is no end of what it was started for.
        before = self.agents.term if self.agents.over is not None else 0
        since: float | None = None
        while (why := self.notices.why) is None:
            self.look()
            agents, over = self.agents, self.agents.over
            if over is not None and over.status is not None and agents.term > before:
                return Ended(why=over.why, status=over.status)
            if not election.vacant(agents.leader, over, refuses=self._refuses()):
                since = None
                ended = self._follow()
            else:
                since = since or time.monotonic()
                ended = self._claim(time.monotonic() - since)
            if ended is not None:
                return ended
            time.sleep(_TICK)
        return Ended(why=why)

    def look(self, *, now: bool = False) -> None:
        """Read the state, at most every LOOK_SECONDS. It stays as it was where that fails."""
        if now or time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            with suppress(RegrowError):
                self.agents.look()

    def tell(self, line: str) -> None:
        """Show the user a line, unless it is the same as the last one."""
        if line != self._told:
            self.say(line)
            self._told = line

    def _refuses(self) -> bool:
        """Return whether the leader's machine says that its cluster is gone."""
        head, leader = self.agents.head, self.agents.leader
        return (
            head is not None
            and leader is not None
            and leader.silent > election.REFUSED_SECONDS
            and reach.refuses(head.address)
        )

    # ---- leading

    def _claim(self, waited: float) -> Ended | None:
        """Claim the lead, if it is this agent's turn, and lead. Returns as `_lead`."""
        turn = election.wait(self.agents.living(), self.me.id)
        if turn is None:
            if not self.request.leads:
                self.tell("waiting for an agent that may lead")
            return None
        if waited < turn:
            return None
        claim = Term(agent=self.me.id, host=self.me.host, t=time.time())
        try:
            number = self.agents.claimed(claim)
        except RegrowError as error:
            self.tell(f"waiting for the state: {error}")
            return None
        self.look(now=True)
        if number is None or self.agents.term > number:  # it was claimed by an old view
            return None
        return self._lead(number)

    def _lead(self, number: int) -> Ended | None:
        """Lead a term. Returns how this agent's part ended, None if it may take part in the next
        term.
        """
        request = self.request
        self.tell(f"{self.me.id} leads {request.name} (term {number})")
        token = secrets.token_hex(32)
        port = _free_port(self.me.address) if request.ports is None else request.ports.control
        head = Head(address=f"{self.me.address}:{port}", token=token, versions=versions())
        with self.agents.leading(number) as end:
            options = ["--head", f"--port={port}", "--include-dashboard=false"]
            node = self._node(options, token)
            driver = self._driver(head)  # it loads while the head starts
            try:
                node.wait()
                self.agents.publish(number, head)
                watch = partial(self._watch, number)
                with background.every(LOOK_SECONDS, watch, name="members", first=0.0, wait=0.0):
                    over, ended = self._drive(number, node, head, driver)
            except Unavailable as error:
                over, ended = Over(why=str(error)), None
            except RegrowError as error:
                over, ended = Over(why=str(error)), Ended(why=str(error))
            finally:
                driver.signal(signal.SIGKILL)
                node.end(drain=False)
            if over is not None:
                with suppress(RegrowError):
                    end(over)
        self.look(now=True)
        return ended

    def _watch(self, number: int) -> None:
        """See who is there, and call those who have come."""
        with suppress(RegrowError):
            self.agents.look()
            for one in self.agents.living():
                if one.id != self.me.id and one.id not in self._called.setdefault(number, set()):
                    words = reach.words(one.nonce, number)
                    if reach.call(one.address, one.port, words):
                        self._called[number].add(one.id)
            self.agents.forget_lost()

    def _drive(
        self, number: int, node: OwnNode, head: Head, driver: Supervised
    ) -> tuple[Over | None, Ended | None]:
        """Run the driver until it ends or the term does. Returns what ends the term (None: another
        agent leads) and how this agent's part ended (None: it stays).
        """
        pauses, tries = Backoff(0.5, 5.0, steady=60.0), 0
        while True:
            began = time.monotonic()
            try:
                while driver.is_alive():
                    if self.agents.term > number:
                        self.tell("another agent leads now")
                        return None, None
                    if (why := self.notices.why) is not None:
                        return Over(why=why), self._hand_over(driver, why)
                    if not node.is_alive():
                        return Over(why=f"Ray's head on {self.me.host} ended"), None
                    time.sleep(_TICK)
            finally:
                driver.signal(signal.SIGKILL)
            self.look(now=True)
            if self.agents.term > number:  # whose driver may have taken over this one's log
                return None, None
            found = self._how_it_ended()
            if found is not None:
                return found, Ended(why=found.why, status=found.status)
            tries += 1
            code = driver.child.returncode if driver.child is not None else None
            why = f"the driver on {self.me.host} ended with {code}"
            if code == 2 or tries > TRIES:
                return Over(why=why), Ended(why=why, status="failed")
            self.tell(f"{why}; it is started again")
            time.sleep(pauses.after(time.monotonic() - began))
            driver = self._driver(head)

    def _hand_over(self, driver: Supervised, why: str) -> Ended:
        """Have the driver save all trials and close the log, as this agent has to leave."""
        self.tell(f"{why}: all trials save, and another agent leads next")
        driver.signal(signal.SIGTERM)
        driver.is_gone_in(HANDOVER_SECONDS)
        return Ended(why=why)

    def _how_it_ended(self) -> Over | None:
        """Return how the driver's session ended; None if it was not closed."""
        history = replay(self.store, self.request.name)
        if history.closed is None:
            return None
        status, why = history.closed.status, "" if history.closing is None else history.closing.why
        if status != "interrupted" or why == PAUSED:
            return Over(why=_ended(self.request.name, status), status=status)
        return Over(why=why)

    def _driver(self, head: Head) -> Supervised:
        places, request = self.request.places, self.request
        again = places.command("join", request.name)
        environment = {
            **os.environ,
            "RAY_ADDRESS": head.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": head.token,
            AGENT: self.me.id,
            CLUSTER: f"agents of {request.name}",
            AGAIN: again,
        }
        command = [*tied.command("regrow"), *request.command]
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        return Supervised.of(child)

    # ---- following

    def _follow(self) -> Ended | None:
        """Work for the leader until it is lost, its term ends, or this agent has to leave. Returns
        how this agent's part ended, None if it may take part in the next term.
        """
        number, head = self.agents.term, self.agents.head
        if head is None:  # its cluster is starting
            return None
        self._check_versions(head)
        if not self._is_called(number, head):
            return None
        node = self._node([f"--address={head.address}"], head.token)
        try:
            try:
                node.wait(unless=lambda: self._is_over(number))
            except RegrowError as error:
                if not self._is_over(number):
                    self._pause(number, error)
                return None
            self.tell(f"{self.me.id} works for {self._leader()}")
            while node.is_alive() and not self._is_over(number):
                time.sleep(_TICK)
            if self._is_term_over(number):
                return None
            if (why := self.notices.why) is None:
                self.tell("Ray's node ended; it is started again")
                return None
            self.tell(f"{why}: its trials save, and run elsewhere")
            node.leave()
            node.end(drain=True)
            return Ended(why=why)
        finally:
            node.end(drain=False)

    def _is_over(self, number: int) -> bool:
        """Return whether this agent has to leave, or the term is over."""
        return self.notices.why is not None or self._is_term_over(number)

    def _is_term_over(self, number: int) -> bool:
        """Return whether the leader of a term is gone, or another agent leads."""
        self.look()
        return self.agents.term > number or election.vacant(
            self.agents.leader, self.agents.over, refuses=self._refuses()
        )

    def _pause(self, number: int, error: RegrowError) -> None:
        """Wait a little before another try to join the cluster of a term. Raises the error after
        several.
        """
        self._failures.append(number)
        if self._failures.count(number) > TRIES:
            raise error
        self.tell(f"{error}; trying again")
        time.sleep(LOOK_SECONDS)

    def _leader(self) -> str:
        claim = self.agents.claim
        return "the leader" if claim is None else f"the leader {claim.agent}"

    def _check_versions(self, head: Head) -> None:
        """Raise UserError if this installation differs from the leader's."""
        ours = versions()
        for what, theirs in head.versions.items():
            if ours.get(what) != theirs:
                raise UserError(
                    f"{self._leader()} has {what} {theirs}, and this machine {ours.get(what)}:"
                    f" all agents need the same; install {what} {theirs} here"
                )

    def _is_called(self, number: int, head: Head) -> bool:
        """Wait for the leader's call. Returns False if there is another leader, or none. Raises
        UserError if only this agent reaches the other.
        """
        reached = 0.0
        while self.calls.term < number:
            if self._is_over(number):
                return False
            began = time.monotonic()
            if reach.answers(head.address):
                time.sleep(_TICK)
                reached += time.monotonic() - began
            else:
                self.tell(
                    f"the leader's cluster at {head.address} cannot be reached from here; trying"
                    " again"
                )
                time.sleep(LOOK_SECONDS)
            if reached > CALL_SECONDS:
                raise UserError(
                    f"{self._leader()} cannot reach this machine at {self.me.address}:"
                    f"{self.me.port}, as with NAT or a firewall between: agents have to reach each"
                    " other; open the ports of --ports, or name another address by --address"
                )
        return True

    # ---- both

    def _node(self, options: list[str], token: str) -> OwnNode:
        request, me = self.request, self.me
        labels = {**request.labels, AGENT_LABEL: me.id}
        if request.ends is not None:
            labels[ENDS_LABEL] = f"{request.ends:.0f}"
        options = [
            *options,
            f"--node-ip-address={me.address}",
            f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}",
            f"--num-cpus={me.cpus:g}",
        ]
        if not request.works or request.gpus is not None:
            options.append(f"--num-gpus={request.gpus if request.works else 0}")
        for what, amount in capacity.of_ray().items():
            if what != "num_cpus":
                options.append(f"--{what.replace('_', '-')}={amount}")
        options += request.ports.options() if request.ports is not None else ()
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        return OwnNode(options, {**environment, **own}, mark=f"REGROW_NODE={me.id}")


class _Notices:
    """Why this agent has to leave, as far as it knows. `ends`: see Request."""

    def __init__(self, ends: float | None) -> None:
        self._ends = ends
        self._signal: int | None = None

    def take(self, number: int, _: object) -> None:
        """Handle a signal."""
        self._signal = number

    @property
    def why(self) -> str | None:
        """The reason to leave; None: none."""
        if self._signal is not None:
            return f"it was told to leave ({signal.Signals(self._signal).name})"
        if self._ends is not None and time.time() > self._ends - ENDS_SECONDS:
            return "its machine's time ends"
        return None


@contextmanager
def _notices(request: Request) -> Iterator[_Notices]:
    notices = _Notices(request.ends)
    with handling(dict.fromkeys(_SIGNALS, notices.take)):
        yield notices


def _ended(name: str, status: Status) -> str:
    return f"{name} has {status}" if status in ("finished", "failed") else f"{name} was {status}"


def _cpus(request: Request) -> int:
    if not request.works:
        return 0
    return request.cpus or capacity.cpus()


def _host() -> str:
    """Return this machine's name as labels and keys of a store allow it."""
    name = socket.gethostname().partition(".")[0].lower()
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:32]


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
