"""Opening an experiment: whether it exists and is the same, and how many trials it gets."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.log.log import Log
from regrow.infra.log.reading import Survey, replay, survey
from regrow.infra.state import learning, snapshot
from regrow.infra.state.driver_lock import already, await_final_reports
from regrow.infra.state.places import CLUSTER, Places
from regrow.search import samplers
from regrow.search.durations import in_words
from regrow.search.errors import SpecError, quoted
from regrow.search.events import Closed, Status
from regrow.search.history import History, specification
from regrow.search.history.orders import TrialOrder
from regrow.search.lifecycle import TrialState
from regrow.search.measured import Known
from regrow.search.numbers import money
from regrow.search.options import AUTO, chosen
from regrow.search.planning import budget, limits
from regrow.search.planning.learning import known_from
from regrow.search.planning.stopping import why_failed
from regrow.search.schedulers import foreseen
from regrow.search.spec import PER_SESSION, Spec
from regrow.search.spec.auto import SearchChoice
from regrow.search.spec.keys import UNLIMITED
from regrow.search.spec.moments import epoch
from regrow.search.spec.parts import Resources
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Missing, Store, created

_UNTOLD = ("event", "serve")
"""Keys whose changes are not reported: the event of each run, and what the station serves."""
AGREE = "what is good in one is in the others"
"""Why a new experiment learns from others unasked."""
MANY = 10
"""Fewer trials are not remarked upon."""
LITTLE = 0.5
"""A number of trials that does at most this share of as many full trainings is remarked upon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An experiment that can be run."""

    spec: Spec
    store: Store
    trials: int | None
    """The new total of trials that was asked for, None: unchanged."""
    code: tuple[str, str] | None
    """(store key, SHA-256) of a pickled trainable, None if it is not pickled."""
    log: Survey
    """Key events of its log."""
    known: list[Known] = field(default_factory=list)
    """For a new experiment: results taken over from earlier experiments (`warm_start`)."""
    learnt: list[Known] = field(default_factory=list)
    """For a new experiment: results it learns from experiments on other tasks (`learn_from`)."""
    unasked: bool = False
    """Whether these experiments were found by regrow, as `learn_from` is not given."""
    nothing_left: bool = False
    """Whether the experiment is over, and no further trials, no other stop or register setting and
    no retry of failed trials is asked for.
    """
    failed: int | None = None
    """How many failed trials will be retried; None if no retry was asked for."""
    stored: Spec | None = None
    """The specification as of the last session; None for a new experiment."""
    restored: str | None = None
    """The line about code that was taken from the state; None if it was not."""
    choice: SearchChoice | None = None
    """For a new experiment that leaves its search or schedule to regrow: the choice, and why."""

    @property
    def ended(self) -> Status | None:
        """How its last session ended; None for a new experiment, and if its driver was lost."""
        return self.log.last.status if isinstance(self.log.last, Closed) else None

    @property
    def outdated(self) -> bool:
        """Whether the log has grown since."""
        return next(Log.read(self.store, after=self.log.segment), None) is not None

    @property
    def changes(self) -> list[str]:
        """Settings that differ from the last session, one line each."""
        if self.stored is None:
            return []
        # On a cluster, each job's files lie elsewhere.
        untold = (*_UNTOLD, "working_dir") if os.environ.get(CLUSTER) else _UNTOLD
        kept = [key for key in _changed(self.stored, self.spec) if key not in untold]
        if self.restored is not None:
            kept = [key for key in kept if key != "working_dir"]
        lines = [_change(key, self.stored, self.spec) for key in kept]
        return lines if self.restored is None else [self.restored, *lines]

    def needing(self, resources: Resources) -> Prepared:
        """Return the same with other resources of a trial."""
        return replace(self, spec=self.spec.model_copy(update={"resources": resources}))

    @property
    def auto(self) -> dict[str, str]:
        """For a new experiment: the reason for each key that its specification leaves to regrow."""
        found = {} if self.choice is None else dict(self.choice.why)
        return found | ({"learn_from": AGREE} if self.unasked and self.learnt else {})

    @property
    def advisers(self) -> list[str]:
        """The experiments that a new one learns from, with the number of their trials that it gets.
        A single explaining line if no experiment fits.
        """
        if (
            not self.learnt
            and self.log.created is None
            and self.spec.learn_from == AUTO
            and self.spec.takes_first
        ):
            no_other = "nothing: no other experiment of this state root has trials that ended"
            return [f"{no_other}, these parameters and this metric"]
        if self.unasked:
            found = learning.names(self.learnt)
            off = "learn_from: [] switches this off"
            return [f"{', '.join(found)}: {AGREE}; {off}"] if found else []
        counts = Counter(known.origin.rpartition(":")[0] for known in self.learnt)
        return [
            f"{name}: {count} trial{'' if count == 1 else 's'}" for name, count in counts.items()
        ]

    @property
    def shortened(self) -> list[str]:
        """One line for a new experiment whose schedule leaves far less training than its number of
        trials suggests, with the key that means it.
        """
        spec = self.spec
        if spec.trials is None or spec.trials < MANY:
            return []
        if self.log.created is not None or spec.budget is not None:
            return []
        steps = foreseen.steps(spec.schedule, spec.setting, spec.trials)
        if steps is None or spec.max_steps is None:
            return []
        trainings = max(1, round(steps / spec.max_steps))
        if trainings > LITTLE * spec.trials:
            return []
        work = f"about {trainings} full training{'' if trainings == 1 else 's'}"
        line = (
            f"trials: {spec.trials} is the work of {work}, as {chosen(spec.schedule)} ends most"
            f" early; for the work of {spec.trials}, write budget: {spec.trials} in its place"
        )
        return [line]

    @property
    def asked(self) -> Spec:
        """The specification with which another `prepare` finds the same: keys chosen by regrow are
        `auto` again, and the total is raised.
        """
        return self.spec.model_copy(
            update={
                **dict.fromkeys(self.auto, AUTO),
                "learn_from": None if self.unasked else self.spec.learn_from,
                "trials": self.trials or self.spec.trials,
            }
        )

    @property
    def folder(self) -> str | None:
        """Folder of the trainable's code, None if it has none."""
        return self.spec.working_dir


def make_importable(spec: Spec) -> None:
    """Put the folder of a user's sampler or scheduler on this process's import path."""
    folder = spec.working_dir
    if (spec.own_sampler or spec.own_scheduler) and folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)


def request_stop(store: Store) -> str:
    """Ask the driver of an experiment to stop. Returns the key for `withdraw_stop`."""
    store.create(key := f"control/stop-{uuid.uuid4().hex}", b"")
    return key


def withdraw_stop(store: Store, key: str) -> None:
    """Withdraw a request after the session ended without it: it would stop the next session."""
    store.delete([key])


def take_stop_requests(store: Store) -> bool:
    """Return whether `regrow stop` was called since the last call. Deletes the requests."""
    requests = store.list("control/stop-")
    store.delete(requests)
    return bool(requests)


def request_order(store: Store, trials: Iterable[int], what: TrialOrder) -> str:
    """Ask the driver of an experiment to drop, keep or stop trials. Returns the request's key."""
    order = msgspec.json.encode(_Order(trials=tuple(trials), what=what))
    store.create(key := f"{_ORDERS}{uuid.uuid4().hex}", order)
    return key


def carry_out_orders(store: Store, order: Callable[[int, TrialOrder], object]) -> None:
    """Call `order` with each trial of each request, and what the user wants of it; then delete the
    request. What cannot be decoded is deleted, too.
    """
    for key in store.list(_ORDERS):
        with suppress(msgspec.MsgspecError, Missing):
            found = msgspec.json.decode(store.read(key), type=_Order)
            for trial in found.trials:
                order(trial, found.what)
        store.delete([key])


def request_retry(store: Store, sessions: int) -> None:
    """Ask the agents' next driver to try failed trials again. `sessions`: how many the experiment
    has had; one that comes later carries the request out, once, whoever leads it.
    """
    created(store, f"{_RETRIES}{sessions:08d}", b"")


def retry_requested(store: Store, name: str) -> bool:
    """Return whether a request of `request_retry` waits for the next session. Deletes those that
    were carried out. Raises Unavailable and CorruptLog.
    """
    if not (keys := store.list(_RETRIES)):
        return False
    openings = replay(store, name).openings
    done = [
        key
        for key in keys
        if any(one.retry_failed for one in openings[int(key.removeprefix(_RETRIES)) :])
    ]
    store.delete(done)
    return len(done) < len(keys)


def request_resume(store: Store, sessions: int) -> None:
    """Have agents continue an experiment that its user has stopped. `sessions`: how many it has
    had; once there is a later one, the request says nothing.
    """
    store.delete(store.list(_RESUMES))
    created(store, f"{_RESUMES}{sessions:08d}", b"")


def resume_requested(store: Store, name: str) -> bool:
    """Return whether `request_resume` was called since the last session. Raises Unavailable and
    CorruptLog.
    """
    keys = store.list(_RESUMES)
    return bool(keys) and f"{_RESUMES}{replay(store, name).sessions:08d}" in keys


class _Order(msgspec.Struct, frozen=True):
    trials: tuple[int, ...]
    what: TrialOrder


_ORDERS = "control/trials-"
_RETRIES = "control/retry-failed-"
_RESUMES = "control/resume-"


def prepare(
    places: Places,
    name: str,
    spec: Spec | None,
    *,
    trials: int | None,
    code: str | None,
    retry_failed: bool = False,
    by_agent: bool = False,
) -> Prepared:
    """Find the experiment's log and compare `spec` with it. Raises UserError or SpecError for what
    cannot be run.

    Args:
        places: the state root.
        name: the experiment.
        spec: its specification; None: resume with the one in the log.
        trials: the new total of trials; None: as in the specification, else unchanged.
        code: SHA-256 of a pickled trainable; None: not pickled, or as in the last session.
        retry_failed: whether failed trials are to be retried.
        by_agent: whether an agent runs the driver, see `driving`.

    """
    if spec is not None:
        places.refuse_removed(name)
    store = places.known(name) if spec is None else places.store(name)
    ended = await_final_reports(places, name, lambda: isinstance(survey(store).last, Closed))
    if not ended and not by_agent:
        raise already(places, name)
    log = survey(store)
    if log.created is None:
        if spec is None:
            raise UserError(
                f"the log of experiment {name!r} in {places.root} holds nothing; start it with"
                " `regrow run FILE`"
            )
        return _new(places, spec, store, log, trials=trials, code=code)
    stored = specification(log.created, log.opened)
    # The experiment's folder was renamed: from this session on the log has the new name, too.
    if stored.name != name:
        stored = Spec.parse({**stored.to_json(), "name": name})
    total = log.opened.trials if log.opened else stored.total
    restored = None
    if spec is None:
        current = _moved(stored, places)
        if _lacks_code(current):
            current, restored = _elsewhere(current, places, store, log)
    else:
        _same(stored, spec.like(stored), name)
        current = stored.model_copy(update={key: getattr(spec, key) for key in PER_SESSION})
        if (
            trials is None
            and spec.trials is not None
            and (spec.trials > total or total >= UNLIMITED > spec.trials)
        ):
            trials = spec.trials
    if trials is not None:
        _check_total(stored, trials, total)
    if (current.stop, current.budget) != (stored.stop, stored.budget) and current.limited:
        _check_limits(replay(store, name), current)
    if current.trainable == "pickled" and code is None:
        code = log.opened.code if log.opened else None
    over, failed = _completion(store, name, log, total, retry_failed=retry_failed)
    more = (trials is not None and trials != total) or bool(failed)
    changed = {"budget", "stop", "register"} & {*_changed(stored, current)}
    return Prepared(
        spec=current,
        store=store,
        trials=trials,
        code=_pickled(code),
        log=log,
        nothing_left=over and not more and not changed,
        failed=failed,
        stored=stored,
        restored=restored,
    )


def _new(
    places: Places, spec: Spec, store: Store, log: Survey, *, trials: int | None, code: str | None
) -> Prepared:
    """Return an experiment that has no log yet. Raises SpecError."""
    new = spec if trials is None else Spec.parse({**spec.to_json(), "trials": trials})
    _check_deadline(new)
    learnt, spec = learning.learnt(places, new), new.resolved
    if new.learn_from is None:
        spec = spec.model_copy(update={"learn_from": learning.names(learnt)})
    return Prepared(
        spec=spec,
        store=store,
        trials=None,
        code=_pickled(code),
        log=log,
        known=_warm(places, new),
        learnt=learnt,
        unasked=new.learn_from is None,
        choice=new.choice,
    )


def _check_deadline(spec: Spec, created: float | None = None) -> None:
    """Raise SpecError for a deadline that is over.

    `created`: when the experiment was created, seconds since the epoch; None: now.
    """
    moment, now = spec.stop.deadline, time.time()
    if moment is None or epoch(moment, now if created is None else created) > now:
        return
    problem, hint = "is over", "write a later time, or a span such as 8h"
    if created is not None:
        hint = "give a later one: --deadline"
        if isinstance(moment, float):
            began = datetime.fromtimestamp(created).astimezone().isoformat(timespec="minutes")
            moment, problem = in_words(moment), f"is over: it counts from the creation, at {began}"
    raise SpecError("stop.deadline", moment, problem, hint)


def _check_limits(history: History, spec: Spec) -> None:
    """Raise SpecError for limits of an existing experiment that are used up."""
    _check_deadline(spec, history.t_created)
    paid = limits.spent(history, history.t_last)
    if spec.stop.dollars is not None and spec.stop.dollars <= paid:
        problem = f"is no more than what is spent already, {money(paid)}"
        raise SpecError("stop.dollars", spec.stop.dollars, problem, "give more: --dollars")
    given, now = spec.budget, history.t_last
    if given not in (None, history.spec.budget) and budget.share(history, given, now) >= 1:
        problem = f"is used up already, {budget.used_text(history, now, given)}"
        raise SpecError("budget", given.to_json(), problem, "give more: --budget")


def _check_total(stored: Spec, trials: int, total: int) -> None:
    if stored.trials is None and stored.limited and total >= UNLIMITED:
        problem = f"experiment {stored.name!r} has as many trials as its limits allow"
        hint = "raise budget, stop.dollars or stop.deadline instead"
        raise SpecError("trials", trials, problem, hint)
    if trials < total < UNLIMITED:
        problem = f"experiment {stored.name!r} has {total} already, and a total can only be raised"
        raise SpecError("trials", trials, problem, f"write {total} or more")
    if trials % stored.repeats:
        hint = f"write {trials - trials % stored.repeats + stored.repeats}"
        raise SpecError("trials", trials, f"is no multiple of repeats ({stored.repeats})", hint)
    cells = None if stored.own_sampler else samplers.size(stored.search, stored.setting)
    if cells is not None and trials > (cells := cells * stored.repeats):
        raise SpecError("trials", trials, f"the grid has only {cells} cells", f"at most {cells}")


def _completion(
    store: Store, name: str, log: Survey, total: int, *, retry_failed: bool
) -> tuple[bool, int | None]:
    """Return whether all trials are over, and how many failed ones to retry (None: not asked)."""
    status = log.last.status if isinstance(log.last, Closed) else None
    history = replay(store, name) if retry_failed or status == "failed" else None
    over = status == "finished" or (
        status == "failed"
        and history is not None
        and (history.ended >= total or why_failed(history.spec.stop, history) is not None)
    )
    if history is None or not retry_failed:
        return over, None
    # Trials that a lost driver left running may turn out failed when they are declared lost.
    return over, len(history.by_state[TrialState.FAILED] | history.running)


def _moved(stored: Spec, places: Places) -> Spec:
    """Return the specification with the current folder of its code, if that was moved together with
    the state root, inside a common parent folder.

    A folder below the parent is accepted if it has the same path below that parent and contains the
    code to run.
    """
    root = places.folder
    if stored.working_dir is None or root is None or Path(stored.working_dir).exists():
        return stored
    return _below(stored, root.parent) or stored


def _below(stored: Spec, top: Path) -> Spec | None:
    """Return the specification with its code in a folder that has the same path below `top` as the
    recorded one has below one of its parents; None if there is none.
    """
    was = Path(stored.working_dir or ".")
    code = stored.program.partition(":")[0]
    package = code.partition(".")[0]
    names = (code,) if "/" in code or code.endswith(".py") else (code, package, f"{package}.py")
    for below in range(1, len(was.parts) + 1):
        folder = top.joinpath(*was.parts[below:])
        if folder.is_dir() and any((folder / name).exists() for name in names):
            return stored.model_copy(update={"working_dir": str(folder)})
    return None


def _lacks_code(spec: Spec) -> bool:
    """Return whether the folder of the code, or the file that it is to have, is not here."""
    if spec.working_dir is None:
        return False
    folder, code = Path(spec.working_dir), spec.program.partition(":")[0]
    return not folder.is_dir() or (code.endswith(".py") and not (folder / code).exists())


def _missing(spec: Spec) -> str:
    """Return the path whose absence makes `_lacks_code` true."""
    folder = Path(spec.working_dir or ".")
    return str(folder / spec.program.partition(":")[0] if folder.is_dir() else folder)


def _elsewhere(stored: Spec, places: Places, store: Store, log: Survey) -> tuple[Spec, str | None]:
    """Return the specification with the code of the current folder, else with that of the snapshot
    in the state, and a line about it; unchanged if neither has it. Raises UserError.
    """
    if (here := _below(stored, Path.cwd())) is not None:
        return here, None
    if log.snapshot is None:
        return stored, None
    try:
        folder = snapshot.restore(store, log.snapshot, places.services / "code")
    except UserError as error:
        advice = "put it back, or name its folder by --code"
        raise UserError(f"{_missing(stored)} is not here, and {error}; {advice}") from None
    when = datetime.fromtimestamp(log.described.t if log.described else 0.0)  # noqa: DTZ006 - the user's local time
    line = (
        f"code: {_missing(stored)} is not here; used is the snapshot in the state, as of"
        f" {when:%Y-%m-%d %H:%M}, in {folder} (--code FOLDER names another one)"
    )
    return stored.model_copy(update={"working_dir": str(folder)}), line


def _warm(places: Places, spec: Spec) -> list[Known]:
    """Return the results of the experiments that a new one starts from. Raises SpecError for an
    experiment without a trial in the new one's space.
    """
    known: list[Known] = []
    for number, start in enumerate(spec.warm_start):
        key = f"warm_start.{number}"
        try:
            history = replay(places.known(start.experiment), start.experiment)
        except UserError as error:
            raise SpecError(key, start.experiment, str(error)) from None
        found, outside = known_from(history, spec, start, key)
        if not found:
            problem = "has no trial that ended"
            if outside:
                problem = f"has no trial in this space ({outside} lie outside)"
            raise SpecError(key, start.experiment, problem, "leave it out")
        known += found
    return known


def _pickled(digest: str | None) -> tuple[str, str] | None:
    """Return store key and SHA-256 of a pickled trainable."""
    return None if digest is None else (f"code/{digest}", digest)


def _changed(stored: Spec, current: Spec) -> list[str]:
    """Return the keys of settings that differ from the last session."""
    return [key for key in PER_SESSION if getattr(stored, key) != getattr(current, key)]


def _change(key: str, stored: Spec, current: Spec) -> str:
    """Return a line about a setting that differs from the last session."""
    if key == "env":  # its values may be secrets
        return "env differs from the last time"
    where, old, new = _difference(key, stored.settings()[key], current.settings()[key])
    return f"{where} was {old}, and is {_whole(new)} from now on"


def _same(stored: Spec, given: Spec, name: str) -> None:
    a, b = stored.identity(), given.identity()
    for key in a:
        if a[key] != b[key]:
            where, old, new = _difference(key, a[key], b[key])
            problem = f"differs from the experiment {name!r} that exists already, which has {old}"
            hint = f"give this one another name, or continue with that one: regrow resume {name}"
            raise SpecError(where, new, problem, hint)


def _difference(key: str, old: Any, new: Any) -> tuple[str, str, Any]:
    """Return the deepest key at which two values differ, the old value in words, and the new."""
    if isinstance(old, dict) and isinstance(new, dict):
        name = next(n for n in (*old, *new) if n not in old or n not in new or old[n] != new[n])
        return _difference(f"{key}.{name}", old.get(name), new.get(name))
    return key, _whole(old), new


def _whole(value: Any) -> str:
    """Return a value as messages have it; with the end of a long path, as two may differ there."""
    return "none" if value is None else quoted(value, most=1000)
