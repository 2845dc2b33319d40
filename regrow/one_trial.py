"""One trial in this process, without Prefect, MLflow or a state root: what `regrow try` runs. Nothing is printed here.

There is no Ray either, unless the trial is RLlib's, which starts its processes there.

It is the same attempt as an experiment's. Its coordinator always says "go on", its store is a folder that goes away with it, and
what it prints is not captured, so that a debugger has the terminal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from regrow.infra.mlflow.in_trial import nowhere
from regrow.infra.ray.joining import environment, join
from regrow.infra.rllib.trials import RLlibTrials
from regrow.infra.stores.local import LocalStore
from regrow.search.errors import SpecError
from regrow.search.events import Ended, Place, Row, Saved
from regrow.search.planning.planner import seed_for
from regrow.search.samplers.random_search import drawn
from regrow.search.space.domains import Json
from regrow.search.spec import Spec
from regrow.tasks import own_code
from regrow.tasks.attempt import run_attempt
from regrow.tasks.checkpoints import restore
from regrow.tasks.group.world import alone
from regrow.tasks.messages import Assignment, Job, Progress, Reply
from regrow.tasks.variables import within


def configuration(spec: Spec, number: int, given: dict[str, Json]) -> dict[str, Json]:
    """The flat configuration to try: one of `points`, else a random draw by the specification's seed, with `given` in it.

    With `search: random` and nothing given it is that of the experiment's trial `number`. Raises SpecError for what is
    given and has no place.
    """
    points = [point for point in spec.points if point.metrics is None]
    if number < len(points):
        config = spec.space.point(points[number].config, f"points.{number}") | given
    else:
        config = drawn(spec.space, number, seed_for(spec.seed, number), given) | given
    try:
        return spec.space.point(config, "--set")
    except SpecError as wrong:
        raise SpecError(wrong.key.replace("--set.", "--set ", 1), wrong.value, wrong.problem, wrong.hint) from None


@dataclass(kw_only=True)
class OneTrial:
    """A trial of `config` (flat) that can be run, and gone on with from its checkpoints. `told` hears of each step at once."""

    spec: Spec
    config: Mapping[str, Json]
    number: int
    store: LocalStore
    told: Callable[[Row], None]
    rows: list[Row] = field(default_factory=list)
    """Of the last run."""
    saved: list[Saved] = field(default_factory=list)
    """Checkpoints of all runs."""
    _attempts: int = 0
    _after: int = 0
    """The step that the run went on from."""

    def run(self, max_steps: int | None, *, after: Saved | None = None) -> Ended:
        """Runs it up to `max_steps` (None: until it ends by itself), from a checkpoint or from the beginning."""
        spec, self.rows = self.spec, []
        self._attempts += 1
        # Without the limits of time: a debugger waits for people.
        job = structs.replace(Job.of(spec, folder=spec.working_dir), max_steps=max_steps, stall=None, trial_seconds=None)
        job = job if after is None else structs.replace(job, ending=None)
        self._after = begins = 0 if after is None else after.step
        assignment = Assignment(
            trial=self.number, attempt=self._attempts, config=spec.space.nest(self.config), until=begins + 1,
            seed=seed_for(spec.seed, self.number, "trial"), checkpoints=() if after is None else (after.manifest,), step=begins,
        )
        group = alone() if spec.resources.ranked else {}  # a training that is one of many is one of one here
        with within(environment(spec) | group), nowhere():
            return run_attempt(
                job, assignment, self, self.store, host=Here(), task_run="", carry_on=lambda: False,
                frameworks=RLlibTrials(),
            ).ended

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient: go on, and ask again at the next step, so that each is heard of when it is made."""
        for row in progress.rows:
            self.rows.append(row)
            self.told(row)
        self.saved += progress.saved
        return Reply(until=(self.rows[-1].step if self.rows else self._after) + 1)

    def files(self, saved: Saved, folder: Path) -> list[tuple[str, int]]:
        """Restores a checkpoint as `folder`; its files and their sizes in bytes."""
        restore(self.store, [saved.manifest], folder)
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in found]


class Here:
    """The Host of a trial in this process: nothing announces its end, and Ctrl-C is Python's own."""

    def place(self) -> Place:
        """See Host."""
        return Place("here")

    def end_children(self) -> None:
        """See Host: they end with this process, which is the user's; a debugger may be one of them."""

    @contextmanager
    def listen(self, tell: Any) -> Iterator[None]:
        """See Host."""
        yield


@contextmanager
def cluster_for(spec: Spec | None) -> Iterator[None]:
    """A Ray cluster within the block for a trial that needs one; None for one that does not."""
    if spec is None:
        yield
        return
    with within({own_code.TRIAL: "1"}), join(spec, print):  # its processes are the trial's
        yield


@contextmanager
def temporary_store() -> Iterator[LocalStore]:
    """A store that goes away."""
    with tempfile.TemporaryDirectory(prefix="regrow-try-", ignore_cleanup_errors=True) as folder:
        yield LocalStore(Path(folder))
