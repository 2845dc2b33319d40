"""Experiments by agents that an engine starts: what `regrow run --on` and `regrow cluster` do here.

The agents run the experiment, whatever happens here. This machine only looks at the log, and asks
the engine who is there.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from regrow.infra.clusters.agents import Agent, AgentEngine, AgentWork, Submission
from regrow.infra.clusters.clouds.aws_account import AwsAccount
from regrow.infra.clusters.clouds.azure_account import AzureAccount
from regrow.infra.clusters.clouds.fleet_engine import FleetEngine
from regrow.infra.clusters.clouds.gcp_account import GcpAccount
from regrow.infra.clusters.description import Aws, Azure, Cluster, Gcp, Kubernetes, Slurm, Ssh
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.kubernetes.engine import JobsEngine
from regrow.infra.clusters.slurm import SlurmEngine
from regrow.infra.clusters.ssh import SshEngine
from regrow.infra.log.reading import replay, survey
from regrow.infra.state.experiments import prepare, request_resume, request_retry
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import Closed
from regrow.search.history import History
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process import background

LOOK_SECONDS = 10.0
"""Seconds between two questions to the engine: Slurm's controller serves all users."""
MOST_SECONDS = 60.0
"""Seconds after which it is asked although the log grows: other agents may not be able to join."""
_SHOWN = 12
"""Lines of an agent's output that are shown if the agents end before the experiment."""


class AgentsGone(UserError):
    """No agent is there any more, and the experiment has not ended."""


def engine(cluster: Cluster) -> AgentEngine[Any]:
    """Return the engine of a cluster. Raises UserError for a bad file of prices."""
    match cluster:
        case Aws():
            return FleetEngine(cluster, AwsAccount(cluster))
        case Gcp():
            return FleetEngine(cluster, GcpAccount(cluster))
        case Azure():
            return FleetEngine(cluster, AzureAccount(cluster))
        case Kubernetes():
            return JobsEngine(cluster)
        case Slurm():
            return SlurmEngine(cluster)
        case Ssh():
            return SshEngine(cluster)
    raise TypeError(f"{cluster.on} is no kind of cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """An experiment to run on a cluster, with the options of `regrow run`."""

    spec: Spec
    file: Path
    places: Places
    name: str | None = None
    trials: int | None = None
    changes: tuple[str, ...] = ()
    """Values of `--set`."""
    retry_failed: bool = False
    quiet: bool = False
    as_json: bool = False

    @property
    def project(self) -> Path:
        """Folder to send: the common parent of the code and the specification."""
        folders = (self.file.resolve().parent, Path(self.spec.working_dir or ".").resolve())
        return Path(os.path.commonpath(folders))


def joining(order: RunRequest, file: str) -> list[str]:
    """Return the arguments of `regrow` with which an agent joins the experiment of `file`. They are
    the same whenever it comes back, so what is to be done once is no part of them.
    """
    words = ["join", file, "--state", order.places.root, "--name", order.spec.name]
    words += ["--trials", str(order.trials)] if order.trials else []
    words += [word for change in order.changes for word in ("--set", change)]
    return words


def check_state(places: Places, cluster: Cluster, key: str) -> None:
    """Raise SpecError for a state root that the cluster's machines cannot see."""
    if places.storage.shared or any(
        Path(places.root).is_relative_to(one) for one in cluster.shared
    ):
        return
    hint = (
        "give --state s3://BUCKET/PREFIX, or name the folder that all machines share at `shared` in"
        " the cluster file"
    )
    raise SpecError(key, places.root, "is on this machine, where the cluster does not see it", hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """Runs experiments by agents. `say` gets lines for people, `file` is the cluster file."""

    cluster: Cluster
    engine: AgentEngine[Any]
    file: Path
    say: Callable[[str], None]

    def again(self, experiment: str, places: Places) -> str:
        """Return the command that follows and continues the experiment of a file, for people."""
        words = ["regrow", "run", experiment, "--on", str(self.file)]
        return shlex.join(words + ["--state", places.root] * (not places.is_default))

    def work(self, order: RunRequest, end: Closed | None = None) -> AgentWork:
        """Return what agents are started for. `end`: how the experiment has ended before. Raises
        UserError and SpecError.
        """
        self.engine.check()
        file = order.file.resolve()
        sent = file.relative_to(order.project) if self.engine.sends else file
        return AgentWork(
            experiment=order.spec.name,
            state=order.places.root,
            project=order.project,
            words=tuple(joining(order, str(sent))),
            ended=end.t if _is_over(end) else None,
        )

    def over(self, order: RunRequest, end: Closed | None) -> bool:
        """Return whether the experiment has ended, and nothing more is asked for. `end`: see
        `end_of`.
        """
        if end is None:
            return False
        found = prepare(
            order.places,
            order.spec.name,
            order.spec,
            trials=order.trials,
            code=None,
            retry_failed=order.retry_failed,
        )
        return found.nothing_left

    def end_of(self, order: RunRequest) -> Closed | None:
        """Return how the experiment has ended; None for one that has not, or that is not there."""
        last = survey(order.places.store(order.spec.name)).last
        return last if isinstance(last, Closed) else None

    def submit(self, order: RunRequest, end: Closed | None = None) -> Submission:
        """Start the agents that are missing; return what was submitted. `end`: see `end_of`. Raises
        UserError if failed trials are to be tried again while agents run the experiment.
        """
        work = self.work(order, end)
        if order.retry_failed:
            self._request_retry(order)
        if end is not None and end.status == "stopped":
            store = order.places.store(order.spec.name)
            # Not a word of theirs: they start again after later stops, as with their machine.
            request_resume(store, replay(store, order.spec.name).sessions)
        with Folder(self.cluster.name).locked(self.say):
            made: Submission = self.engine.submit(work, self.say)
        return made

    def _request_retry(self, order: RunRequest) -> None:
        """Have the first of the agents that leads try failed trials again. Raises as `submit`."""
        name, store = order.spec.name, order.places.store(order.spec.name)
        history = replay(store, name)
        if not _is_over(history.closed) and any(
            one.there and one.experiment == name for one in self.engine.agents()
        ):
            stop = order.places.command("stop", name)
            raise UserError(
                f"--retry-failed: agents run {name} now; type this again when it has ended, or"
                f" after `{stop}`"
            )
        if history.sessions:
            request_retry(store, history.sessions)

    def done(self, submission: Submission) -> None:
        """Delete what would cost something after the experiment's end."""
        with Folder(self.cluster.name).locked(self.say):
            self.engine.done(submission, self.say)

    def down(self) -> None:
        """Tell all agents to leave, and check that nothing is left. Raises as AgentEngine.end."""
        with Folder(self.cluster.name).locked(self.say):
            self.engine.end(self.say)


def _is_over(end: Closed | None) -> TypeGuard[Closed]:
    """Return whether the experiment has ended. A leader that leaves closes the log, too, and the
    next one continues.
    """
    return end is not None and end.status != "interrupted"


def in_words(agents: Sequence[Agent]) -> str:
    """Return the states of agents: 3 running, 5 pending (Resources)."""
    running = Counter(one.state for one in agents if one.node)
    waiting = Counter((one.state, one.reason) for one in agents if not one.node)
    parts = [f"{count} {state.lower()}" for state, count in running.items()]
    for (state, reason), count in waiting.items():
        parts.append(f"{count} {state.lower()}" + (f" ({reason})" if reason else ""))
    return ", ".join(parts)


@dataclass(slots=True)
class RunnerWatch:
    """Who runs an experiment, for its live view. `submission`: None: nobody, as it is over.

    The engine is asked in another thread, since a machine that is off takes seconds to not answer,
    and less often while the log grows.
    """

    run: AgentRun
    submission: Submission | None
    _due: float = 0.0
    _latest: float = 0.0
    """When it is asked at the latest, although the log grows."""
    _asking: threading.Thread | None = None
    _missing: bool = False
    _status: str = ""
    _failed: str = ""
    _gone: AgentsGone | None = field(default=None, init=False)

    def log_grew(self) -> None:
        """Take note that the log has grown."""
        self._missing, self._status = False, ""
        self._due = min(time.monotonic() + LOOK_SECONDS, self._latest)

    def banner(self, history: History | None = None) -> str:
        """Return a message while no agent runs, or some could not take part; else "". Raises
        AgentsGone.
        """
        if self.submission is None:
            return ""
        if self._gone is not None:
            raise self._gone
        under_way = self._asking is not None and self._asking.is_alive()
        if not under_way and time.monotonic() >= self._due:
            self._due = time.monotonic() + LOOK_SECONDS
            self._latest = time.monotonic() + MOST_SECONDS
            self._asking = background.start(self._ask, self.submission, name="agents")
        return self._failed or self._status

    def _ask(self, submission: Submission) -> None:
        place = self.run.engine.place
        try:
            found = self.run.engine.agents(submission)
            failed = [one for one in found if one.failed]
            agents = [one for one in found if not one.failed]
            if any(one.there for one in agents):
                self._missing = False
            elif self._missing:
                self._gone = AgentsGone(self._final_output(submission))
            else:
                # The log may tell the end a moment later than the engine.
                self._missing = True
            waits = agents and not any(one.node for one in agents)
            self._status = f"waiting for {place}: {in_words(agents)}" if waits else ""
            if failed:
                such = f"{failed[-1].name}: {failed[-1].reason or 'it printed nothing'}"
                self._failed = f"{len(failed)} could not take part, such as {such}"
        except RegrowError as error:
            self._status = f"{place} does not answer: {error}"

    def _final_output(self, submission: Submission) -> str:
        """Return what is known of agents that have ended."""
        outputs = self.run.engine.outputs(submission)
        summary = (
            f"the agents of {submission.experiment} on {self.run.engine.place} ended before it"
        )
        if not outputs:
            return f"{summary}, without output; {self.run.engine.no_output}"
        latest = max(outputs, key=lambda one: one.t)
        return "\n".join([f"{summary}; {latest.title} ends with:", *latest.lines[-_SHOWN:]])
