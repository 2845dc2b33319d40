"""The pods' own commands, run as a kubelet would: a pod that is to end is drained, a lost head is a
new cluster that continues.

A pod is a host of the lab with processes, /tmp and /dev/shm of its own, whose first process is the
command that KubeRay makes of the manifest. There is no Kubernetes here: that it reads the manifests
so is taken from KubeRay's source (1.7, pod.go).
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.clusters.kubernetes import manifests
from tests.system.conftest import Desk
from tests.system.hosts import HEAD_PORT, Host, await_, network, why_not
from tests.system.test_main_job import check_whole
from tests.system.test_notices import RARELY, TRAIN, check_left_in_time
from tests.unit.kubernetes_clusters import LEAST, described

_POD = """
set -e
mount --make-rprivate /
mount --bind {shared} {own}/{beside}
mount --rbind {own} /tmp
mount -t tmpfs -o size=512m tmpfs /dev/shm
exec "$@"
"""


@dataclass(slots=True)
class Pod:
    """One pod. `said`: what its first process says."""

    host: Host
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]
    said: Path

    @property
    def init(self) -> int:
        """Its first process, as seen from outside."""
        return int(
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            .read_text()
            .split()[0]
        )

    def inside(self, *words: str) -> list[str]:
        """The command line that runs `words` in the pod, as `kubectl exec` does."""
        return [
            "nsenter",
            f"--target={self.init}",
            "--net",
            "--mount",
            "--pid",
            "--wd=/",
            "--",
            *words,
        ]

    def end(self, hook: list[str]) -> None:
        """What a kubelet does: the hook, then SIGTERM, and within the grace period nothing is left.
        Else AssertionError.
        """
        done = subprocess.run(
            self.inside(*hook),
            env=dict(self.environment),
            capture_output=True,
            timeout=manifests.GRACE_SECONDS,
            check=False,
        )
        # Where bash has become Ray (5.1 and later), the container ends with Ray, and the hook with
        # the container.
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        with suppress(ProcessLookupError, IndexError):
            os.kill(self.init, signal.SIGTERM)
        self.process.wait(30)


@dataclass(slots=True)
class Cluster:
    """The pods that KubeRay would make of a RayJob; the head is the first."""

    desk: Desk
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    pods: list[Pod] = field(default_factory=list)
    job: dict[str, Any] = field(init=False)
    """The RayJob's specification."""

    def __post_init__(self) -> None:
        group = {"name": "all", "cpu": 1, "memory": "1GiB", "most": 2}
        cluster = described(LEAST, python=sys.executable, workers=[group], head={"memory": "1GiB"})
        words = ("regrow", "run", str(self.desk.folder / "pods.yaml"))
        self.job = manifests.ray_job(cluster, words, user="ada", ray="2.60.0")["spec"]

    def start(self, host: Host) -> Pod:
        """Starts the head on the first host, a worker on any other; returns when Ray runs there."""
        spec = self.job["rayClusterSpec"]
        is_head = not self.pods
        group = spec["headGroupSpec"] if is_head else spec["workerGroupSpecs"][0]
        container = group["template"]["spec"]["containers"][0]
        own = {one["name"]: one["value"] for one in container["env"]}
        head = host if is_head else self.pods[0].host
        given = {
            "RAY_ADDRESS": f"{head.address}:{HEAD_PORT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
        }
        environment = {
            **self.desk.environment,
            "PATH": self._path(),
            "REGROW_CLOUD": "none",
            **own,
            **given,
        }
        place = self.folder / host.name
        beside = self.desk.folder.parent.relative_to("/tmp")
        (place / "tmp" / beside).mkdir(parents=True)
        script = _POD.format(shared=self.desk.folder.parent, own=place / "tmp", beside=beside)
        words = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            script,
            "pod",
        ]
        command = [
            "/bin/bash",
            "-c",
            "--",
            f"ulimit -n 65536; {_ray_start(group, is_head, host, head)}",
        ]
        starting = {
            name: value
            for name, value in environment.items()
            if not (is_head and name == "RAY_ADDRESS")
        }
        said = place / "said"
        with said.open("wb") as file:
            process = subprocess.Popen(
                host.command(*words, *command),
                env=starting,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        pod = Pod(host=host, environment=environment, process=process, said=said)
        self.pods.append(pod)
        await_(
            lambda: "will now block" in said.read_text() or process.poll() is not None,
            f"Ray on {host.name}",
        )
        assert process.poll() is None, said.read_text()
        return pod

    def begin(self) -> subprocess.Popen[str]:
        """Runs the RayJob's entrypoint on the head, as Ray does with one that was submitted."""
        words = shlex.split(self.job["entrypoint"])
        # where the init container would have unpacked it
        words[words.index(manifests.PROJECT_FOLDER)] = str(self.desk.folder)
        head = self.pods[0]
        process = subprocess.Popen(
            head.inside(*words),
            env=dict(head.environment),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.desk.started.append(process)
        return process

    def hook(self, number: int) -> list[str]:
        """The preStop hook of a pod."""
        spec = self.job["rayClusterSpec"]
        group = spec["headGroupSpec"] if number == 0 else spec["workerGroupSpecs"][0]
        words: list[str] = group["template"]["spec"]["containers"][0]["lifecycle"]["preStop"][
            "exec"
        ]["command"]
        return words

    def kill(self) -> None:
        """All pods are gone at once, without a word."""
        for pod in self.pods:
            pod.process.kill()  # unshare's, and with it the first process of the pod
            pod.process.wait()

    def _path(self) -> str:
        return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def _ray_start(group: dict[str, Any], is_head: bool, host: Host, head: Host) -> str:
    """What KubeRay makes of a group (generateRayStartCommand), with less for a small machine."""
    parameters = {
        **group["rayStartParams"],
        "labels": ",".join(f"{key}={value}" for key, value in sorted(group["labels"].items())),
        "memory": group["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"],
        "dashboard-agent-listen-port": "52365",
        "metrics-export-port": "8080",
        **({"no-monitor": "true"} if is_head else {"address": f"{head.address}:{HEAD_PORT}"}),
        "block": "true",
        "node-ip-address": host.address,
        "object-store-memory": "100000000",
        "include-log-monitor": "false",
        **({"include-dashboard": "false"} if is_head else {}),
    }
    named = (
        f"--{key}" if value == "true" else f"--{key}={value}"
        for key, value in sorted(parameters.items())
    )
    return f"ray start {'--head ' if is_head else ''}{' '.join(named)}"


@contextmanager
def cluster(desk: Desk, folder: Path, workers: int) -> Iterator[Cluster]:
    """A head and so many workers."""
    with ExitStack() as stack:
        hosts = stack.enter_context(network(1 + workers))
        made = Cluster(desk, folder)
        stack.callback(made.kill)
        for host in hosts:
            made.start(host)
        yield made


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := why_not():
        pytest.skip(reason)
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no namespaces can be made: {done.stderr.decode().strip()}")
    return tmp_path_factory.mktemp("pods")


def write(desk: Desk, trials: int) -> None:
    retries = {"preempted": "unlimited", "infrastructure": 0, "error": 0}
    train = TRAIN.replace("FOLDER", str(desk.folder))
    desk.write(
        "pods", train=train, trials=trials, max_steps=300, checkpoint=RARELY, retries=retries
    )


def until(desk: Desk, kind: str, count: int, process: subprocess.Popen[str]) -> None:
    desk.await_events("pods", kind, count, process)
    assert process.poll() is None, process.communicate()[0]


def test_a_worker_pod_that_is_to_end_is_drained_and_loses_not_one_step(
    desk: Desk, folder: Path
) -> None:
    write(desk, 2)
    with cluster(desk, folder, 2) as made:
        process = made.begin()
        until(desk, "began", 2, process)
        until(desk, "reported", 4, process)
        ended = made.pods[1]
        ended.end(made.hook(1))
        (gone,) = [e for e in desk.events("pods") if e["event"] == "ended"]
        (desk.folder / "released").touch()
        said, _ = process.communicate(timeout=180)
        assert process.returncode == 0, said
    check_left_in_time(desk, "pods", 2, [gone["trial"]])


@pytest.mark.nightly
def test_a_lost_head_is_a_new_cluster_that_goes_on_from_the_log(desk: Desk, folder: Path) -> None:
    write(desk, 1)
    with cluster(desk, folder / "first", 1) as made:
        process = made.begin()
        until(desk, "reported", 2, process)
        made.pods[0].end(made.hook(0))
        said, _ = process.communicate(timeout=60)
        # for KubeRay a reason to begin again
        assert process.returncode in (3, -signal.SIGKILL), said
    (desk.folder / "released").touch()
    with cluster(desk, folder / "second", 1) as made:
        process = made.begin()
        said, _ = process.communicate(timeout=180)
        assert process.returncode == 0, said
    view = check_whole(desk, "pods", 1)
    assert view["wasted_steps"] == 0
