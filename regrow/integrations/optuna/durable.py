"""An Optuna study as an experiment: filled from the log; `optimize` runs a session."""

from __future__ import annotations

import copy
import os
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.logging import get_logger
from optuna.trial import FrozenTrial, TrialState

from regrow.infra.log.follower import Follower
from regrow.infra.log.reading import fold
from regrow.infra.log.subscription import available
from regrow.infra.machine import capacity
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import Places
from regrow.integrations.optuna import records
from regrow.integrations.optuna.asking import ASKED, ENDED_STATES, Asking
from regrow.integrations.optuna.following import Follow
from regrow.integrations.optuna.mirror import Mirror, directions_of, enqueued
from regrow.integrations.optuna.objective import Objective
from regrow.integrations.optuna.objects import NotStorable, described, form, value_of
from regrow.integrations.optuna.own_sampler import OwnSampler
from regrow.integrations.optuna.private import TheirStudy, validated
from regrow.integrations.optuna.running import STEP, VALUE, Trial, logged
from regrow.integrations.optuna.scheduling import (
    MOST,
    keeps_schedule,
    schedule,
    stored_schedule,
)
from regrow.integrations.optuna.searching import Search, search
from regrow.integrations.optuna.storing import Storage
from regrow.integrations.optuna.trials import Trials
from regrow.search.events import AnyEvent, Hold
from regrow.search.history import History
from regrow.search.history.records import STUDY_STOPPED
from regrow.search.planning.suggesting import FIXED, waiting
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError
from regrow.tasks.trial.trial import Trial as OurTrial

Callback = Callable[[optuna.Study, FrozenTrial], None]
ENDLESS = 1_000_000
"""Total number of trials of a study that is optimized without `n_trials`."""


def metrics(count: int) -> list[str]:
    """Return the names of a study's values, as in `trials_dataframe`."""
    return [VALUE] if count == 1 else [f"values_{place}" for place in range(count)]


class Study(TheirStudy):
    """See `optuna.study.Study`. Its trials are read from the log; Optuna's tools can view it."""

    def __init__(
        self,
        name: str,
        places: Places,
        mirror: Mirror,
        sampler: optuna.samplers.BaseSampler | None,
        pruner: optuna.pruners.BasePruner | None,
        *,
        stored: Spec | None = None,
        storage: Storage | None = None,
    ) -> None:
        """Open the study. `stored`: the specification of an existing one, which has the sampler and
        the pruner where None is given. `storage`: where its trials are copied to; None: nowhere.
        """
        super().__init__(name, mirror, sampler, pruner)
        self._storage_of_optuna = storage
        self._places, self._mirror = places, mirror
        self.store = places.store(name)
        self._search, self._schedule = search(self.sampler, name), schedule(self.pruner)
        if stored is not None and sampler is None:
            self._search = Search(form=stored.to_json()["search"], seed=stored.seed)
        if stored is not None and keeps_schedule(stored, given=pruner is not None):
            self._schedule = stored_schedule(stored)
        self._queue: list[dict[str, Any]] = []
        self._history: History | None = None
        """As last read; None without a log."""
        self._wanted = 0
        """Trials that this process has requested."""
        self._follow: Follow | None = None
        self._asking: Asking | None = None
        self._inside: OurTrial | None = None
        """The trial on a worker that this is the study of; None in the script."""
        mirror.waiting = self._waiting

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise UserError for another sampler or pruner: a study keeps those that it began with."""
        if name in ("sampler", "pruner") and name in vars(self):
            raise UserError(
                f"study.{name} = ... is not there: a study keeps the {name} that it was created"
                f" with; create another study, and add the trials of this one by"
                " add_trials(study.trials)"
            )
        super().__setattr__(name, value)

    def take(self, history: History) -> None:
        """Load the trials and the attributes."""
        self._mirror.replace_all(Trials(history, self.store))
        self._history = history
        # those that the script asks for again, or adds, come on top of what it optimizes
        self._wanted = sum(ASKED in trial.attributes for trial in history.trials)
        about = records.read(self.store)
        for key, kept in about.attributes.items():
            self._mirror.set_study_user_attr(0, key, value_of(kept, self.store, 0))
        for key, kept in about.system.items():
            self._mirror.set_study_system_attr(0, key, kept)
        self._mirror.keep = self._keep

    def put(self, history: History, changed: Collection[int]) -> None:
        """Load those trials that have changed, in a process that only reads."""
        trials = Trials(history, self.store)
        for number in sorted(changed):
            self._mirror.put(trials.one(history.trials[number]))

    def optimize(
        self,
        func: Callable[[Any], float | Sequence[float]],
        n_trials: int | None = None,
        timeout: float | None = None,
        n_jobs: int = 1,
        catch: Iterable[type[Exception]] | type[Exception] = (),
        callbacks: Iterable[Callback] | None = None,
        gc_after_trial: bool = False,
        show_progress_bar: bool = False,
    ) -> None:
        """Run trials until the study has as many as this script has requested so far; existing
        trials count.

        `timeout`: seconds of this call, after which no trial starts. `n_jobs`: trials at a time,
        each in a separate process. `gc_after_trial` and `show_progress_bar` are ignored. Raises
        UserCodeError if the objective raised something that is not in `catch`, UserError for an
        environment in which it cannot run, ValueError for a number of trials below 0.
        """
        if self._inside is not None or self._follow is not None:
            raise RuntimeError("Nested invocation of `Study.optimize` method isn't allowed.")
        if n_trials is not None and n_trials < 0:
            raise ValueError(
                f"n_trials={n_trials} is below 0; None is as many as there is time for"
            )
        cells = self._search.cells
        if cells is not None and not self._queue:
            self._queue = list(cells)
        wanted = n_trials if n_trials is not None else ENDLESS
        if cells is not None:
            wanted = min(wanted, len(cells))
        if wanted == 0:
            return
        self.finish_asking()
        if self._wanted >= ENDLESS:  # an earlier call had as many as there was time for
            self._wanted = sum(trial.state.is_finished() for trial in self._mirror.all_trials)
        self._wanted = min(self._wanted + wanted, ENDLESS)
        ended = [trial.state for trial in self.trials if trial.state.is_finished()]
        if len(ended) >= self._wanted:
            failed = sum(state is TrialState.FAIL for state in ended)
            get_logger("optuna.study").warning(
                f"{self.study_name} has {len(ended)} trials ({failed} failed), of {self._wanted}"
                " that were asked for so far: none is run. For more: a larger n_trials; anew:"
                f" another study_name, or `regrow rm {self.study_name}`"
            )
            return
        caught = (catch,) if isinstance(catch, type) else tuple(catch)
        own_callbacks = list(callbacks or ())
        most = self._schedule.max_steps
        objective = Objective(
            func,
            metrics=metrics(len(self.directions)),
            catch=caught,
            constraints=self._search.constraints,
            last=None if most in (None, MOST) else most - 1,
            study=StudyOfTrial(self._places.root, self.study_name),
            pruner=self._pruner_asked,
            sampler=self._own_sampler,
        )
        jobs = capacity.cpus() if n_jobs == -1 else n_jobs
        hold: Hold = "" if jobs != 1 else "ends" if own_callbacks else "failures"
        self._follow = Follow(
            self.store, [partial(callback, self) for callback in own_callbacks], timeout, hold
        )
        try:
            spec = self._spec(jobs, self._wanted)
            self._follow.run(spec, self._places, objective, self._mirror)
        finally:
            self._history = self._follow.history or self._history
            self._follow = None
            self._export()

    def stop(self) -> None:
        """End the running `optimize`: no trial starts any more, running ones go on to their end."""
        if self._inside is not None:
            self._inside.note({STUDY_STOPPED: True})
            return
        if self._follow is None:
            raise RuntimeError(
                "`Study.stop` is supposed to be invoked inside an objective function or a callback."
            )
        self._follow.stop()

    def enqueue_trial(
        self,
        params: dict[str, Any],
        user_attrs: dict[str, Any] | None = None,
        skip_if_exists: bool = False,
    ) -> None:
        """Give these values to the next trial without a proposal."""
        if not isinstance(params, dict):
            raise TypeError("params must be a dictionary.")
        if self._inside is not None:
            raise UserError("enqueue_trial is not there in an objective; call it in a callback")
        if skip_if_exists and self._should_skip_enqueue(params):
            get_logger("optuna.study").info(
                f"Trial with params {params} already exists. Skipping enqueue."
            )
            return
        values = {name: logged(value) for name, value in params.items()}
        attributes = {
            key: _kept(key, value, "a trial that waits")
            for key, value in (user_attrs or {}).items()
        }
        if self._follow is not None:
            self._follow.queue(values, attributes)
        elif attributes or self._asking is not None:
            self._session().queue(values, attributes)
            self._refresh()
        else:
            self._queue.append(values)

    def add_trial(self, trial: FrozenTrial) -> None:
        """Add a trial that has ended elsewhere. Raises UserError for one that runs, and during
        `optimize`.
        """
        validated(trial)
        if trial.values is not None and len(self.directions) != len(trial.values):
            raise ValueError(
                f"The added trial has {len(trial.values)} values, which is different from the"
                f" number of objectives {len(self.directions)} in the study (determined by"
                " Study.directions)."
            )
        if self._follow is not None or self._inside is not None:
            raise UserError("add_trial is not there while optimize runs; call it before or after")
        if trial.state is TrialState.WAITING:
            fixed = trial.system_attrs.get("fixed_params", {})
            self.enqueue_trial(fixed, user_attrs=trial.user_attrs)
        elif trial.state is TrialState.RUNNING:
            raise UserError("add_trial takes trials that have ended; this one runs")
        else:
            self._session().add(trial)
            self._wanted += 1
            self._refresh()
            self._export()

    def ask(self, fixed_distributions: dict[str, BaseDistribution] | None = None) -> Any:
        """Start a trial that this process runs; `tell` ends it. Raises UserError during
        `optimize`.
        """
        if self._follow is not None or self._inside is not None:
            raise UserError("ask is not there while optimize runs; call it before or after")
        trial = self._session().ask(fixed_distributions or {})
        self._wanted += 1
        self._refresh()
        return trial

    def tell(
        self,
        trial: Any,
        values: float | Sequence[float] | None = None,
        state: TrialState | None = None,
        skip_if_finished: bool = False,
    ) -> FrozenTrial:
        """End a trial that `ask` started. Raises as Optuna's."""
        if not isinstance(trial, int | Trial):
            raise TypeError("Trial must be a trial object or trial number.")
        number = trial if isinstance(trial, int) else trial.number
        trials = self._mirror.all_trials
        if not 0 <= number < len(trials):
            raise ValueError(
                f"Cannot tell for trial with number {number} since it has not been created."
            )
        if trials[number].state.is_finished() and skip_if_finished:
            return copy.deepcopy(trials[number])
        if self._asking is None or self._asking.running(number) is None:
            raise ValueError(f"Cannot tell a {trials[number].state.name} trial.")
        if state is TrialState.COMPLETE and values is None:
            raise ValueError(
                "No values were told. Values are required when state is TrialState.COMPLETE."
            )
        if state in (TrialState.PRUNED, TrialState.FAIL) and values is not None:
            raise ValueError(
                "Values were told. Values cannot be specified when state is TrialState.PRUNED or"
                " TrialState.FAIL."
            )
        if state not in (None, *ENDED_STATES):
            raise ValueError(f"Cannot tell with state {state}.")
        _, problem = self._asking.tell(number, values, state)
        if problem is not None:
            warnings.warn(problem, stacklevel=2)
        self._refresh()
        self._export()
        return copy.deepcopy(self._mirror.all_trials[number])

    def set_user_attr(self, key: str, value: Any) -> None:
        """Set an attribute of the study. What JSON cannot represent is kept as text, which a line
        says. Raises UserError if all are more than 1 MB.
        """
        super().set_user_attr(key, value)
        kept = _kept(key, value, f"the study {self.study_name}")
        records.change(self.store, attributes={key: kept})
        self._export()

    def _keep(self, key: str, value: Any) -> None:
        """Keep what Optuna's code notes on the study, such as an artifact, or names of values."""
        records.change(self.store, system={key: value})

    def keep_existing_trials(self) -> None:
        """Have the next `optimize` run as many trials as it asks for, beside all that are there."""
        if self._history is not None:
            ended = sum(trial.state.is_finished() for trial in self._mirror.all_trials)
            endless = self._history.total >= ENDLESS
            self._wanted = ended if endless else self._history.total
            self._queue = list(self._history.spec.enqueue)

    def inside(self, trial: OurTrial) -> None:
        """Have the study refuse what a trial on a worker cannot do with it."""
        self._inside = trial

    def begin(self) -> None:
        """Create the study in the state, without a trial."""
        self._session()
        self.finish_asking()
        self._mirror.keep = self._keep

    def take_over(self) -> None:
        """Add the trials of the given storage that the study has not."""
        if self._storage_of_optuna is not None:
            for trial in self._storage_of_optuna.trials()[len(self._mirror.all_trials) :]:
                if trial.state is not TrialState.RUNNING:
                    self.add_trial(trial)
            self.finish_asking()

    def _export(self) -> None:
        if self._storage_of_optuna is not None:
            self._storage_of_optuna.add(self._mirror.all_trials, self.user_attrs)

    def finish_asking(self) -> None:
        """End the session in which this process asks for trials, if there is one."""
        asking, self._asking = self._asking, None
        if asking is not None:
            self._left()
            self._history = asking.history
            self._mirror.replace_all(Trials(asking.history, self.store))

    def _session(self) -> Asking:
        """Return the session in which this process asks for trials; begin it if there is none."""
        if self._asking is None:
            spec = self._spec(1, ENDLESS)
            places = self._places.writable()
            prepared = prepare(places, self.study_name, spec, trials=None, code=None)
            made = partial(
                Trial,
                several=len(self.directions) > 1,
                last=None,
                study=lambda _trial: self,
                pruner=self._pruner_asked,
            )
            names, given = metrics(len(self.directions)), self._own_sampler
            self._asking = Asking(places, prepared, names, made, given=given)
            self._left = weakref.finalize(self, Asking.close, self._asking)
        return self._asking

    @property
    def _own_sampler(self) -> OwnSampler | None:
        """The sampler, if it answers itself."""
        if self._search.own is None:
            return None
        return OwnSampler(sampler=self._search.own, root=self._places.root, name=self.study_name)

    @property
    def _pruner_asked(self) -> optuna.pruners.BasePruner | None:
        """The pruner, if trials ask it themselves."""
        return self.pruner if self._schedule.asks_pruner else None

    def _refresh(self) -> None:
        assert self._asking is not None
        self._history = self._asking.history
        self._mirror.replace_all(Trials(self._asking.history, self.store))

    def _waiting(self) -> list[FrozenTrial]:
        """Return the running trials of this process as they are now, and those that wait."""
        asking, found = self._asking, list[FrozenTrial]()
        if asking is not None:
            found = asking.frozen()
        if self._follow is not None or self._inside is not None:
            return found
        known = [] if self._history is None else list(waiting(self._history))
        begun = 0 if self._history is None else len(self._history.spec.enqueue)
        known += [{FIXED: values} for values in self._queue[begun:]]
        return found + [enqueued(one) for one in known]

    def _spec(self, jobs: int, trials: int) -> Spec:
        names, plan = metrics(len(self.directions)), self._schedule
        modes = [one.name.lower()[:3] for one in self.directions]
        if len(names) > 1:
            metric = [{"name": name, "mode": mode} for name, mode in zip(names, modes, strict=True)]
            objective: dict[str, Any] = {"metric": metric, "schedule": "fifo"}
        else:
            objective = {"metric": VALUE, "mode": modes[0], "schedule": plan.form}
            objective |= {} if plan.max_steps is None else {"max_steps": plan.max_steps}
        roomy = jobs <= capacity.cpus() or os.environ.get("RAY_ADDRESS")
        cpu = 1 if roomy else capacity.cpus() / jobs
        from regrow.experiment import script_folder

        return Spec.parse(
            {
                "name": self.study_name,
                "trainable": "pickled",
                **objective,
                "space": {},
                "search": self._search.form,
                "score": "final",
                "trials": trials,
                "step_metric": {"name": STEP, "first": plan.first},
                "seed": self._search.seed,
                "concurrency": jobs,
                "resources": {"cpu": cpu},
                "enqueue": self._queue,
                "working_dir": str(script_folder()),
            }
        )


def _kept(key: str, value: Any, whose: str) -> Any:
    """Return an attribute in the form in which it is kept where there are no files: what JSON
    cannot represent as a text, which a line says.
    """
    try:
        return form(value, key, _no_file, exact=False)
    except NotStorable:
        get_logger("optuna.study").warning(
            f"the attribute {key!r} of {whose} is kept as text: only JSON can be kept there"
        )
        return described(value)


def _no_file(_name: str, _path: object) -> None:
    raise NotStorable("it is no plain value")


class StudyOfTrial:
    """Returns the study of a trial that runs here, on a worker, as its log is then. What was read
    stays in the process. Raises KeyError if the study is gone.
    """

    def __init__(self, root: str, name: str) -> None:
        self.root, self.name = root, name
        self.read: tuple[Study, History, Follower] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "name": self.name, "read": None}

    def __call__(self, trial: OurTrial) -> Study:
        study, history, follower = self.read = self.read or self._begun()
        changed: set[int] = set()

        def apply(event: AnyEvent) -> None:
            history.apply(event)
            if hasattr(event, "trial"):
                changed.add(event.trial)

        for segments in available(follower):
            fold(study.store, apply, segments)
        study.put(history, changed)
        study.inside(trial)
        return study

    def _begun(self) -> tuple[Study, History, Follower]:
        places = Places(root=self.root)
        store, history = places.store(self.name), History(self.name)
        follower = Follower(store)
        for segments in available(follower):
            fold(store, history.apply, segments)
        if history.created is None:
            raise KeyError(f"there is no study {self.name!r} in {self.root}")
        mirror = Mirror(self.name, directions_of(history))
        study = Study(self.name, places, mirror, None, None, stored=history.spec)
        study.take(history)
        return study, history, follower
