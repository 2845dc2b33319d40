"""A cloud to test with: AWS's interfaces as moto has them, and behind each instance that runs a
host of the lab with its address.

The laptop is a host beside them; whoever has `environment` there talks to this cloud. Machines have
a metadata service, run their user data, end when they are terminated or shut themselves down, and
can be taken away.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab import hosts as labs
from tests.lab import systemd
from tests.lab.hosts import OFF, Host, Hosts
from tests.system.hosts import await_

NETWORK, LAPTOP, PORT = "172.31.0.0/16", "172.31.255.1", 5000
"""The network is that of moto's subnets."""
REGION = "us-west-2"
_TICK = 0.2


def why_not() -> str:
    """Why there can be no cloud on this machine; empty if there can."""
    if importlib.util.find_spec("moto") is None:
        return "moto is not installed: pip install 'moto[server]'"
    return labs.why_not()


class Cloud:
    """The cloud; `hosts` are its machines, the first one the laptop. `machines` by the instance's
    id.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cloud"
        self.folder.mkdir(parents=True)
        self.hosts = Hosts(folder, network=NETWORK, visible=(self.folder,))
        self.machines: dict[str, Host] = {}
        self.gone: list[str] = []
        """Instances whose machines have ended."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failed: list[BaseException] = []

    @property
    def environment(self) -> dict[str, str]:
        """By which a process is a client of this cloud."""
        return {
            "AWS_ENDPOINT_URL": f"http://{LAPTOP}:{PORT}",
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "lab",
            "AWS_DEFAULT_REGION": REGION,
        }

    @property
    def laptop(self) -> Host:
        """Where the user is."""
        return self.hosts.all[0]

    def start(self) -> None:
        """The laptop is there, and the cloud answers."""
        laptop, said = self.hosts.add(LAPTOP), self.folder / "said"
        server = Path(__file__).with_name("cloud_server.py")
        process = self.hosts.begin(
            laptop,
            sys.executable,
            str(server),
            LAPTOP,
            str(PORT),
            str(self.folder),
            said=said,
            environment={"PYTHONPATH": _paths()},
        )
        await_(lambda: "Running on" in said.read_text() or process.poll() is not None, "moto")
        assert process.poll() is None, said.read_text()
        self._thread.start()

    def stop(self) -> None:
        """All of it is gone."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.hosts.stop()

    def instances(self) -> dict[str, tuple[str, str]]:
        """Address and state of all instances that ever were."""
        file = self.folder / "instances"
        return (
            {name: tuple(found) for name, found in json.loads(file.read_text()).items()}
            if file.exists()
            else {}
        )

    def running(self) -> list[str]:
        """The instances that run."""
        return [name for name, (_, state) in self.instances().items() if state == "running"]

    def take(self, instance: str) -> None:
        """The machine is gone, as by a power cut."""
        self.hosts.kill(self.machines[instance])
        self._ended(instance)

    def call(self, service: str, operation: str, **asked: Any) -> Any:
        """What the cloud answers to one request; see boto3."""
        program = (
            "import boto3, json, sys; service, operation, asked = json.loads(sys.argv[1]); "
            "print(json.dumps(getattr(boto3.client(service), operation)(**asked), default=str))"
        )
        words = (sys.executable, "-c", program, json.dumps([service, operation, asked]))
        return json.loads(self.hosts.run(self.laptop, *words, environment=self.environment).stdout)

    def _run(self) -> None:
        try:
            while not self._stop.wait(_TICK):
                self._look()
        except BaseException as error:
            self.failed.append(error)
            raise

    def _look(self) -> None:
        """Makes the machines what moto says of them, and tells moto of those that ended by
        themselves.
        """
        for name, (address, state) in self.instances().items():
            if name in self.gone:
                continue
            if state in ("pending", "running") and name not in self.machines:
                self._appear(name, address)
            elif state in ("shutting-down", "terminated") and name in self.machines:
                self.hosts.shut_down(self.machines[name], grace=20)
                self.gone.append(name)
            elif name in self.machines and (self.machines[name].home / OFF).exists():
                self.hosts.shut_down(self.machines[name], grace=5)
                self._ended(name)

    def _appear(self, name: str, address: str) -> None:
        host = self.hosts.add(address)
        self.hosts.run(host, "ip", "address", "add", "169.254.169.254/32", "dev", "lo")
        service = Path(__file__).with_name("metadata.py")
        self.hosts.begin(host, sys.executable, str(service), said=host.folder / "metadata")
        self.machines[name] = host
        script = self.folder / f"user-data-{name}"
        if script.exists():
            systemd.install(host)
            self.hosts.begin(host, "bash", str(script), said=self.said(name))

    def said(self, instance: str) -> Path:
        """Where a machine's user data, and what they start, print to."""
        return self.machines[instance].folder / "said"

    def _ended(self, name: str) -> None:
        self.gone.append(name)
        (self.folder / f"terminate-{name}").touch()


@contextmanager
def cloud(folder: Path) -> Iterator[Cloud]:
    """A cloud. After the block nothing of it runs."""
    made = Cloud(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _paths() -> str:
    """Where moto is, wherever this process found it."""
    return ":".join(path for path in sys.path if path)
