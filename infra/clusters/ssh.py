"""The engine for existing machines that are reached by SSH: an agent on each, as a unit there.

What machines get is in `unit_files.py`, what happens there in `unit.py`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.clusters import unit_files
from regrow.infra.clusters.agents import Agent, AgentWork, Output, Submission, Submissions
from regrow.infra.clusters.description import Ssh
from regrow.infra.clusters.folder import Folder, variables
from regrow.infra.clusters.unit import LEAVE_SECONDS
from regrow.infra.clusters.unit_files import unit_name
from regrow.infra.machine.given_files import expanded
from regrow.infra.machine.versions import versions
from regrow.infra.stores import open_root
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError
from regrow.tasks.output.traces import one_line
from regrow.tasks.process import background

Done = subprocess.CompletedProcess[bytes]
_LOOK_SECONDS = 30.0
_SEEN_SECONDS = 5
"""Seconds until a file made on one machine must be visible on the others."""
_STOP_SECONDS = LEAVE_SECONDS + 90.0
_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "IdentitiesOnly=yes",
    "LogLevel=ERROR",
)
UNREACHABLE = 255
"""Exit code of ssh if it could not connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A machine and its SSH login. `known_hosts`: file with the keys of machines seen before."""

    address: str
    user: str
    key: Path
    known_hosts: Path

    def run(self, command: str, *, timeout: float | None = None, given: bytes = b"") -> Done:
        """Run a command in the login shell there, with `given` as its input. Exit code 255: it
        could not be reached.
        """
        files = {"UserKnownHostsFile": self.known_hosts, "IdentityFile": self.key}
        escaped = {name: str(file).replace("%", "%%") for name, file in files.items()}
        own = (f'{name}="{file}"' for name, file in escaped.items())
        asked = (*_OPTIONS, "StrictHostKeyChecking=accept-new", *own)
        options = [word for option in asked for word in ("-o", option)]
        words = ["ssh", *options, "--", f"{self.user}@{self.address}"]
        words.append(f"bash -lc {shlex.quote(command)}")
        try:
            return subprocess.run(
                words, input=given, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(
                words, UNREACHABLE, b"", f"no answer in {timeout:g} s".encode()
            )
        except FileNotFoundError:
            raise RegrowError("there is no program ssh here; install OpenSSH's client") from None


class Launch(Submission, frozen=True, kw_only=True):
    """Agents that were started by SSH, on these machines."""

    machines: tuple[str, ...]


class SshEngine:
    """The agents on the machines of one cluster file; see AgentEngine."""

    sends = True
    reads = True
    no_output = "`regrow cluster status` shows the machines"

    def __init__(self, cluster: Ssh) -> None:
        self.cluster = cluster
        self.place = f"the machines of {cluster.name}"
        self._folder = Folder(cluster.name)
        self._launches = Submissions(self._folder, Launch)

    def check(self) -> None:
        if not self._key.is_file():
            hint = "make one with `ssh-keygen -t ed25519`, or name yours"
            raise SpecError("key", self.cluster.key, "there is no such file", hint)
        variables(self.cluster, os.environ)

    def offer(self, work: AgentWork) -> list[str]:
        return []

    def files(self, work: AgentWork, say: Callable[[str], None]) -> dict[str, bytes]:
        texts = unit_files.files(self.cluster, work)
        return {name: text.encode() for name, text in texts.items()}

    def submissions(self) -> list[Launch]:
        return self._launches.all()

    def submit(self, work: AgentWork, say: Callable[[str], None]) -> Launch:
        """Start an agent on each machine that has none. A machine that cannot be reached is named,
        and left out. Raises RegrowError if none is left, or one is not as the others.
        """
        self.check()
        self._folder.make()
        remotes = self._reached(say)
        self._check_versions(remotes)
        self._check_shared(remotes, work)
        if os.path.isabs(work.state):
            open_root(work.state).check_writable()
        name = unit_name(work)
        states = {
            one.address: {unit["name"]: unit["state"] for unit in _units(done)}
            for one, done in self._all(remotes, self._command("status"), _LOOK_SECONDS)
        }
        has = [one for one in remotes if states[one.address].get(name, "ended") != "ended"]
        lacks = [one for one in remotes if one not in has]
        if has:
            say(f"{work.experiment} has agents already on {_named(has)}")
        before = [one for one in self._launches.all() if unit_name(one) == unit_name(work)]
        earlier = (address for one in before for address in one.machines)
        launch = Launch(
            experiment=work.experiment,
            state=work.state,
            t=time.time(),
            machines=tuple(dict.fromkeys((*(one.address for one in remotes), *earlier))),
        )
        others = [one for one in self._launches.all() if one not in before]
        self._launches.keep([*others, launch])
        if lacks:
            self._start(lacks, work, say)
        return launch

    def agents(self, *of: Launch) -> list[Agent]:
        """Return the agents of all machines, and which machines have none."""
        wanted = {unit_name(one) for one in of}
        found = []
        for remote, done in self._all(self._remotes(), self._command("status"), _LOOK_SECONDS):
            if (why := _trouble(done, made=self.cluster.python is None)) is not None:
                found.append(Agent(name=remote.address, experiment="", state=why[0], reason=why[1]))
                continue
            units = [one for one in _units(done) if not wanted or one["name"] in wanted]
            found += [_agent(remote.address, one) for one in units]
            if not units:
                found.append(
                    Agent(name=remote.address, experiment="", state="no agent", there=False)
                )
        return found

    def outputs(self, of: Launch) -> list[Output]:
        folder = f'"$HOME"/{unit_files.base(self.cluster)}/units/{unit_name(of)}'
        command = (
            f'log={folder}/"$(uname -n)".log; test -f "$log" || {{ echo 0; exit; }};'
            f' tail -n 20 "$log"; echo; stat -c %Y "$log"'
        )
        found = []
        for remote, done in self._all(self._remotes(), command, _LOOK_SECONDS):
            *lines, t = done.stdout.decode(errors="replace").split("\n")[:-1] or ["0"]
            if done.returncode == 0 and not t.isdecimal():  # not what was asked for
                lines, t = [*lines, t], "0"
            if done.returncode != 0:
                lines, t = [f"cannot be reached: {_last(done)}"], "0"
            shown = [line for line in lines if line]
            found.append(Output(title=remote.address, lines=shown, t=float(t)))
        return found

    def done(self, of: Launch, say: Callable[[str], None]) -> None:
        """Do nothing: agents end with the experiment."""

    def end(self, say: Callable[[str], None]) -> None:
        """Tell all agents to leave, remove what was sent, and look whether anything is left. Raises
        RegrowError, naming the machines, if so.
        """
        remotes = self._remotes()
        left = {}
        for remote, done in self._all(remotes, self._command("stop"), _STOP_SECONDS):
            if (why := _trouble(done, made=self.cluster.python is None)) is not None:
                left[remote.address] = " ".join(filter(None, (why[0], why[1] and f"({why[1]})")))
            elif left_over := _reply(done).get("left"):
                left[remote.address] = f"left over: {'; '.join(left_over)}"
        # Afterwards, as machines may share the folder, and with it the environment.
        place = f'"$HOME"/{unit_files.base(self.cluster)}'
        remove = f"rm -rf {place} || rm -rf {place}; test ! -e {place}"
        gone = [one for one in remotes if one.address not in left]
        for remote, done in self._all(gone, remove, _STOP_SECONDS):
            if done.returncode != 0:
                left[remote.address] = (
                    f"{unit_files.base(self.cluster)} cannot be removed: {_last(done)}"
                )
        self._launches.keep(
            [
                msgspec.structs.replace(
                    one, machines=tuple(there for there in one.machines if there in left)
                )
                for one in self._launches.all()
            ]
        )
        if left:
            reasons = "; ".join(f"{address}: {why}" for address, why in left.items())
            raise RegrowError(f"of {self.cluster.name} this is left, or may be: {reasons}")
        say(f"nothing of {self.cluster.name} is left on {_count(len(remotes), 'machine')}")

    # ---- what machines are asked first

    def _reached(self, say: Callable[[str], None]) -> list[Remote]:
        """Return the machines of the file that can be reached; names the others. Raises RegrowError
        if none can.
        """
        found, away = [], []
        for remote, done in self._all(self._remotes(self.cluster.machines), "true", _LOOK_SECONDS):
            if done.returncode == 0:
                found.append(remote)
                continue
            away.append(f"{remote.address}: {_last(done)}")
        asked = f"asked as {self.cluster.user}, with {self.cluster.key}"
        if not found:
            raise RegrowError(
                f"no machine of {self.cluster.name} can be reached, {asked}: {'; '.join(away)}"
            )
        if away:
            say(
                f"cannot be reached, {asked}: {'; '.join(away)}; the same command starts agents"
                " there once they can be"
            )
        return found

    def _check_versions(self, remotes: Sequence[Remote]) -> None:
        """Check that each machine has the same versions as this one, if they have an environment.
        Raises RegrowError, naming the machine, otherwise.
        """
        python = self.cluster.python
        if python is None:
            return
        ours = versions()
        for remote, done in self._all(remotes, self._command("versions"), _LOOK_SECONDS):
            if done.returncode != 0:
                why = _last(done)
                if "No module named" in why or "Error while finding module" in why:
                    why = f"no regrow of this version is in {python}"
                raise RegrowError(
                    f"{remote.address} cannot be used: {why}; install regrow"
                    f" {ours['regrow']} there, or leave `python` out of the cluster file"
                )
            theirs = _reply(done)
            if name := next((name for name in ours if theirs.get(name) != ours[name]), None):
                raise RegrowError(
                    f"{remote.address} has {name} {theirs.get(name)} in {python}, here is"
                    f" {ours[name]}; install {name} {ours[name]} there, or leave `python` out of"
                    " the cluster file"
                )

    def _check_shared(self, remotes: Sequence[Remote], work: AgentWork) -> None:
        """Check that each folder of `shared` is the same on all machines, and the one with the
        state on this one, too. Raises RegrowError, naming the folder and the machines, otherwise.
        """
        for folder in self.cluster.shared:
            name = f".regrow-{uuid.uuid4().hex}"
            file = shlex.quote(f"{folder}/{name}")
            first, hint = remotes[0], "mount it there, or leave it out of `shared`"
            made = first.run(
                f"test -d {shlex.quote(folder)} && touch {file}", timeout=_LOOK_SECONDS
            )
            if made.returncode != 0:
                raise RegrowError(
                    f"shared: {folder} is no folder on {first.address} that can be written; {hint}"
                )
            command = (
                f"for i in $(seq {_SEEN_SECONDS}); do test -e {file} && exit 0; sleep 1; done;"
                " exit 1"
            )
            try:
                apart = [
                    one.address
                    for one, done in self._all(remotes, command, _LOOK_SECONDS)
                    if done.returncode != 0
                ]
                if apart:
                    raise RegrowError(
                        f"shared: {folder} on {', '.join(apart)} is not that of {first.address};"
                        f" {hint}"
                    )
                if Path(work.state).is_relative_to(folder) and not (Path(folder) / name).exists():
                    raise RegrowError(
                        f"shared: {folder} on this machine is not that of {first.address}, and"
                        " holds the state, from which the experiment is followed; mount it here,"
                        " too, or have the state in a bucket"
                    )
            finally:
                first.run(f"rm -f {file}", timeout=_LOOK_SECONDS)

    # ---- what machines get

    def _start(
        self, remotes: Sequence[Remote], work: AgentWork, say: Callable[[str], None]
    ) -> None:
        """Send what the machines need, and start an agent on each. Raises RegrowError if none of
        them starts.
        """
        parcel = unit_files.packed(self.cluster, work, say)
        command = unit_files.install(self.cluster, parcel, f"start {unit_name(work)}")
        say(f"{work.experiment}: starting {_count(len(remotes), 'agent')} on {_named(remotes)}")
        failed, alone = [], []
        # some packages are gigabytes
        for remote, done in self._all(remotes, command, 1800.0, parcel.archive):
            if done.returncode != 0:
                lines = done.stderr.decode(errors="replace").strip().splitlines()[-5:]
                failed.append(f"no agent was started on {remote.address}: {' '.join(lines)}")
            elif _reply(done).get("by") == "supervisor":
                alone.append(remote)
        if len(failed) == len(remotes):
            raise RegrowError("; ".join(failed))
        for line in failed:
            say(line)
        if alone:
            say(
                f"without a user manager of systemd: {_named(alone)}; agents there do not come back"
                " by themselves after a reboot, and the same command starts them"
            )

    # ---- asking machines

    @property
    def _key(self) -> Path:
        return expanded(self.cluster.key, "key: ")

    def _command(self, rest: str) -> str:
        return unit_files.command(self.cluster, rest)

    def _remotes(self, addresses: Iterable[str] | None = None) -> list[Remote]:
        """Return these machines; None: those of the file, and those of earlier ones that may still
        have agents.
        """
        if addresses is None:
            earlier = (one for launch in self._launches.all() for one in launch.machines)
            addresses = dict.fromkeys((*self.cluster.machines, *earlier))
        known = self._folder.path / "known_hosts"
        return [
            Remote(address=one, user=self.cluster.user, key=self._key, known_hosts=known)
            for one in addresses
        ]

    @staticmethod
    def _all(
        remotes: Sequence[Remote], command: str, seconds: float, given: bytes = b""
    ) -> list[tuple[Remote, Done]]:
        """Run a command on all machines. Returns what became of it, in the same order."""
        found: dict[str, Done] = {}
        failed: list[RegrowError] = []
        turns = threading.Semaphore(32)

        def run(remote: Remote) -> None:
            try:
                with turns:
                    found[remote.address] = remote.run(command, timeout=seconds, given=given)
            except RegrowError as error:  # there is no ssh here
                failed.append(error)

        # No pool: the end of this process would wait for a machine that does not answer.
        for thread in [background.start(run, one, name="ssh") for one in remotes]:
            thread.join()
        if failed:
            raise failed[0]
        return [(one, found[one.address]) for one in remotes]


def _agent(address: str, unit: Mapping[str, Any]) -> Agent:
    state = str(unit["state"])
    return Agent(
        name=address,
        experiment=str(unit["name"]).rpartition(".")[0],
        state=state,
        node=address if state == "running" else "",
        reason="" if state == "running" else str(unit["said"]).removeprefix("regrow: "),
        there=state != "ended",
    )


def _units(done: Done) -> list[dict[str, Any]]:
    return list(_reply(done).get("units", ()))


def _reply(done: Done) -> dict[str, Any]:
    """Return what a command of `unit.py` printed last: a login shell may print before it."""
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        return {}


def _trouble(done: Done, *, made: bool) -> tuple[str, str] | None:
    """Return why a machine did not answer, and its words; None: it did, or has nothing of ours.

    `made`: the environment is made by regrow there, so without one nothing was ever started.
    """
    # 127: the shell did not find the command
    if (done.returncode == 0 and _reply(done)) or (done.returncode == 127 and made):
        return None
    if done.returncode == 0:  # another program than a shell, or what a shell printed
        printed = one_line(done.stdout.decode(errors="replace"))[:200]
        return "does not answer", f"printed {printed!r}"
    return ("cannot be reached" if done.returncode == UNREACHABLE else "does not answer"), _last(
        done
    )


def _last(done: Done) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _named(remotes: Sequence[Remote]) -> str:
    return ", ".join(one.address for one in remotes)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
