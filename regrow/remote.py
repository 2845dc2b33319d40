"""An experiment on a cluster: what `regrow run --on` and `regrow cluster submit` do from this machine.

On the cluster it is the same `regrow run FILE`, as a Ray Job on the head; here it is only started and followed. Where the head
is lost, the cluster is brought up again and the same command goes on with the experiment from its log.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from regrow.engines import engine
from regrow.infra.clusters.description import Cluster
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.jobs import Away, Job, Jobs, about
from regrow.infra.clusters.kubernetes.engine import KubernetesEngine
from regrow.infra.clusters.node import DASHBOARD_PORT
from regrow.infra.clusters.provider import Offer, Provider
from regrow.infra.ray import scaling
from regrow.infra.state.places import AGAIN, Places
from regrow.search.durations import in_words
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError

PREFECT_PORT, MLFLOW_PORT = 4200, 5000
"""Where the pages of an experiment listen on the head's loopback, for `regrow cluster ui`."""
AWAY_SECONDS = 60.0
"""How long the head may be away before it counts as lost."""
_AGAIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An experiment that is to run on a cluster. `file`: its specification; the others: as options of `regrow run`."""

    spec: Spec
    file: Path
    places: Places
    name: str | None = None
    trials: int | None = None
    retry_failed: bool = False
    quiet: bool = False
    as_json: bool = False

    @property
    def project(self) -> Path:
        """The folder whose files the experiment needs: the one that holds both its code and its specification."""
        folders = (self.file.resolve().parent, Path(self.spec.working_dir or ".").resolve())
        return Path(os.path.commonpath(folders))

    @property
    def entrypoint(self) -> str:
        """The command on the head, which goes on with the experiment if it is there already."""
        words = ["regrow", "run", str(self.file.resolve().relative_to(self.project)), "--state", self.places.root]
        words += ["--name", self.name] if self.name else []
        words += ["--trials", str(self.trials)] if self.trials else []
        words += ["--retry-failed"] * self.retry_failed
        words += ["--quiet"] * self.quiet + ["--json"] * self.as_json
        return shlex.join([*words, "--prefect-port", str(PREFECT_PORT)])


def check_state(places: Places, cluster: Cluster, key: str) -> None:
    """Raises SpecError for a state root that the cluster's machines would not see."""
    if places.remote or any(Path(places.root).is_relative_to(folder) for folder in cluster.shared):
        return
    hint = "give --state s3://BUCKET/PREFIX, or name the folder that all machines share at `shared` in the cluster file"
    raise SpecError(key, places.root, "is on this machine, where the cluster does not see it", hint)


def offer(offers: list[Offer]) -> list[str]:
    """What may be started and what it costs, for people to say yes to."""
    lines = []
    for one in offers:
        what = f"up to {one.most} x {one.type}" if one.role == "workers" and one.most > 1 else one.type
        market = f", {one.market}" if one.market else ""
        price = f", {one.price * one.most:.2f} USD an hour" if one.price else ""
        lines.append(f"  {one.role + ':':9}{what}{market}{price}")
    if all(one.price == 0 for one in offers):
        return lines
    if unknown := [one.type for one in offers if one.price is None]:
        which = ", ".join(dict.fromkeys(unknown))
        return [*lines, f"  what {which} costs is not known; a file of prices, at `prices` in the cluster file, says it"]
    return [*lines, f"  at most {sum((one.price or 0) * one.most for one in offers):.2f} USD an hour"]


def growth(cluster: Cluster) -> dict[str, str]:
    """What the driver is told of a cluster that grows: at least one trial fits on each machine that it may have."""
    groups = cluster.groups()
    if not groups:
        return {}
    markets = dict.fromkeys(one.market for one in groups)
    found = {scaling.SLOTS: str(sum(one.most for one in groups)), scaling.MARKETS: ",".join(markets)}
    return found if (market := cluster.market()) is None else {**found, scaling.MARKET: json.dumps(market)}


@dataclass(slots=True, kw_only=True)
class ClusterRun:
    """Runs orders on one cluster. `say` is given lines of ours, `show` what an experiment prints there."""

    cluster: Cluster
    say: Callable[[str], None]
    show: Callable[[str], None]
    file: Path | None = None
    """That of the cluster, for what people are told to type."""
    provider: Provider = field(init=False)
    jobs: Jobs = field(init=False)
    _trouble: str = field(init=False, default="")
    """What was said last of why the cluster cannot be brought up again."""

    def __post_init__(self) -> None:
        self.provider = engine(self.cluster)
        self.jobs = Jobs(self.provider, Folder(self.cluster.name).token)

    def up(self, *, keep: bool) -> None:
        """Brings the cluster up, or what is missing of it. `keep`: nobody but `down` is to end it, though it ends when idle."""
        folder = Folder(self.cluster.name)
        with folder.alone(self.say):
            if folder.kept.exists() and not any(machine.role == "head" for machine in self.provider.status()):
                folder.kept.unlink()  # that cluster has ended by itself
            self.provider.up(self.say)
            if keep:
                folder.kept.touch()

    def down(self) -> None:
        """Ends the cluster; raises RegrowError if anything is left."""
        folder = Folder(self.cluster.name)
        with folder.alone(self.say):
            self.provider.down(self.say)
            folder.kept.unlink(missing_ok=True)

    def done(self, order: Order) -> None:
        """Ends the cluster after its experiment, unless it is to stay, or others run there."""
        if Folder(self.cluster.name).kept.exists():
            self.say(f"the cluster stays up, as `regrow cluster up` or --keep left it; {self.ending}")
        elif others := self.busy(order.spec.name):
            self.say(f"the cluster stays up, as {', '.join(others)} runs there; {self.ending}")
        else:
            self.down()

    def busy(self, without: str = "") -> list[str]:
        """The experiments that run on the cluster now, but for one; none where its head does not answer."""
        try:
            return list(dict.fromkeys(job.experiment for job in self.jobs.all() if not job.ended and job.experiment != without))
        except Away:
            return []

    @property
    def ending(self) -> str:
        """How it ends, for people."""
        idle = in_words(self.cluster.idle)
        return f"`regrow cluster down {self.file or 'FILE'}` ends it, or it ends by itself {idle} after its last experiment"

    def submit(self, order: Order) -> Job:
        """Starts the experiment there, unless it runs already; returns its job."""
        if (job := self.jobs.running(order.spec.name)) is not None:
            self.say(f"{order.spec.name} runs there already")
            return job
        state, room = order.places.root, {**growth(self.cluster), AGAIN: self._again(order)}
        started = self.jobs.submit(order.spec.name, order.entrypoint, order.project, room, state=state)
        return Job(id=started, experiment=order.spec.name, status="PENDING", state=order.places.root)

    def _again(self, order: Order) -> str:
        """What people type to go on with an experiment."""
        words = ["regrow", "cluster", "submit", str(self.file or "CLUSTER"), str(order.file)]
        words += ["--name", order.name] if order.name else []
        return shlex.join(words)

    def submit_apart(self, order: Order) -> None:
        """Starts the experiment as a RayJob, with a cluster of its own that another one replaces when its head is lost.

        Raises UserError for clusters that are not on Kubernetes.
        """
        if not isinstance(self.provider, KubernetesEngine):
            where = f"{self.cluster.name} is on {self.cluster.on}"
            raise UserError(f"--job: is for Kubernetes, and {where}; bring the cluster up, and leave --job out")
        tell = about(order.spec.name, order.places.root)
        words = shlex.split(order.entrypoint)
        room = {**growth(self.cluster), AGAIN: f"{self._again(order)} --job"}
        self.provider.start(words, order.project, self.say, environment=room, about=tell)

    def follow(self, order: Order, job: Job) -> int:
        """Shows what it prints until it has ended; returns its exit code. A head that is lost is brought up again."""
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
                    self.say("the connection to the cluster is lost, the experiment goes on there; trying again")
                elif time.monotonic() - away > AWAY_SECONDS and (found := self._found(order, job)) is not None:
                    shown = shown if found.id == job.id else 0
                    job, away = found, None
            time.sleep(_AGAIN_SECONDS)

    @contextmanager
    def pages(self) -> Iterator[dict[str, str]]:
        """Addresses here of the cluster's pages, by their names, as long as the block lasts.

        Prefect and MLflow as the experiment has them that was submitted last: on the head, which serves them meanwhile.
        """
        jobs = self.jobs.all()
        ports = {"Ray": DASHBOARD_PORT}
        with ExitStack() as stack:
            if jobs and jobs[-1].state:
                ports |= {"Prefect": PREFECT_PORT, "MLflow": MLFLOW_PORT}
                words = ["regrow", "ui", jobs[-1].experiment, "--state", jobs[-1].state, "--no-browser"]
                chosen = ["--prefect-port", str(PREFECT_PORT), "--mlflow-port", str(MLFLOW_PORT)]
                stack.enter_context(self.provider.hold([*words, *chosen]))
            tunnels = {name: stack.enter_context(self.provider.tunnel(port)) for name, port in ports.items()}
            yield {name: f"http://127.0.0.1:{port}" for name, port in tunnels.items()}

    def bring_home(self, order: Order, folder: Path) -> None:
        """Writes the report and the table of trials into `folder`, as far as they can be had."""
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
                self.say(f"{file} could not be had: {done.stderr.decode(errors='replace').strip()[-200:]}")
        if got:
            self.say(f"here: {', '.join(got)}")

    def _found(self, order: Order, job: Job) -> Job | None:
        """The job on a cluster that is up, or another one that goes on with its experiment; None if that did not work yet."""
        try:
            if not any(machine.role == "head" and machine.state == "running" for machine in self.provider.status()):
                self.say("the cluster's head is lost: it is brought up again, and the experiment goes on from its log")
                with Folder(self.cluster.name).alone(self.say):
                    self.provider.up(self.say)
            known = {one.id: one for one in self.jobs.all()}
            return known.get(job.id) or self.submit(order)
        except RegrowError as error:
            if (why := str(error).splitlines()[0]) != self._trouble:
                self.say(f"that did not work yet: {why}")
            self._trouble = why
            return None

