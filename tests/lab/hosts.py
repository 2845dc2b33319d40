"""Machines on one machine: each with an address, an SSH server, processes, home and temporary
folders of its own.

A host is a network namespace on a switch of the lab's, and in it mount, process and name (UTS)
namespaces with `sshd` as their first process. Home, /tmp, /run and /dev/shm are the host's own, and
outlive a reboot (`kill`, `boot`); the rest of the file system is this machine's. No process of a
host sees those of another. There is no way out of the
lab, and no name is resolved but those of its hosts. Needs root and the right to make namespaces
(`why_not`).
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.system import hosts as networks

NETWORK = "10.99.7.0/24"
OFF = ".off"
"""A file at home that the command `shutdown` of a host leaves: who plays the machine's part is to
turn it off.
"""
_SYSTEMD = "/usr/lib/systemd/systemd"
_HOME = Path("/root")
_OWN = (_HOME, Path("/tmp"))
"""What each host has a folder of its own for."""
_INIT = """
set -e
hostname {name}
mount --make-rprivate /
cd {folder}
{binds}
mount --bind {hosts} /etc/hosts
mount --bind {resolver} /etc/resolv.conf
mount --rbind {folder}/root /root
mount --rbind {folder}/tmp /tmp
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
mount -t tmpfs -o size=512m tmpfs /dev/shm
{manager}
cd /
exec env -i HOME=/root USER=root PATH="$PATH" {sshd} -D -e -f /root/.sshd_config
"""
_MANAGER = """
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/systemd /run/systemd/system /run/user/0
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
chmod 700 /run/user/0
env -i HOME=/root USER=root PATH="$PATH" XDG_RUNTIME_DIR=/run/user/0 {systemd} --user &
"""
"""Starts systemd's manager of root's units, as systemd itself does for a user who lingers."""
_CGROUPS = Path("/sys/fs/cgroup/systemd")
_SSHD = """Port 22
ListenAddress {address}
HostKey {key}
AuthorizedKeysFile /root/.ssh/authorized_keys
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
UseDNS no
PidFile /run/sshd.pid
StrictModes no
Subsystem sftp internal-sftp
"""


def why_no_systemd() -> str:
    """Why hosts cannot have systemd's manager of units on this machine; empty if they can."""
    if not (Path(_SYSTEMD).exists() and (_CGROUPS / "cgroup.procs").exists()):
        return "systemd, or its control groups (of version 1), are missing"
    return why_not()


def why_not() -> str:
    """Why hosts cannot be made on this machine; empty if they can."""
    for program, package in (
        ("sshd", "openssh-server"),
        ("ssh", "openssh-client"),
        ("rsync", "rsync"),
        ("nsenter", "util-linux"),
    ):
        if _which(program) is None:
            return f"the command `{program}` ({package}) is missing"
    if reason := networks.why_not():
        return reason
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--uts", "--mount-proc", "true"],
        capture_output=True,
        check=False,
    )
    return f"no namespaces can be made: {done.stderr.decode().strip()}" if done.returncode else ""


@dataclass(slots=True, kw_only=True)
class Host:
    """One machine. `namespace` is its network's, `folder` its disk, `init` its first process as
    seen from outside, if it runs.
    """

    number: int
    name: str
    address: str
    namespace: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    init: int = 0

    @property
    def home(self) -> Path:
        """Its /root, as seen from outside."""
        return self.folder / "root"

    @property
    def temporary(self) -> Path:
        """Its /tmp, as seen from outside."""
        return self.folder / "tmp"


@dataclass(slots=True)
class Hosts:
    """The hosts of a lab below `folder`. `visible`: what of /root and /tmp all of them see besides
    the interpreter, `shared` included. `systemd`: root's units run there, also without a login; the
    command `loginctl`, which has no logind to ask, does nothing.

    The private key that all of them let in is `key`; of the hosts only the first (the laptop) has
    it, as its ~/.ssh/id_ed25519.
    """

    folder: Path
    network: str = NETWORK
    visible: Sequence[Path] = ()
    systemd: bool = False
    all: list[Host] = field(default_factory=list)
    _begun: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _mark: str = field(default_factory=lambda: f"rl{secrets.token_hex(2)}")

    def __post_init__(self) -> None:
        self.shared.mkdir(parents=True, exist_ok=True)
        for name in ("id_ed25519", "host_key"):
            file = self.folder / name
            if not file.exists():
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", file],
                    check=True,
                )
        self._hosts_file.write_text("127.0.0.1 localhost\n")
        (self.folder / "resolv.conf").write_text("")
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")

    @property
    def key(self) -> Path:
        """The private key with which one logs in."""
        return self.folder / "id_ed25519"

    @property
    def shared(self) -> Path:
        """A folder that all hosts see at the same path: what a network file system is to
        machines.
        """
        return self.folder / "shared"

    @property
    def _switch(self) -> str:
        return f"{self._mark}-s"

    @property
    def _hosts_file(self) -> Path:
        return self.folder / "etc-hosts"

    def start(self, count: int) -> list[Host]:
        """`count` more hosts, at the network's next addresses, that answer to SSH."""
        network = ipaddress.ip_network(self.network)
        return [self.add(str(network[len(self.all) + 1])) for _ in range(count)]

    def add(self, address: str) -> Host:
        """One more host, at this address of the network, that answers to SSH."""
        number = len(self.all)
        host = Host(
            number=number,
            name=f"node{number}",
            address=address,
            namespace=f"{self._mark}-{number}",
            folder=self.folder / "hosts" / str(number),
        )
        self.all.append(host)
        with self._hosts_file.open("a") as file:
            file.write(f"{address} {host.name}\n")
        self._furnish(host)
        self.boot(host)
        return host

    def boot(self, host: Host) -> None:
        """Starts a host that does not run, with the disk that it has; returns when it answers to
        SSH.
        """
        self._connect(host)
        binds = "\n".join(self._bind(host, path) for path in self._seen())
        script = _INIT.format(
            name=host.name,
            folder=shlex.quote(str(host.folder)),
            binds=binds,
            sshd=_which("sshd"),
            hosts=shlex.quote(str(self._hosts_file)),
            resolver=shlex.quote(str(self.folder / "resolv.conf")),
            manager=_MANAGER.format(systemd=_SYSTEMD) if self.systemd else "",
        )
        words = [
            "ip",
            "netns",
            "exec",
            host.namespace,
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--uts",
        ]
        if self.systemd:
            group = self._group(host)
            group.mkdir(exist_ok=True)
            enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
            words = ["bash", "-c", enter, "-", *words, "--cgroup"]
        with (host.folder / "console").open("wb") as console:
            host.process = subprocess.Popen(
                [*words, "--mount-proc", "bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        host.init = networks.await_(lambda: self._first(host), f"first process of {host.name}")
        networks.await_(lambda: self._answers(host), f"SSH server of {host.name}")

    def command(self, host: Host, *words: str) -> list[str]:
        """The command line that runs `words` on a host, as its root; `run` and `begin` give it the
        environment of a login there.
        """
        return [
            "nsenter",
            f"--target={host.init}",
            "--net",
            "--mount",
            "--pid",
            "--uts",
            "--wd=/root",
            "--",
            *words,
        ]

    def run(
        self,
        host: Host,
        *words: str,
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        seconds: float = 300.0,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a host and waits for its end. `check`: a failure is an AssertionError
        with what it said.
        """
        done = subprocess.run(
            self.command(host, *words),
            env=self.environment(environment),
            text=True,
            capture_output=True,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, (
            f"{host.name}: {shlex.join(words)}: {done.stdout}{done.stderr}"
        )
        return done

    def begin(
        self, host: Host, *words: str, said: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a command on a host, which writes to the file `said`."""
        with said.open("ab") as file:
            process = subprocess.Popen(
                self.command(host, *words),
                env=self.environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._begun.append(process)
        return process

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of a command on a host: nothing of this process but its path, and `more`."""
        path = f"{Path(sys.prefix) / 'bin'}:{_HOME}/bin:{os.environ.get('PATH', os.defpath)}"
        return {"HOME": str(_HOME), "USER": "root", "PATH": path, "LANG": "C.UTF-8", **(more or {})}

    def processes(self, host: Host) -> list[str]:
        """The command lines of what runs on a host, its SSH server apart."""
        found = []
        for pid in self._pids(host):
            with suppress(OSError):
                line = (
                    Path(f"/proc/{pid}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                    .strip()
                )
                if line and "sshd" not in line.split()[0] and "unshare --mount" not in line:
                    found.append(line)
        return found

    def cut(self, host: Host) -> None:
        """Takes a host's link away: nobody is told, nothing is refused, packets just vanish."""
        _ip("-n", self._switch, "link", "set", f"v{host.number}", "nomaster")

    def heal(self, host: Host) -> None:
        """The link is there again."""
        _ip("-n", self._switch, "link", "set", f"v{host.number}", "master", "switch")

    def kill(self, host: Host) -> None:
        """A host is gone as by a power cut: nobody hears a word of it. Its disk stays for
        `boot`.
        """
        if host.process is None:
            return
        # first: else the kernel says goodbye for it
        _ip("-n", self._switch, "link", "del", f"v{host.number}", check=False)
        with suppress(ProcessLookupError):
            # and with the first process all others of its namespace
            os.kill(host.init, signal.SIGKILL)
        host.process.kill()
        host.process.wait()
        self._sweep(host)
        if self.systemd:
            networks.await_(lambda: _removed(self._group(host)), "the end of its control group")
        _ip("netns", "del", host.namespace, check=False)
        host.process, host.init = None, 0

    def shut_down(self, host: Host, *, grace: float = 30.0) -> None:
        """Ends a host in order: SIGTERM to all, and after `grace` seconds, or when nothing is left,
        it is off.
        """
        for pid in self._pids(host):
            if pid != host.init and (host.process is None or pid != host.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.processes(host) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill(host)

    def stop(self) -> None:
        """All hosts are gone, and the switch with them. What was on their disks stays below
        `folder`.
        """
        for host in self.all:
            self.kill(host)
        for process in self._begun:
            process.wait(20)
        _ip("netns", "del", self._switch, check=False)

    def _group(self, host: Host) -> Path:
        """The control group of a host, as seen from outside."""
        return _CGROUPS / f"{self._mark}-{host.number}"

    def _connect(self, host: Host) -> None:
        link, ours = f"v{host.number}", ["-n", host.namespace]
        # the same after a reboot, as others remember it
        hardware = f"02:00:00:00:{host.number >> 8:02x}:{host.number & 255:02x}"
        _ip("netns", "add", host.namespace)
        _ip(*ours, "link", "set", "lo", "up")
        _ip(
            "-n",
            self._switch,
            "link",
            "add",
            link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            host.namespace,
        )
        _ip(*ours, "link", "set", "eth0", "address", hardware)
        _ip("-n", self._switch, "link", "set", link, "master", "switch", "up")
        _ip(
            *ours,
            "address",
            "add",
            f"{host.address}/{ipaddress.ip_network(self.network).prefixlen}",
            "dev",
            "eth0",
        )
        _ip(*ours, "link", "set", "eth0", "up")
        # without one Ray takes 127.0.0.1 for the host's address
        _ip(*ours, "route", "add", "default", "dev", "eth0")

    def _furnish(self, host: Host) -> None:
        ssh = host.home / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        host.temporary.mkdir()
        host.temporary.chmod(0o1777)
        public = (self.folder / "id_ed25519.pub").read_text()
        (ssh / "authorized_keys").write_text(public)
        if host.number == 0:
            shutil.copy(self.key, ssh / "id_ed25519")
            (ssh / "id_ed25519.pub").write_text(public)
        shutil.copy(self.folder / "host_key", host.home / ".host_key")
        config = _SSHD.format(address=host.address, key=_HOME / ".host_key")
        (host.home / ".sshd_config").write_text(config)
        off = host.home / "bin" / "shutdown"
        off.parent.mkdir()
        off.write_text(f"#!/bin/sh\ntouch {_HOME}/{OFF}\n")
        off.chmod(0o755)
        if self.systemd:
            linger = off.with_name("loginctl")
            linger.write_text("#!/bin/sh\n")
            linger.chmod(0o755)
        for name in (".bashrc", ".profile"):
            (host.home / name).write_text(f"export PATH={self.environment()['PATH']}\n")

    def _seen(self) -> list[Path]:
        """What all hosts see although it is where they have folders of their own."""
        paths = [
            Path(sys.base_prefix),
            Path(sys.prefix),
            *(Path(path) for path in sys.path if path),
            self.shared,
            *self.visible,
        ]
        there = sorted({path.resolve() for path in paths if path.resolve().exists()})
        hidden = [
            path for path in there if any(path != own and path.is_relative_to(own) for own in _OWN)
        ]
        return [
            path
            for path in hidden
            if not any(path != other and path.is_relative_to(other) for other in hidden)
        ]

    def _bind(self, host: Host, path: Path) -> str:
        there = host.folder / path.relative_to("/")
        make = (
            f"mkdir -p {shlex.quote(str(there))}"
            if path.is_dir()
            else (f"mkdir -p {shlex.quote(str(there.parent))}; touch {shlex.quote(str(there))}")
        )
        return f"{make}; mount --bind {shlex.quote(str(path))} {shlex.quote(str(there))}"

    def _first(self, host: Host) -> int | None:
        assert host.process is not None
        assert host.process.poll() is None, (host.folder / "console").read_text()
        children = (
            Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()
        )
        return int(children[0]) if children else None

    def _answers(self, host: Host) -> bool:
        assert host.process is not None
        assert host.process.poll() is None, (host.folder / "console").read_text()
        return f"listening on {host.address}" in (host.folder / "console").read_text().lower()

    def _pids(self, host: Host) -> list[int]:
        return [
            int(pid) for pid in _ip("netns", "pids", host.namespace, check=False).stdout.split()
        ]

    def _sweep(self, host: Host) -> None:
        """What was started from outside and still holds the host's network."""
        deadline = time.monotonic() + 60
        while (left := self._pids(host)) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


@contextmanager
def lab(
    folder: Path, count: int, *, visible: Sequence[Path] = (), systemd: bool = False
) -> Iterator[Hosts]:
    """A lab of `count` hosts, the first of which is the laptop. After the block nothing of it
    runs.
    """
    hosts = Hosts(folder, visible=visible, systemd=systemd)
    try:
        hosts.start(count)
        yield hosts
    finally:
        hosts.stop()


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _removed(group: Path) -> bool:
    """Whether a control group is gone: it is busy until the last process is."""
    with suppress(OSError):
        for below, _, _ in os.walk(group, topdown=False):
            Path(below).rmdir()
    return not group.exists()


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["ip", *words], text=True, capture_output=True, check=False, timeout=30)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done
