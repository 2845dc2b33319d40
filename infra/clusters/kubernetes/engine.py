"""The engine for clusters on Kubernetes, by kubectl and the KubeRay operator."""

from __future__ import annotations

import base64
import getpass
import importlib.metadata
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from regrow.infra.clusters import project
from regrow.infra.clusters.description import Kubernetes
from regrow.infra.clusters.folder import Folder, variables
from regrow.infra.clusters.kubernetes import checks, manifests
from regrow.infra.clusters.kubernetes.kubectl import Kubectl, NoOperator
from regrow.infra.clusters.provider import Machine, Offer, offers
from regrow.infra.machine import confidential, private_files
from regrow.infra.machine.supervised import attached
from regrow.tasks.errors import RegrowError

Json = dict[str, Any]

_WITHOUT_OPERATOR = "jobs.batch,networkpolicies,secrets"
_OURS = f"rayjobs.ray.io,rayclusters.ray.io,{_WITHOUT_OPERATOR}"
"""The kinds of objects that regrow creates."""
_THEIRS = "pods,services,secrets,serviceaccounts,roles,rolebindings,jobs"
"""The kinds of objects that KubeRay creates from them."""
_OF_RAY = "ray.io/cluster"
"""KubeRay's label with the name of the RayCluster that an object belongs to."""
_UP_SECONDS = 1800.0
"""Seconds until the head's pod must be ready: it may need a new node, and a large image."""
_DOWN_SECONDS = manifests.GRACE_SECONDS + 180.0
_LOOK_SECONDS = 2.0
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull", "ImagePullBackOff", "CreateContainerError")
"""Reasons of a waiting container for which further waiting is useless."""


class KubernetesEngine:
    """The engine of one cluster on Kubernetes; a Provider."""

    def __init__(self, cluster: Kubernetes, kubectl: Kubectl | None = None) -> None:
        self.cluster = cluster
        self.folder = Folder(cluster.name)
        self._kubectl = kubectl or Kubectl(cluster.context, cluster.namespace)
        self._made_by = {"user": getpass.getuser(), "ray": importlib.metadata.version("ray")}
        self._selector = f"{manifests.CLUSTER}={cluster.name}"

    def plan(self) -> list[Offer]:
        """Return the head and the groups. The price depends on the nodes, so it is unknown."""
        workers = ((one.name, one.market, one.most) for one in self.cluster.workers)
        return offers("head", "on-demand", workers, lambda *_: None)

    def files(self) -> dict[str, bytes]:
        """Return the manifests of `up`, without the Secrets; a heading tells how to make these."""
        return {"kubernetes.yaml": manifests.written(self._objects(), self._heading())}

    def check(self) -> None:
        """Check for mistakes. Raises SpecError."""
        checks.check(self.cluster)

    def up(self, say: Callable[[str], None]) -> None:
        """Create the cluster, or resume a suspended one, and wait for its head."""
        self.check()
        there = self._kubectl.get("rayclusters.ray.io", self.cluster.name)
        if there is None:
            self._apply_secrets()
            self._kubectl.apply(manifests.written(self._objects()))
            say(f"made RayCluster {self.cluster.name} in namespace {self.cluster.namespace}")
        else:
            self._leave_or_wake(there, say)
            self._take_token()
        self._wait_for_head(say)

    def start(
        self,
        words: Sequence[str],
        folder: Path,
        say: Callable[[str], None],
        *,
        environment: Mapping[str, str] | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Create a RayJob for one experiment, and return. If its head is lost, KubeRay starts it
        again with a new cluster. See `manifests.ray_job`. `folder`: the project.

        Raises RegrowError if a job is running, UserError for a large project.
        """
        self.check()
        left_out = confidential.confidential(folder)
        data = project.packed(folder, left_out)
        if left_out:
            say(confidential.told(left_out))
        there = self._kubectl.get("rayjobs.ray.io", self.cluster.name)
        if there is not None:
            status = there.get("status", {}).get("jobDeploymentStatus", "")
            if status not in ("Complete", "Failed", "ValidationFailed"):
                raise RegrowError(
                    f"RayJob {self.cluster.name} is under way ({status or 'new'}); wait for it, or"
                    " end it"
                )
            self._kubectl.run(
                "delete", "rayjobs.ray.io", self.cluster.name, "--wait", timeout=_DOWN_SECONDS
            )
        self._apply_secrets()
        job = manifests.ray_job(
            self.cluster, words, **self._made_by, environment=environment, about=about
        )
        files = manifests.secret(self.cluster, "project", {"project.tar.gz": data})
        self._kubectl.apply(manifests.written([files, manifests.network_policy(self.cluster), job]))
        say(f"made RayJob {self.cluster.name} in namespace {self.cluster.namespace}")

    def start_agents(self, words: Sequence[str], folder: Path, say: Callable[[str], None]) -> None:
        """Create Jobs of agents for one experiment, and return. See `manifests.agents`. `folder`:
        the project.

        Raises RegrowError if some are under way, UserError for a large project.
        """
        self.check()
        under_way = [job["metadata"]["name"] for job in self.jobs() if not ended(job)]
        if under_way:
            raise RegrowError(
                f"Job {', '.join(under_way)} is under way; wait for it, or end it by regrow cluster"
                " down"
            )
        self._end_agents()
        self._apply_secrets(token=False)
        self._kubectl.apply(manifests.written(self._agents(words, folder, say)))
        names = ", ".join(f"{self.cluster.name}-{group.name}" for group in self.cluster.workers)
        say(f"made Job {names} of agents in namespace {self.cluster.namespace}")

    def jobs(self) -> list[Json]:
        """Return the Jobs of agents, ended or not."""
        return self._kubectl.listed("jobs.batch", self._selector)

    def pods(self, job: Json) -> list[Json]:
        """Return the pods of a Job, ended or not."""
        return self._kubectl.listed("pods", f"job-name={job['metadata']['name']}")

    def log_of(self, pod: Json, lines: int) -> list[str]:
        """Return the last lines of a pod's output; empty if it has none yet."""
        done = self._kubectl.attempt("logs", pod["metadata"]["name"], f"--tail={lines}")
        return done.stdout.decode(errors="replace").splitlines()

    def agents_files(
        self, words: Sequence[str], folder: Path, say: Callable[[str], None]
    ) -> dict[str, bytes]:
        """Return the manifests of `start_agents`, without the Secret of `env`."""
        made = self._agents(words, folder, say)
        return {"agents.yaml": manifests.written(made, self._heading(token=False))}

    def _agents(self, words: Sequence[str], folder: Path, say: Callable[[str], None]) -> list[Json]:
        left_out = confidential.confidential(folder)
        data = project.packed(folder, left_out)
        if left_out:
            say(confidential.told(left_out))
        return [
            manifests.secret(self.cluster, "project", {"project.tar.gz": data}),
            manifests.network_policy(self.cluster),
            *manifests.agents(self.cluster, words, user=self._made_by["user"]),
        ]

    def _end_agents(self) -> None:
        self._kubectl.run(
            "delete",
            "jobs.batch",
            f"--selector={self._selector}",
            "--ignore-not-found",
            "--wait",
            "--cascade=foreground",
            timeout=_DOWN_SECONDS,
        )

    def status(self) -> list[Machine]:
        """Return the pods, the head first."""
        found = [_machine(pod) for pod in self._kubectl.listed("pods", self._selector)]
        return sorted(found, key=lambda one: (one.role != "head", one.address))

    def command(self, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the head's container."""
        return self._kubectl.attempt(*self._exec(words))

    def hold(self, words: Sequence[str]) -> AbstractContextManager[IO[bytes]]:
        """Run a command in the head's container for the duration of the block. It also ends if the
        connection breaks. Yields its output.
        """
        # the input ends with the connection
        held = f"{shlex.join(words)} & child=$!; cat > /dev/null; kill $child"
        return attached(self._kubectl.words(*self._exec(("/bin/sh", "-c", held))))

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        """Open a local port that leads to a port of the head."""
        return self._kubectl.forwarded(self._head(), port)

    def down(self, say: Callable[[str], None]) -> None:
        """Delete the whole cluster. Raises RegrowError, naming what is left, if something is."""
        clusters, kinds = self._ray_clusters()
        deadline = time.monotonic() + _DOWN_SECONDS
        self._kubectl.run(
            "delete",
            kinds,
            f"--selector={self._selector}",
            "--ignore-not-found",
            "--wait",
            "--cascade=foreground",
            timeout=_DOWN_SECONDS,
        )
        while (left := self._left(clusters, kinds)) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        if left:
            raise RegrowError(f"still in namespace {self.cluster.namespace}: {', '.join(left)}")
        say(f"nothing of {self.cluster.name} is left in namespace {self.cluster.namespace}")

    def _ray_clusters(self) -> tuple[list[str], str]:
        """Return the names of the RayClusters, and the kinds of objects that regrow creates here:
        without the operator its own kinds are unknown, and agents alone can be there.
        """
        try:
            found = self._kubectl.listed("rayclusters.ray.io", self._selector)
        except NoOperator:
            return [], _WITHOUT_OPERATOR
        return [one["metadata"]["name"] for one in found], _OURS

    def _objects(self) -> list[Json]:
        return [
            manifests.network_policy(self.cluster),
            manifests.ray_cluster(self.cluster, **self._made_by),
        ]

    def _heading(self, *, token: bool = True) -> str:
        """Return how to make the Secrets. `token`: of Ray, too; agents have one in the state."""
        name, make = (
            manifests.names(self.cluster),
            f"kubectl --namespace={self.cluster.namespace} create secret generic",
        )
        lines = []
        if token:
            new = f"--from-literal={manifests.TOKEN_KEY}=$(openssl rand -hex 32)"
            lines.append(f"{make} {name['token']} {new}")
        if self.cluster.env:
            lines.append(f"{make} {name['env']} --from-env-file=FILE")
            lines.append(
                f"where FILE has lines NAME=value for {', '.join(sorted(self.cluster.env))}"
            )
        if not lines:
            return ""
        return "\n".join(["Secrets are not in this file. Before it is applied:", *lines])

    def _apply_secrets(self, *, token: bool = True) -> None:
        made = []
        if token:
            data = {manifests.TOKEN_KEY: self.folder.token.encode()}
            made.append(manifests.secret(self.cluster, "token", data))
        if values := variables(self.cluster, os.environ):
            data = {name: value.encode() for name, value in values.items()}
            made.append(manifests.secret(self.cluster, "env", data))
        if made:
            self._kubectl.apply(manifests.written(made))

    def _leave_or_wake(self, there: Json, say: Callable[[str], None]) -> None:
        now = manifests.ray_cluster(self.cluster, **self._made_by)["metadata"]["annotations"][
            manifests.FILE_HASH
        ]
        if there["metadata"].get("annotations", {}).get(manifests.FILE_HASH) != now:
            say(
                "the cluster file has changed since; what is up stays as it is until `down` and"
                " `up`"
            )
        if there["spec"].get("suspend"):
            patch = json.dumps({"spec": {"suspend": False}})
            self._kubectl.run(
                "patch", "rayclusters.ray.io", self.cluster.name, "--type=merge", f"--patch={patch}"
            )
            say(f"RayCluster {self.cluster.name} was suspended, and continues")

    def _wait_for_head(self, say: Callable[[str], None]) -> None:
        deadline, told = time.monotonic() + _UP_SECONDS, ""
        while True:
            heads = [one for one in self._pods() if _role(one) == "head"]
            if any(ready(one) for one in heads):
                return
            why = next((state(one) for one in heads), "no pod yet")
            if why != told:
                say(f"waiting for the head: {why}")
                told = why
            if any(sign in why for sign in _HOPELESS) or time.monotonic() > deadline:
                raise RegrowError(
                    f"the head's pod does not start: {why}; see kubectl describe pod"
                    f" --selector={self._selector}"
                )
            time.sleep(_LOOK_SECONDS)

    def _take_token(self) -> None:
        """Store the token of an existing cluster, which another machine may have started."""
        found = self._kubectl.get("secrets", manifests.names(self.cluster)["token"])
        token = (found or {}).get("data", {}).get(manifests.TOKEN_KEY)
        if token is None:
            raise RegrowError(
                f"{self.cluster.name} has lost the Secret of its token; end it with regrow cluster"
                " down"
            )
        private_files.replace(self.folder.make().path / "token", base64.b64decode(token))

    def _pods(self) -> list[Json]:
        return self._kubectl.listed("pods", self._selector)

    def _head(self) -> str:
        """Return the name of the head's pod. Raises RegrowError if there is none."""
        heads = [
            one
            for one in self._pods()
            if _role(one) == "head" and not one["metadata"].get("deletionTimestamp")
        ]
        if not heads:
            raise RegrowError(f"{self.cluster.name} has no head; see regrow cluster status")
        return str(heads[0]["metadata"]["name"])

    def _exec(self, words: Sequence[str]) -> list[str]:
        """Return kubectl's arguments for running a command in the head's container."""
        if self.cluster.python:
            folder = str(Path(self.cluster.python).parent)
            words = ("/bin/sh", "-c", f'PATH={folder}:$PATH exec "$@"', "sh", *words)
        return ["exec", "--stdin", self._head(), f"--container={manifests.HEAD}", "--", *words]

    def _left(self, clusters: Sequence[str], kinds: str) -> list[str]:
        """Return what exists of the cluster, by kind and name."""
        found = self._kubectl.listed(f"{kinds},pods", self._selector)
        if clusters:
            found += self._kubectl.listed(_THEIRS, f"{_OF_RAY} in ({','.join(clusters)})")
        return sorted({f"{one['kind']} {one['metadata']['name']}" for one in found})


def ended(job: Mapping[str, Any]) -> bool:
    """Return whether a Job has completed or failed."""
    return any(
        one["type"] in ("Complete", "Failed") and one["status"] == "True"
        for one in job.get("status", {}).get("conditions", ())
    )


def ready(pod: Mapping[str, Any]) -> bool:
    """Return whether all containers of a pod are ready, and it is not being deleted."""
    conditions = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True" and not pod["metadata"].get("deletionTimestamp")


def state(pod: Mapping[str, Any]) -> str:
    """Return the state of a pod: `running`, or a description of the problem."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "ending"
    if ready(pod):
        return "running"
    for container in (
        *status.get("initContainerStatuses", ()),
        *status.get("containerStatuses", ()),
    ):
        waiting = container.get("state", {}).get("waiting", {})
        if reason := waiting.get("reason"):
            return f"{reason} ({waiting['message']})" if waiting.get("message") else str(reason)
    for condition in status.get("conditions", ()):
        if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
            return f"Unschedulable ({condition.get('message', '')})"
    phase = str(status.get("phase", "unknown")).lower()
    return "not ready" if phase == "running" else phase


def _role(pod: Mapping[str, Any]) -> str:
    return (
        "head" if pod["metadata"].get("labels", {}).get("ray.io/node-type") == "head" else "worker"
    )


def _machine(pod: Mapping[str, Any]) -> Machine:
    labels = pod["metadata"].get("labels", {})
    market = labels.get(manifests.MARKET)
    return Machine(
        address=pod["metadata"]["name"],
        role="head" if _role(pod) == "head" else "worker",
        type=labels.get(manifests.INSTANCE, ""),
        market=market if market in ("spot", "on-demand") else None,
        state=state(pod),
    )
