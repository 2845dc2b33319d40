"""The engine for agents on Kubernetes: Jobs, by kubectl."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from regrow.infra.clusters import project
from regrow.infra.clusters.agents import Agent, AgentWork, Output, Submission
from regrow.infra.clusters.description import Kubernetes
from regrow.infra.clusters.folder import variables
from regrow.infra.clusters.kubernetes import checks, manifests
from regrow.infra.clusters.kubernetes.kubectl import Kubectl
from regrow.tasks.errors import RegrowError

Json = dict[str, Any]
_OURS = "jobs.batch,networkpolicies,secrets"
"""The kinds of objects that are created here."""
_DOWN_SECONDS = manifests.GRACE_SECONDS + 180.0
_LOOK_SECONDS = 2.0
_MOST_PROJECT = 1_000_000
"""A Secret may have 1 MiB in total."""


class JobsEngine:
    """The Jobs of one cluster file; see AgentEngine."""

    place = "Kubernetes"
    sends = True
    reads = False  # pods may have rights that this machine does not have
    no_output = "the Jobs were deleted, or their time (`expires`) was over"

    def __init__(self, cluster: Kubernetes, kubectl: Kubectl | None = None) -> None:
        self.cluster = cluster
        self._kubectl = kubectl or Kubectl(cluster.context, cluster.namespace)
        self._selector = f"{manifests.CLUSTER}={cluster.name}"

    def check(self) -> None:
        checks.check(self.cluster)
        variables(self.cluster, os.environ)

    def offer(self, work: AgentWork) -> list[str]:
        return []

    def files(self, work: AgentWork, say: Callable[[str], None]) -> dict[str, bytes]:
        """Return the manifests, without the Secret of `env`."""
        heading = ""
        if self.cluster.env:
            name = manifests.names(self.cluster)["env"]
            there = f"kubectl --namespace={self.cluster.namespace} create secret generic"
            heading = (
                "A Secret with the values of `env` is not in this file. Before it is applied:\n"
                f"{there} {name} --from-env-file=FILE\n"
                f"where FILE has lines NAME=value for {', '.join(sorted(self.cluster.env))}"
            )
        return {"agents.yaml": manifests.written(self._objects(work, say), heading)}

    def submit(self, work: AgentWork, say: Callable[[str], None]) -> Submission:
        """Create the Jobs, unless the experiment has some. Raises RegrowError if those of another
        one are under way, UserError for a large project.
        """
        self.check()
        under_way = [job for job in self._jobs() if not _has_ended(job)]
        for one in map(_submission, under_way):
            if (one.experiment, one.state) == (work.experiment, work.state):
                say(f"{work.experiment} has Jobs already")
                return one
        if under_way:
            names = ", ".join(job["metadata"]["name"] for job in under_way)
            raise RegrowError(
                f"Job {names} is under way; wait for it, or end it by regrow cluster down"
            )
        objects = self._objects(work, say)
        self._delete("jobs.batch")
        if values := variables(self.cluster, os.environ):
            data = {name: value.encode() for name, value in values.items()}
            objects.insert(0, manifests.secret(self.cluster, "env", data))
        self._kubectl.apply(manifests.written(objects).decode())
        names = ", ".join(f"{self.cluster.name}-{group.name}" for group in self.cluster.workers)
        say(f"made Job {names} of agents in namespace {self.cluster.namespace}")
        return Submission(experiment=work.experiment, state=work.state, t=time.time())

    def submissions(self) -> list[Submission]:
        """Return what was submitted, from anywhere, as long as Kubernetes keeps the Jobs."""
        found = {(one.experiment, one.state): one for one in map(_submission, self._jobs())}
        return sorted(found.values(), key=lambda one: one.t)

    def agents(self, *of: Submission) -> list[Agent]:
        """Return the pods, and those that are missing of Jobs that have not ended."""
        names, found = {one.experiment for one in of}, []
        for job in self._jobs():
            experiment, status = _submission(job).experiment, job.get("status", {})
            if _has_ended(job) or (of and experiment not in names):
                continue
            pods = [
                _agent(pod, experiment)
                for pod in self._pods(job)
                if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            ]
            lacks = int(job["spec"]["parallelism"]) - int(status.get("succeeded", 0)) - len(pods)
            name = job["metadata"]["name"]
            missing = Agent(name=name, experiment=experiment, state="missing", reason=name)
            found += [*pods, *[missing] * lacks]
        return found

    def outputs(self, of: Submission) -> list[Output]:
        return [
            Output(
                title=pod["metadata"]["name"],
                lines=self._printed(pod),
                t=_ended_at(pod),
            )
            for job in self._jobs()
            if _submission(job).experiment == of.experiment
            for pod in self._pods(job)
        ]

    def done(self, of: Submission, say: Callable[[str], None]) -> None:
        """Do nothing: the Jobs complete with the experiment."""

    def end(self, say: Callable[[str], None]) -> None:
        deadline = time.monotonic() + _DOWN_SECONDS
        self._delete(_OURS)
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        if left:
            raise RegrowError(f"still in namespace {self.cluster.namespace}: {', '.join(left)}")
        say(f"nothing of {self.cluster.name} is left in namespace {self.cluster.namespace}")

    def _objects(self, work: AgentWork, say: Callable[[str], None]) -> list[Json]:
        data = project.packed(
            work.project, say, most=_MOST_PROJECT, of="a Secret of Kubernetes can have"
        )
        return [
            manifests.secret(self.cluster, "project", {"project.tar.gz": data}),
            manifests.network_policy(self.cluster),
            *manifests.agents(self.cluster, work.words, user=getpass.getuser()),
        ]

    def _jobs(self) -> list[Json]:
        return self._kubectl.listed("jobs.batch", self._selector)

    def _pods(self, job: Json) -> list[Json]:
        return self._kubectl.listed("pods", f"job-name={job['metadata']['name']}")

    def _printed(self, pod: Json) -> list[str]:
        """Return the last lines of a pod's output; empty if it has none yet."""
        done = self._kubectl.attempt("logs", pod["metadata"]["name"], "--tail=20")
        return done.stdout.splitlines()

    def _delete(self, kinds: str) -> None:
        self._kubectl.run(
            "delete",
            kinds,
            f"--selector={self._selector}",
            "--ignore-not-found",
            "--wait",
            "--cascade=foreground",
            seconds=_DOWN_SECONDS,
        )

    def _left(self) -> list[str]:
        found = self._kubectl.listed(f"{_OURS},pods", self._selector)
        return sorted({f"{one['kind']} {one['metadata']['name']}" for one in found})


def _submission(job: Mapping[str, Any]) -> Submission:
    """Return what a Job was submitted for, by the command of its pods."""
    words = manifests.agent_command(job)
    given = {key: words[words.index(key) + 1] for key in ("--name", "--state") if key in words}
    made = job["metadata"].get("creationTimestamp")
    return Submission(
        experiment=given.get("--name", ""), state=given.get("--state", ""), t=_seconds(made)
    )


def _agent(pod: Mapping[str, Any], experiment: str) -> Agent:
    state, _, why = _state(pod).partition(" (")
    return Agent(
        name=pod["metadata"]["name"],
        experiment=experiment,
        state="starting" if state in ("ContainerCreating", "PodInitializing") else state,
        node=pod["spec"].get("nodeName", "") if state == "running" else "",
        reason=why.removesuffix(")"),
    )


def _ended_at(pod: Mapping[str, Any]) -> float:
    """Return when its container ended, seconds since the epoch; 0: it has not."""
    for one in pod.get("status", {}).get("containerStatuses", ()):
        if ended := one.get("state", {}).get("terminated"):
            return _seconds(ended.get("finishedAt"))
    return 0.0


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _has_ended(job: Mapping[str, Any]) -> bool:
    return any(
        one["type"] in ("Complete", "Failed") and one["status"] == "True"
        for one in job.get("status", {}).get("conditions", ())
    )


def _state(pod: Mapping[str, Any]) -> str:
    """Return the state of a pod: `running`, or a description of the problem."""
    status = pod.get("status", {})
    conditions = status.get("conditions", ())
    if pod["metadata"].get("deletionTimestamp"):
        return "ending"
    if any(one["type"] == "Ready" and one["status"] == "True" for one in conditions):
        return "running"
    for container in (
        *status.get("initContainerStatuses", ()),
        *status.get("containerStatuses", ()),
    ):
        waiting = container.get("state", {}).get("waiting", {})
        if reason := waiting.get("reason"):
            return f"{reason} ({waiting['message']})" if waiting.get("message") else str(reason)
    for condition in conditions:
        if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
            return f"Unschedulable ({condition.get('message', '')})"
    phase = str(status.get("phase", "unknown")).lower()
    return "not ready" if phase == "running" else phase
