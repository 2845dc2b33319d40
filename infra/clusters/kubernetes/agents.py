"""The engine for agents on Kubernetes: Jobs, which need no operator and no head."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from regrow.infra.clusters.agents import Agent, Output, Submission, Work
from regrow.infra.clusters.description import Kubernetes
from regrow.infra.clusters.kubernetes import manifests
from regrow.infra.clusters.kubernetes.engine import KubernetesEngine, ended, state

_BEGINNING = ("ContainerCreating", "PodInitializing")
"""Kubernetes' reasons for a pod that is about to run."""
_LINES = 20
"""Lines of an agent's output that are shown."""


class JobsEngine:
    """The Jobs of one cluster file; see AgentEngine."""

    place = "Kubernetes"
    sends = True
    reads = False  # pods may have rights that this machine does not have
    no_output = "the Jobs were deleted, or their time (`expires`) was over"

    def __init__(self, cluster: Kubernetes, engine: KubernetesEngine | None = None) -> None:
        self.cluster = cluster
        self._engine = engine or KubernetesEngine(cluster)

    def check(self) -> None:
        self._engine.check()

    def offer(self, work: Work) -> list[str]:
        return []

    def files(self, work: Work, say: Callable[[str], None]) -> dict[str, bytes]:
        return self._engine.agents_files(work.words, work.project, say)

    def submit(self, work: Work, say: Callable[[str], None]) -> Submission:
        """Create the Jobs, unless the experiment has some. Raises RegrowError if those of another
        one are under way.
        """
        under_way = [_submission(job) for job in self._engine.jobs() if not ended(job)]
        for one in under_way:
            if (one.experiment, one.state) == (work.experiment, work.state):
                say(f"{work.experiment} has Jobs already")
                return one
        self._engine.start_agents(work.words, work.project, say)
        return Submission(experiment=work.experiment, state=work.state, t=time.time())

    def submissions(self) -> list[Submission]:
        """Return what was submitted, from anywhere, as long as Kubernetes keeps the Jobs."""
        found = {(one.experiment, one.state): one for one in map(_submission, self._engine.jobs())}
        return sorted(found.values(), key=lambda one: one.t)

    def agents(self, *of: Submission) -> list[Agent]:
        """Return the pods, and those that are missing of Jobs that have not ended."""
        names, found = {one.experiment for one in of}, []
        for job in self._engine.jobs():
            experiment, status = _submission(job).experiment, job.get("status", {})
            if ended(job) or (of and experiment not in names):
                continue
            pods = [_agent(pod, experiment) for pod in self._engine.pods(job) if _alive(pod)]
            lacks = int(job["spec"]["parallelism"]) - int(status.get("succeeded", 0)) - len(pods)
            name = job["metadata"]["name"]
            missing = Agent(name=name, experiment=experiment, state="missing", reason=name)
            found += [*pods, *[missing] * lacks]
        return found

    def outputs(self, of: Submission) -> list[Output]:
        return [
            Output(
                title=pod["metadata"]["name"],
                lines=self._engine.log_of(pod, _LINES),
                t=_ended_at(pod),
            )
            for job in self._engine.jobs()
            if _submission(job).experiment == of.experiment
            for pod in self._engine.pods(job)
        ]

    def done(self, of: Submission, say: Callable[[str], None]) -> None:
        """Do nothing: the Jobs complete with the experiment."""

    def end(self, say: Callable[[str], None]) -> None:
        self._engine.down(say)


def _submission(job: Mapping[str, Any]) -> Submission:
    """Return what a Job was submitted for, by the command of its pods."""
    words = manifests.agent_command(job)
    given = {key: words[words.index(key) + 1] for key in ("--name", "--state") if key in words}
    made = job["metadata"].get("creationTimestamp")
    return Submission(
        experiment=given.get("--name", ""), state=given.get("--state", ""), t=_seconds(made)
    )


def _alive(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _agent(pod: Mapping[str, Any], experiment: str) -> Agent:
    told, _, why = state(pod).partition(" (")
    return Agent(
        name=pod["metadata"]["name"],
        experiment=experiment,
        state="starting" if told in _BEGINNING else told,
        node=pod["spec"].get("nodeName", "") if told == "running" else "",
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
