"""Experiments on a cluster: what `regrow run --on` and `regrow cluster submit` do on this machine.

On the cluster the same `regrow run FILE` runs as a Ray Job on the head; here it is only started and
followed. If the head is lost, the cluster is started again and the same command continues the
experiment from its log.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from regrow.infra.clusters import description
from regrow.infra.clusters.clouds.engine import AwsEngine, RayEngine
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.jobs import Away, Job, Jobs, about
from regrow.infra.clusters.kubernetes.engine import KubernetesEngine
from regrow.infra.clusters.provider import DASHBOARD_PORT, Provider
from regrow.infra.ray import scaling
from regrow.infra.state.places import AGAIN, Places
from regrow.search.durations import in_words
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError

PREFECT_PORT, MLFLOW_PORT = 4200, 5000
"""Ports of an experiment's pages on the head's loopback, for `regrow cluster ui`."""
AWAY_SECONDS = 60.0
"""Seconds without an answer after which the head counts as lost."""
_AGAIN_SECONDS = 3.0
_PAGES = ("Prefect", "MLflow")
_PAGE = re.compile(rf"({'|'.join(_PAGES)}): +\w+://[^/\s]+(\S*)")


def engine(cluster: description.Cluster) -> Provider:
    """Return the engine of a cluster. Raises UserError for a kind that has none."""
    match cluster:
        case description.Aws():
            return AwsEngine(cluster)
        case description.Gcp() | description.Azure():
            return RayEngine(cluster)
        case description.Kubernetes():
            return KubernetesEngine(cluster)
        case description.Slurm() | description.Ssh():
            raise UserError(
                f"on: {cluster.on}: agents have no head, and nothing is brought up before an"
                " experiment; `regrow run EXPERIMENT --on FILE` starts them"
            )
    raise UserError(f"on: {cluster.on}: clusters there cannot be brought up yet")


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

    @property
    def entrypoint(self) -> str:
        file = str(self.file.resolve().relative_to(self.project))
        words = ["regrow", "run", file, "--state", self.places.root]
        words += ["--name", self.name] if self.name else []
        words += ["--trials", str(self.trials)] if self.trials else []
        words += [word for change in self.changes for word in ("--set", change)]
        words += ["--retry-failed"] * self.retry_failed
        words += ["--quiet"] * self.quiet + ["--json"] * self.as_json
        return shlex.join([*words, "--prefect-port", str(PREFECT_PORT)])


def joining(order: RunRequest, file: str) -> list[str]:
    """Return the arguments of `regrow` with which an agent joins the experiment of `file`. Raises
    UserError for what an agent that comes back would do again.
    """
    if order.retry_failed:
        again = order.places.command("join", order.spec.name, "--retry-failed")
        raise UserError(
            "--retry-failed: each agent that comes back would try failed trials again; type"
            f" `{again}` on one machine"
        )
    words = ["join", file, "--state", order.places.root, "--name", order.spec.name]
    words += ["--trials", str(order.trials)] if order.trials else []
    words += [word for change in order.changes for word in ("--set", change)]
    return words


def check_state(places: Places, cluster: description.Cluster, key: str) -> None:
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


def growth(cluster: description.Cluster) -> dict[str, str]:
    """Return variables that describe a growing cluster: at least a trial for each machine."""
    groups = cluster.groups()
    if not groups:
        return {}
    markets = dict.fromkeys(one.market for one in groups)
    found = {scaling.SLOTS: str(sum(g.most for g in groups)), scaling.MARKETS: ",".join(markets)}
    market = cluster.market()
    return found if market is None else {**found, scaling.MARKET: json.dumps(market)}


@dataclass(slots=True, kw_only=True)
class ClusterRun:
    """Runs orders on one cluster. `say` gets regrow's own lines, `show` the experiment's."""

    cluster: description.WithHead
    say: Callable[[str], None]
    show: Callable[[str], None]
    file: Path | None = None
    """Path of the cluster file, for commands suggested to people."""
    provider: Provider = field(init=False)
    jobs: Jobs = field(init=False)
    _trouble: str = field(init=False, default="")
    """Last message on why the cluster could not be started again."""

    def __post_init__(self) -> None:
        self.provider = engine(self.cluster)
        self.jobs = Jobs(self.provider, Folder(self.cluster.name).token)

    def up(self, *, keep: bool) -> None:
        """Start what is missing of the cluster. `keep`: it ends by `down`, or when it is idle."""
        folder = Folder(self.cluster.name)
        with folder.alone(self.say):
            if folder.kept.exists() and not any(
                machine.role == "head" for machine in self.provider.status()
            ):
                folder.kept.unlink()  # the kept cluster has ended because it was idle
            self.provider.up(self.say)
            if keep:
                folder.kept.touch()

    def down(self) -> None:
        folder = Folder(self.cluster.name)
        with folder.alone(self.say):
            self.provider.down(self.say)
            folder.kept.unlink(missing_ok=True)

    def done(self, order: RunRequest) -> None:
        """End the cluster after its experiment, unless it is kept or runs others."""
        if Folder(self.cluster.name).kept.exists():
            self.say(
                f"the cluster stays up, as `regrow cluster up` or --keep left it; {self.ending}"
            )
        elif others := self.busy(order.spec.name):
            self.say(f"the cluster stays up, as {', '.join(others)} runs there; {self.ending}")
        else:
            self.down()

    def busy(self, without: str = "") -> list[str]:
        """Return what runs on the cluster, except `without`; none if its head is silent."""
        try:
            running = dict.fromkeys(job.experiment for job in self.jobs.all() if not job.ended)
        except Away:
            return []
        return [name for name in running if name != without]

    @property
    def ending(self) -> str:
        idle = in_words(self.cluster.idle)
        return (
            f"`regrow cluster down {self.file or 'FILE'}` ends it, or it ends by itself {idle}"
            " after its last experiment"
        )

    def submit(self, order: RunRequest) -> Job:
        """Start the experiment on the cluster, unless it runs already; return its job."""
        if (job := self.jobs.running(order.spec.name)) is not None:
            self.say(f"{order.spec.name} runs there already")
            return job
        state, room = order.places.root, {**growth(self.cluster), AGAIN: self._again(order)}
        started = self.jobs.submit(
            order.spec.name, order.entrypoint, order.project, room, state=state, say=self.say
        )
        return Job(
            id=started, experiment=order.spec.name, status="PENDING", state=order.places.root
        )

    def _again(self, order: RunRequest) -> str:
        words = ["regrow", "cluster", "submit", str(self.file or "CLUSTER"), str(order.file)]
        words += ["--name", order.name] if order.name else []
        return shlex.join(words)

    def submit_apart(self, order: RunRequest) -> None:
        """Start the experiment as a RayJob, with a separate cluster that is replaced when its head
        is lost.

        Raises UserError for clusters that are not on Kubernetes.
        """
        if not isinstance(self.provider, KubernetesEngine):
            where = f"{self.cluster.name} is on {self.cluster.on}"
            raise UserError(
                f"--job: is for Kubernetes, and {where}; bring the cluster up, and leave --job out"
            )
        tell = about(order.spec.name, order.places.root)
        words = shlex.split(order.entrypoint)
        room = {**growth(self.cluster), AGAIN: f"{self._again(order)} --job"}
        self.provider.start(words, order.project, self.say, environment=room, about=tell)

    def follow(self, order: RunRequest, job: Job) -> int:
        """Show its output until it has ended, and restart a lost head; return its exit code."""
        shown, away = 0, None
        while True:
            try:
                job, shown = self.jobs.follow(job.id, self.show, shown)
                if job.ended:
                    return job.exit_code if job.exit_code is not None else 1
                away = None
            except Away as lost:
                shown = lost.args[1] if len(lost.args) > 1 else shown
                if away is None:
                    away = time.monotonic()
                    self.say(
                        "the connection to the cluster is lost, the experiment continues there;"
                        " trying again"
                    )
                elif (
                    time.monotonic() - away > AWAY_SECONDS
                    and (found := self._found(order, job)) is not None
                ):
                    shown = shown if found.id == job.id else 0
                    job, away = found, None
            time.sleep(_AGAIN_SECONDS)

    @contextmanager
    def pages(self) -> Iterator[dict[str, str]]:
        """Yield local addresses of the cluster's pages, by name, valid within the block.

        Prefect and MLflow are those of the experiment submitted last: the head serves them
        meanwhile, and prints the links that log a browser in.
        """
        jobs = self.jobs.all()
        ports, links = {"Ray": DASHBOARD_PORT}, {}
        with ExitStack() as stack:
            if jobs and jobs[-1].state:
                ports |= {"Prefect": PREFECT_PORT, "MLflow": MLFLOW_PORT}
                words = ["regrow", "ui", jobs[-1].experiment, "--state", jobs[-1].state]
                words += ["--no-browser", "--prefect-port", str(PREFECT_PORT)]
                words += ["--mlflow-port", str(MLFLOW_PORT)]
                links = _links(stack.enter_context(self.provider.hold(words)))
            tunnels = {
                name: stack.enter_context(self.provider.tunnel(port))
                for name, port in ports.items()
            }
            yield {
                name: f"http://127.0.0.1:{port}{links.get(name, '')}"
                for name, port in tunnels.items()
            }

    def bring_home(self, order: RunRequest, folder: Path) -> None:
        """Write the report and the table of trials into `folder`, as far as they are available."""
        name, state = order.spec.name, order.places.root
        parts = {"report.html": ["report", name, "-o"], "trials.csv": ["trials", name, "--csv"]}
        got = []
        for file, words in parts.items():
            done = self.provider.command(["regrow", *words, "/dev/stdout", "--state", state])
            if done.returncode == 0:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / file).write_bytes(done.stdout)
                got.append(str(folder / file))
            else:
                self.say(
                    f"{file} could not be had:"
                    f" {done.stderr.decode(errors='replace').strip()[-200:]}"
                )
        if got:
            self.say(f"here: {', '.join(got)}")

    def _found(self, order: RunRequest, job: Job) -> Job | None:
        """Return the job, or a new one that continues its experiment; None: not possible yet."""
        try:
            if not any(
                machine.role == "head" and machine.state == "running"
                for machine in self.provider.status()
            ):
                self.say(
                    "the cluster's head is lost: it is started again, and the experiment"
                    " continues from its log"
                )
                with Folder(self.cluster.name).alone(self.say):
                    self.provider.up(self.say)
            known = {one.id: one for one in self.jobs.all()}
            return known.get(job.id) or self.submit(order)
        except RegrowError as error:
            if (why := str(error).splitlines()[0]) != self._trouble:
                self.say(f"that did not work yet: {why}")
            self._trouble = why
            return None


def _links(said: IO[bytes]) -> dict[str, str]:
    """Return what follows the port in the addresses that `regrow ui` prints, by name; empty if it
    ends before it prints them.
    """
    found: dict[str, str] = {}
    for line in iter(said.readline, b""):
        if match := _PAGE.match(line.decode(errors="replace")):
            found[match[1]] = match[2]
        if len(found) == len(_PAGES):
            break
    return found
