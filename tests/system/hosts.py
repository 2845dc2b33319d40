"""Several hosts on one machine: network namespaces on one switch, a real Ray cluster across them,
and links to cut.

A host is `ip netns` with a loopback and one address of its own; the switch is a bridge in a further
namespace, so that the machine's own network is not touched and deleting the namespaces removes
everything. The file system is shared: a state root in a folder is what a bucket is to a real
cluster. Needs root and the right to make namespaces (`why_not`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")
HEAD_PORT = 6379
_NETWORK = "10.99.0"
"""Of no consequence to the machine: no namespace of ours has a way out."""
_STORE_BYTES = "100000000"


def why_not() -> str:
    """Why hosts cannot be made on this machine; empty if they can."""
    if shutil.which("ip") is None:
        return "the command `ip` (iproute2) is missing"
    name = f"rg-{secrets.token_hex(3)}"
    done = _ip("netns", "add", name, check=False)
    if done.returncode:
        return f"no network namespace can be made: {done.stderr.strip()}"
    try:
        done = _ip(
            "-n",
            name,
            "link",
            "add",
            "probe-1",
            "type",
            "veth",
            "peer",
            "name",
            "probe-2",
            check=False,
        )
        if done.returncode == 0:
            done = _ip("-n", name, "link", "add", "probe-3", "type", "bridge", check=False)
        return f"no virtual network can be made: {done.stderr.strip()}" if done.returncode else ""
    finally:
        _ip("netns", "del", name, check=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host: `name` is its namespace, `address` its only one besides loopback."""

    name: str
    address: str
    switch: str

    def command(self, *words: str) -> list[str]:
        """The command line that runs `words` on this host. The process is the namespace's own from
        its first instruction.
        """
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Takes the link down at the switch: nobody is told, nothing is refused, packets just
        vanish.
        """
        _ip("-n", self.switch, "link", "set", self.name, "nomaster")

    def move(self) -> None:
        """Moves the link to the second switch: who is there is reached, who is at the first is not,
        and nobody is told.
        """
        _ip("-n", self.switch, "link", "set", self.name, "master", "second")

    def mend(self) -> None:
        """The link is there again."""
        _ip("-n", self.switch, "link", "set", self.name, "master", "switch")

    def processes(self) -> list[int]:
        """What runs here."""
        return [int(pid) for pid in _ip("netns", "pids", self.name, check=False).stdout.split()]

    def find(self, title: str) -> int | None:
        """The process of this host whose title begins so."""
        for pid in self.processes():
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode()):
                    return pid
        return None


@contextmanager
def network(count: int) -> Iterator[list[Host]]:
    """`count` hosts that reach each other. After the block they, their links and all their
    processes are gone.
    """
    mark = f"rg{secrets.token_hex(2)}"
    switch = f"{mark}-s"
    hosts = [
        Host(name=f"{mark}-{n}", address=f"{_NETWORK}.{n + 1}", switch=switch) for n in range(count)
    ]
    try:
        _ip("netns", "add", switch)
        for bridge in ("switch", "second"):
            _ip("-n", switch, "link", "add", bridge, "type", "bridge")
            _ip("-n", switch, "link", "set", bridge, "up")
        for host in hosts:
            _ip("netns", "add", host.name)
            _ip("-n", host.name, "link", "set", "lo", "up")
            _ip(
                "-n",
                switch,
                "link",
                "add",
                host.name,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                host.name,
            )
            _ip("-n", switch, "link", "set", host.name, "master", "switch", "up")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
        yield hosts
    finally:
        for host in hosts:
            deadline = time.monotonic() + 60
            while (left := host.processes()) and time.monotonic() < deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
        for name in [switch, *(host.name for host in hosts)]:
            _ip("netns", "del", name, check=False)


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["ip", *words], text=True, capture_output=True, check=False, timeout=30)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done


@dataclass(slots=True, kw_only=True)
class RayCluster:
    """A Ray cluster whose nodes are started one by one. `environment` is what a process needs to
    join it.
    """

    temporary: Path
    environment: dict[str, str]
    nodes: dict[str, str] = field(default_factory=dict)
    """Ray's ids by the names that the nodes were started under."""
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def at(cls, temporary: Path, environment: Mapping[str, str]) -> RayCluster:
        """An empty cluster with a token of its own. `environment` is that of its processes;
        `temporary` must be a short path.
        """
        own = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            # else raylet and GCS wait for each other's exporters
            "RAY_enable_metrics_collection": "0",
        }
        return cls(temporary=temporary, environment={**environment, **own})

    def start(
        self,
        name: str,
        *,
        address: str,
        cpus: int,
        on: Host | None = None,
        environment: Mapping[str, str] | None = None,
        options: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        """Starts a node, the first one is the head; `address` is its own. `on` None: beside this
        process, on loopback.

        `environment` is what this node's processes have besides, `options` are more words of its
        command, given the head's address.
        """
        words = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            f"--node-ip-address={address}",
        ]
        words += [
            f"--num-cpus={cpus}",
            f"--object-store-memory={_STORE_BYTES}",
            f"--temp-dir={self.temporary / name}",
        ]
        words += ["--include-log-monitor=false", "--disable-usage-stats"]
        if head := not self.nodes:
            port = free_port(address) if on is None else HEAD_PORT
            self.environment["RAY_ADDRESS"] = f"{address}:{port}"
            words += ["--head", f"--port={port}", "--include-dashboard=false"]
            if on is None:
                words += [
                    f"--ray-client-server-port={free_port(address)}",
                    f"--dashboard-port={free_port(address)}",
                ]
        else:
            words += [f"--address={self.environment['RAY_ADDRESS']}"]
        if on is None:
            words += [f"--dashboard-agent-listen-port={free_port(address)}"]
        words += options(self.environment["RAY_ADDRESS"])
        said = self.temporary / f"{name}.said"
        env = {
            k: v for k, v in self.environment.items() if not (head and k == "RAY_ADDRESS")
        } | dict(environment or {})
        with said.open("w") as file:
            process = subprocess.Popen(
                on.command(*words) if on else words,
                env=env,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes.append(process)
        await_(
            lambda: "will now block" in said.read_text() or process.poll() is not None,
            f"node {name}",
        )
        assert process.poll() is None, said.read_text()
        self.nodes[name] = await_(lambda: _node_id(self.temporary / name), f"raylet of {name}")

    def lose(self, name: str) -> None:
        """Kills a node with all that runs on it, without a word: SIGKILL."""
        process = self._processes[list(self.nodes).index(name)]
        for pid in (
            process.pid,
            *(child.pid for child in psutil.Process(process.pid).children(recursive=True)),
        ):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def kill(self) -> None:
        """Ends all nodes at once."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port(address: str) -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def await_(what: Callable[[], T | None], name: str, seconds: float = 90.0) -> T:
    """What the condition gives, once it is true. It is looked at more rarely the longer that takes,
    as a look may be dear.
    """
    began = time.monotonic()
    while not (found := what()):
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds:.0f} s: {name}"
        time.sleep(min(0.05 + waited / 50, 0.5))
    return found


@contextmanager
def ray_cluster(environment: Mapping[str, str]) -> Iterator[RayCluster]:
    """An empty cluster, which is killed at the end of the block."""
    # Ray's sockets need a short path
    with tempfile.TemporaryDirectory(prefix="rg", dir="/tmp", ignore_cleanup_errors=True) as folder:
        made = RayCluster.at(Path(folder), environment)
        try:
            yield made
        finally:
            made.kill()


def _node_id(temporary: Path) -> str | None:
    """The id of the raylet that keeps its files there: it stands in its command line."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[0].endswith("/raylet/raylet") and f"--temp_dir={temporary}" in words:
                    return next(
                        w.removeprefix("--node_id=") for w in words if w.startswith("--node_id=")
                    )
    return None
