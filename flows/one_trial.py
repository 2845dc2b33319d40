"""One trial in this process, without Prefect, MLflow or a state root: what `regrow try` runs.
Nothing is printed here.

Ray is used only if the trial is RLlib's, which starts its processes there.

The attempt runs the same code as an experiment's. Its coordinator always continues, its store is a
temporary folder, and its output is not captured, so that a debugger has the terminal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from regrow.flows.local_host import LocalHost
from regrow.infra.mlflow.in_trial import discard_mlflow_calls
from regrow.infra.ray.joining import environment, join
from regrow.infra.stores.local import LocalStore
from regrow.search.errors import SpecError
from regrow.search.events import Ended, Row, Saved
from regrow.search.planning.planner import seed_for
from regrow.search.samplers.random_search import drawn
from regrow.search.space.domains import Json
from regrow.search.spec import Spec
from regrow.tasks.attempt.attempt import run_attempt
from regrow.tasks.checkpoint.saving import restore_one
from regrow.tasks.group.world import alone
from regrow.tasks.ports.messages import Assignment, Job, Progress, Reply, Shared
from regrow.tasks.process import own_code, temporary
from regrow.tasks.process.variables import within


def configuration(spec: Spec, number: int, given: dict[str, Json]) -> dict[str, Json]:
    """Return the flat configuration to try: one of `points`, else a random draw by the
    specification's seed, with `given` in it.

    With `search: random` and nothing given, it is that of the experiment's trial `number`. Raises
    SpecError for given values that are not in the space.
    """
    points = [point for point in spec.points if point.metrics is None]
    if number < len(points):
        config = spec.space.point(points[number].config, f"points.{number}") | given
    else:
        config = drawn(spec.space, number, seed_for(spec.seed, number), given) | given
    try:
        return spec.space.point(config, "--set")
    except SpecError as wrong:
        raise SpecError(
            wrong.key.replace("--set.", "--set ", 1), wrong.value, wrong.problem, wrong.hint
        ) from None


@dataclass(kw_only=True)
class OneTrial:
    """A trial of `config` (flat) that can be run, and continued from its checkpoints. `show` is
    called with each step immediately.
    """

    spec: Spec
    config: Mapping[str, Json]
    number: int
    store: LocalStore
    show: Callable[[Row], None]
    rows: list[Row] = field(default_factory=list)
    """Reports of the last run."""
    saved: list[Saved] = field(default_factory=list)
    """Checkpoints of all runs."""
    _attempts: int = 0
    _after: int = 0
    """Step from which the last run continued."""

    def run(self, max_steps: int | None, *, after: Saved | None = None) -> Ended:
        """Run up to `max_steps` (None: to its end), from a checkpoint or the beginning."""
        spec, self.rows = self.spec, []
        self._attempts += 1
        # Without time limits: a debugger waits for people.
        off = ("hours",) if after is None else ("hours", "target", "plateau")
        trial = spec.stop.trial.model_copy(update=dict.fromkeys(off))
        stop = spec.stop.model_copy(update={"trial": trial})
        ours = spec.model_copy(update={"max_steps": max_steps, "stall": None, "stop": stop})
        job = Job.of(ours, folder=spec.working_dir)
        self._after = begins = 0 if after is None else after.step
        assignment = Assignment(
            trial=self.number,
            attempt=self._attempts,
            config=spec.space.nest(self.config),
            until=begins + 1,
            seed=seed_for(spec.seed, self.number, "trial"),
            checkpoints=() if after is None else (after.manifest,),
            step=begins,
        )
        # distributed training runs as a group of one here
        group = alone() if spec.resources.ranked else {}
        with within(environment(spec) | group), discard_mlflow_calls():
            shared = Shared(job=job, coordinator=self, store=self.store, host=LocalHost("here"))
            return run_attempt(shared, assignment, task_run="", carry_on=lambda: False).ended

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient. Continues for one step, so that each is reported at once."""
        for row in progress.rows:
            self.rows.append(row)
            self.show(row)
        self.saved += progress.saved
        return Reply(until=(self.rows[-1].step if self.rows else self._after) + 1)

    def files(self, saved: Saved, folder: Path) -> list[tuple[str, int]]:
        """Restore a checkpoint as `folder`; return its files and their sizes in bytes. Raises
        UserError if the folder cannot be written.
        """
        restore_one(self.store, saved.manifest, folder)
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in found]


@contextmanager
def cluster_for(spec: Spec | None) -> Iterator[None]:
    """Within the block, run a Ray cluster for a trial that needs one; None: it does not."""
    if spec is None:
        yield
        return
    with within({own_code.TRIAL: "1"}), join(spec, print):  # its processes are the trial's
        yield


@contextmanager
def temporary_store() -> Iterator[LocalStore]:
    """Yield a store that is deleted after the block."""
    place = temporary.process_temp_dir()
    with tempfile.TemporaryDirectory(prefix="try-", dir=place, ignore_cleanup_errors=True) as one:
        yield LocalStore(Path(one))
