"""An experiment as an object: opened by name, refreshed while it runs, displayed in a notebook."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.figures import Figures
from regrow.infra.log.log import Cut, Log
from regrow.infra.log.reading import fold
from regrow.infra.log.rows import LogRows
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.records import BestResult, TrialResult, best_result, trial_result
from regrow.search.events import Row
from regrow.search.history import History
from regrow.search.history.orders import TrialOrder
from regrow.search.numbers import readable
from regrow.search.spec import Spec
from regrow.show.views import summaries
from regrow.tasks.checkpoint.saving import restore_one
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store

if TYPE_CHECKING:
    from optuna import Study
    from pandas import DataFrame

COLUMNS = (*summaries.POINT, "time")
"""Columns of `history` that are not metrics."""
_SHOWN = 10
"""Maximum number of trials in the table of a notebook."""


def open(name: str, state: str | Path | None = None) -> Result:  # noqa: A001 - it is called rg.open; no file is opened in this module
    """Open an experiment by name for reading: running (here or elsewhere), interrupted, or
    finished.

    `state` is the state root, a folder or s3://BUCKET/PREFIX; None: $REGROW_STATE, else ./.regrow.
    Raises UserError, naming the existing experiments, if it does not exist.
    """
    return Result(Places.at(None if state is None else str(state)), name)


class Result:
    """An experiment as its log was at the last `refresh`; made by `open` and `Experiment.run`."""

    def __init__(self, places: Places, name: str) -> None:
        self.name = name
        self._places = places
        self._store: Store = places.known(name)
        self._history = History(name)
        self._rows = LogRows.logged(self._history, self._store)
        self._segment = 0
        """Number of the last segment of the log that was read completely."""
        self._lines = 0
        """Number of lines that were read of the segment after it, which is torn."""
        self._alive = False
        self._trials: list[TrialResult] | None = None
        self.refresh()

    def refresh(self) -> Result:
        """Read the log's new part and return self. Raises CorruptLog if the log is damaged."""
        cut: list[Cut] = []
        # First: an experiment that ends meanwhile counts as ended, not as interrupted.
        self._alive = runs(self._places, self.name)
        for segment in Log.read(self._store, after=self._segment, on_cut=cut.append):
            fold(self._store, self._history.apply, [segment], first=self._lines)
            self._segment, self._lines = segment[0], 0
        if cut:  # its writer died; the session that resumes records how many lines count
            self._lines = cut[0].kept
            self._segment -= 1
        self._rows.recall()
        self._trials = None
        return self

    @property
    def state(self) -> str:
        """The state root that contains it: a folder, or an S3 URL."""
        return self._places.root

    @property
    def spec(self) -> Spec:
        """The specification."""
        return self._history.spec

    @property
    def status(self) -> str:
        """running, finished, stopped, interrupted or failed."""
        return summaries.status(self._history, alive=self._alive)

    @property
    def stopped_by(self) -> str:
        """What ended it early: "planner" for a stop condition, "user", or empty for neither."""
        return self._history.closing.by if self._history.closing is not None else ""

    @property
    def notes(self) -> list[str]:
        """Its notes (`regrow note`), oldest first; read from the store on each access."""
        return [note.text for note in notes.read(self._store).texts]

    @property
    def tags(self) -> list[str]:
        """Its tags; read from the store on each access."""
        return list(notes.read(self._store).tags)

    @property
    def best(self) -> BestResult | None:
        """The best trial: trial, value, step, config, checkpoint. None before a report that meets
        the constraints.
        """
        return best_result(self._history, self._places, self.load_checkpoint)

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, by number."""
        if self._trials is None:
            self._trials = [
                trial_result(self._history, trial, self._places, self._order)
                for trial in self._history.trials
            ]
        return list(self._trials)

    def trial(self, number: int) -> TrialResult:
        """Return one trial. Raises UserError if there is none of this number."""
        return self.trials[summaries.trial(self._history, number).number]

    @property
    def figures(self) -> Figures:
        """Plotly figures: `figures.learning_curves()` and others."""
        return Figures(self._rows)

    def dataframe(self) -> DataFrame:
        """Return a frame with one row per trial, by number.

        `value` is the best of the objective, at `step` (missing if no step met the constraints);
        `steps` is how many it did; `seconds` is the time on nodes, over all attempts that ended;
        `started` and `ended` are in UTC. `config.*`: its current configuration, each parameter with
        its type, missing where its condition does not hold. `metrics.*`: those at `step`; of the
        last step if several metrics are optimized.
        """
        from regrow.show.exports import frames

        return frames.frame(frames.trials(self._rows, self._places))

    def history(self, trial: int | None = None) -> DataFrame:
        """Return a frame with one row per step of a trial, indexed by step (from 1); with `trial`
        None, of all trials, indexed by trial and step.

        Each step appears once: `attempt` reported it, at `time` (UTC, by its node's clock). The
        other columns are the metrics, NaN where one was not reported or not finite; a metric named
        like one of our columns has the prefix `metrics.`. Raises UserError if the trial does not
        exist.
        """
        from regrow.show.exports import frames

        if trial is not None:
            summaries.trial(self._history, trial)
        with self._rows.sorted(trial) as found:
            frame = frames.joined(frames.steps(found))
        bare = {name: name.removeprefix("metrics.") for name in frame}
        frame = frame.rename(columns={n: to for n, to in bare.items() if to not in COLUMNS})
        if trial is None:
            return frame.set_index(["trial", "step"])
        return frame.drop(columns="trial").set_index("step")

    def points(self) -> list[dict[str, Any]]:
        """Return every (trial, step) once, with its attempt and metrics; names as in `history`."""
        with self._rows.sorted() as found:
            return list(summaries.points(found))

    def reports(self) -> Iterator[tuple[int, int, Row, dict[str, Any]]]:
        """Yield (trial, attempt, row, all that was reported) of each step that counts, as logged:
        numbers of Ray Tune's scripts with their types, and what is no number.
        """
        for trial, event, rows in self._rows.events():
            for row in rows:
                yield trial.number, event.attempt, row, event.reported(row)

    def load_checkpoint(
        self, trial: int | None = None, step: int | None = None, folder: str | Path | None = None
    ) -> Path:
        """Restore a retained checkpoint, verify every byte, and return the folder.

        Args:
            trial: trial number; None: the best trial.
            step: step of the checkpoint; None: that of the trial's best value if it is retained,
                else the newest.
            folder: must not exist; None: a new temporary one, which the caller deletes.

        Raises UserError if there is no such checkpoint, or if it cannot be restored.

        """
        if trial is None:
            if self._history.best is None:
                hint = "name one: load_checkpoint(trial=...)"
                raise UserError(f"no trial of {self.name!r} has a best value yet; {hint}")
            trial = self._history.best
        found = summaries.trial(self._history, trial)
        shown_step = summaries.representative_step(self._history, found)
        saved = found.checkpoint_at(shown_step) if step is None else found.checkpoints.get(step)
        if saved is None:
            kept = ", ".join(map(str, found.checkpoints)) or "none"
            wanted = "a checkpoint" if step is None else f"the checkpoint of step {step}"
            raise UserError(f"trial {trial} of {self.name!r} does not have {wanted} (kept: {kept})")
        if folder is not None:
            if Path(folder).exists():
                raise UserError(f"{folder} exists already; name a folder that is to be made")
            return restore_one(self._store, saved.manifest, Path(folder))
        made = Path(tempfile.mkdtemp(prefix=f"regrow-{self.name}-{trial}-{saved.step}-"))
        try:
            return restore_one(self._store, saved.manifest, made)
        except BaseException:
            made.rmdir()  # still empty: restoring fills it completely or not at all
            raise

    def report(self, path: str | Path) -> Path:
        """Write the report, one HTML file, and return its path. Raises UserError if it cannot."""
        from regrow.show.report.report import html

        page = html(self._rows, self._places, **self._now())
        try:
            Path(path).write_text(page, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from None
        return Path(path)

    def share(self, where: str | Path, *, checkpoint: bool = False) -> str:
        """Write the report, the best configuration, the specification and the table of trials into
        a folder or below s3://BUCKET/PREFIX, and return the address at which a browser opens it.

        `checkpoint`: also write the files of the best trial's checkpoint. An earlier share of this
        experiment is updated. Raises UserError for a folder that holds anything else.
        """
        from regrow.show.report.share import share

        rows, places, to = self._rows, self._places, str(where)
        return share(rows, self._store, places, to, checkpoint=checkpoint, **self._now()).link

    def to_optuna(self, storage: str | None = None, study_name: str | None = None) -> Study:
        """Export the experiment as an Optuna study called `study_name` (None: the experiment's
        name).

        `storage` is the SQLAlchemy URL of a database, such as sqlite:///x.db; None: in memory.
        Raises UserError if the database cannot be used, or already has a study of that name.
        """
        from regrow.show.exports.optuna_study import study

        return study(self._history, storage=storage, name=study_name, places=self._places)

    def to_tensorboard(self, folder: str | Path) -> Path:
        """Write TensorBoard event files, one run per trial, and return the folder, which must be
        new or contain an earlier export.

        Raises UserError for any other folder, and if tensorboardX is not installed.
        """
        from regrow.show.exports.tensorboard import write

        write(self._rows, folder)
        return Path(folder)

    def _now(self) -> dict[str, Any]:
        return {"alive": self._alive, "now": time.time(), "notes": notes.read(self._store)}

    def _order(self, number: int, what: TrialOrder) -> None:
        from regrow.flows.housekeeping.trial_orders import order

        order(self._places, self.name, [number], what)
        self.refresh()

    def _counts_text(self) -> str:
        counts = ", ".join(f"{n} {state.value}" for state, n in self._history.counts.items() if n)
        whole = f"{self._history.of_total(len(self._history.trials))} trials"
        return f"{whole} ({counts})" if counts else whole

    def __repr__(self) -> str:
        best = self.best
        reached = ""
        if best is not None:
            where = f"(trial {best.trial}, step {best.step})"
            reached = f"; best {self.spec.objective.name} {readable(best.value)} {where}"
        return f"<Result {self.name!r}: {self.status}, {self._counts_text()}{reached}>"

    def _repr_html_(self) -> str:
        from regrow.notebook import table

        shown = [t for t in summaries.ranked(self._history) if t.best is not None][:_SHOWN]
        title = (
            f"<b>{escape(self.name)}</b> is {escape(self.status)}: {escape(self._counts_text())}"
        )
        cut = len(self._history.trials) > len(shown) > 0
        more = f", the best {len(shown)} below" if cut else ""
        return f"<div>{title}{more}</div>{table(self._history, shown)}"
