"""A sampler that a user wrote, in the coordinator: it sees the study as its log is, and what
it answers is an event before it is used.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any, Literal

from optuna.distributions import json_to_distribution
from optuna.pruners import NopPruner
from optuna.samplers import BaseSampler, CmaEsSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from regrow.infra.state.places import Places
from regrow.integrations.optuna import records
from regrow.integrations.optuna.mirror import Mirror, directions_of, enqueued, fixed_params
from regrow.integrations.optuna.objects import plain_value
from regrow.integrations.optuna.private import numbered
from regrow.integrations.optuna.running import logged
from regrow.integrations.optuna.trials import Trials
from regrow.search.events import Answered, AnyEvent
from regrow.search.history import History
from regrow.search.planning.suggesting import next_queued
from regrow.search.samplers.define_by_run_model import RELATIVE, StoppableStudy, beforehand
from regrow.search.samplers.external import External, Wanted
from regrow.search.samplers.optuna_private import FoldedCmaEs
from regrow.tasks.ports.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSampler:
    """The sampler of a study, pickled with its objective: loaded in the coordinator alone.

    Attributes:
        sampler: the user's object, or its pickle.
        root: the state root of the study; `name`: its name.

    """

    sampler: BaseSampler | bytes
    root: str
    name: str

    def __getstate__(self) -> dict[str, Any]:
        from ray import cloudpickle

        kept = self.sampler if isinstance(self.sampler, bytes) else cloudpickle.dumps(self.sampler)
        return {"sampler": kept, "root": self.root, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            object.__setattr__(self, key, value)

    def external(self) -> External:
        """See HasExternal."""
        import pickle

        found = self.sampler
        if isinstance(found, bytes):
            found = pickle.loads(found)  # noqa: S301 - a part of the study's own objective
        return AnsweringSampler(found, Places(root=self.root).store(self.name), self.name)


class AnsweringSampler:
    """The study as the sampler sees it, in its process."""

    def __init__(self, sampler: BaseSampler, store: Store, name: str) -> None:
        if type(sampler) is CmaEsSampler:  # this one notes trials in the log in place of pickles
            sampler = copy.copy(sampler)
            sampler.__class__ = FoldedCmaEs
        self._sampler, self._store, self._name = sampler, store, name
        self._history = History(name)
        self._mirror = Mirror(name, [StudyDirection.MINIMIZE])  # until the log tells more
        self._study: StoppableStudy | None = None
        self._dealt: set[int] = set()
        """Trials whose end was passed to the sampler, in any process."""
        self._noted: dict[int, dict[str, Any]] = {}
        """Attributes that the sampler set on a trial after its proposal."""
        self._of_study: dict[str, Any] = {}
        """Those that it set on the study."""
        self._changed: set[int] = set()
        """Trials whose state in the study is not the log's."""
        self._over = False

    def observe(self, event: AnyEvent) -> None:
        """See External."""
        self._history.apply(event)
        if isinstance(event, Answered):
            self._of_study |= event.state.get("study", {})
            for number, state in event.ended.items():
                self._dealt.add(number)
                self._noted[number] = state.get("trial", {})
                self._of_study |= state.get("study", {})
                self._changed.add(number)
        elif hasattr(event, "trial"):
            self._changed.add(event.trial)

    def answer(self, wanted: Wanted | None, now: float) -> Answered | None:
        """See External."""
        if wanted is None and not self._ended():
            return None
        study = self._opened()
        ended = {number: self._after(study, number) for number in self._ended()}
        over = self._stopped(study)
        if over or wanted is None:
            return Answered(t=now, ended=ended, over=over) if ended or over else None
        if wanted.name:
            values = {wanted.name: self._value(study, wanted)}
            return Answered(t=now, about=wanted.trial, values=values, ended=ended)
        state = self._proposal(study)
        over = self._stopped(study)
        return Answered(t=now, about=wanted.trial, state=state, ended=ended, over=over)

    def _stopped(self, study: StoppableStudy) -> Literal["", "stopped"]:
        """Return whether the sampler has stopped the study, which is announced once."""
        if self._over or not study.stopped:
            return ""
        self._over = True
        return "stopped"

    def _ended(self) -> list[int]:
        """Return the trials that have ended, and whose end was not passed to the sampler."""
        trials = self._history.trials
        return sorted(
            number
            for number in self._changed
            if number not in self._dealt and trials[number].state.final
        )

    def _opened(self) -> StoppableStudy:
        """Return the study, up to date with the log."""
        if self._study is None:
            self._mirror = mirror = Mirror(self._name, directions_of(self._history))
            for key, kept in records.read(self._store).attributes.items():
                mirror.set_study_user_attr(0, key, plain_value(kept))
            if self._history.trials:
                self._sampler.reseed_rng()  # else it draws once more what it drew before
            self._study = StoppableStudy(Study(self._name, mirror, self._sampler, NopPruner()))
            for key, value in self._of_study.items():
                mirror.set_study_system_attr(0, key, value)
        ended, trials = set(self._ended()), Trials(self._history, self._store, texts=True)
        for number in sorted(self._changed):
            self._mirror.put(self._frozen(trials, number, runs=number in ended))
        self._changed = ended
        return self._study

    def _frozen(self, trials: Trials, number: int, *, runs: bool = False) -> FrozenTrial:
        """Return a trial as the study has it. `runs`: as it was before its end."""
        record = self._history.trials[number]
        found = trials.one(record)
        if runs or found.state is TrialState.WAITING:
            found.state, found.values, found.datetime_complete = TrialState.RUNNING, None, None
        found.system_attrs = {
            **found.system_attrs,
            **fixed_params(record.proposal_state),
            **self._noted.get(number, {}),
        }
        return found

    def _after(self, study: StoppableStudy, number: int) -> dict[str, Any]:
        """Tell the sampler that a trial has ended, which still runs in the study, as in Optuna.
        Return the attributes that it set.
        """
        trials = Trials(self._history, self._store, texts=True)
        final, running = self._frozen(trials, number), self._frozen(trials, number, runs=True)
        self._mirror.put(running)
        before = self._attributes(number)
        self._dealt.add(number)
        study.sampler.after_trial(study, running, final.state, final.values)
        found = self._set_since(before, number)
        self._noted[number] = found.get("trial", {})
        self._mirror.put(self._frozen(trials, number))
        self._changed.discard(number)
        return found

    def _value(self, study: StoppableStudy, wanted: Wanted) -> Any:
        distribution = json_to_distribution(json.dumps(wanted.distribution))
        trial = self._history.trials[wanted.trial]
        known, value = beforehand(wanted.name, distribution, trial.proposal_state)
        if known:
            return value
        here = self._mirror.get_trial(wanted.trial)
        return logged(self._sampler.sample_independent(study, here, wanted.name, distribution))

    def _proposal(self, study: StoppableStudy) -> dict[str, Any]:
        """Return the state of the next trial, which is in the study from now on."""
        number = len(self._history.trials)
        del self._mirror.all_trials[number:]
        if (queued := next_queued(self._history)) is not None:
            self._mirror.put(numbered(enqueued(queued), number))
        before = self._attributes(number)
        together = study.ask().relative_params
        found = self._set_since(before, number)
        if together:
            found[RELATIVE] = {name: logged(value) for name, value in together.items()}
        return found

    def _attributes(self, number: int) -> dict[str, dict[str, Any]]:
        exists = number < len(self._mirror.all_trials)
        trial = self._mirror.get_trial(number).system_attrs if exists else {}
        return {"trial": trial, "study": dict(self._mirror.get_study_system_attrs(0))}

    def _set_since(self, before: dict[str, dict[str, Any]], number: int) -> dict[str, Any]:
        """Return the attributes of study and trial that were set since; those that are no JSON are
        known to this process alone.
        """
        found = {}
        for place, now in self._attributes(number).items():
            known = before[place]
            new = {k: v for k, v in now.items() if (k not in known or known[k] != v) and _plain(v)}
            if new:
                found[place] = new
        return found


def _plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
