"""Creates, finds and removes studies: Optuna's functions, on the experiments of a state root."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection, StudySummary

from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.integrations.optuna import records
from regrow.integrations.optuna.durable import Study
from regrow.integrations.optuna.mirror import Mirror, directions_of
from regrow.integrations.optuna.objects import plain_value
from regrow.integrations.optuna.storing import Storage
from regrow.integrations.optuna.trials import Trials
from regrow.search.history import History
from regrow.search.samplers.optuna_study_model import quiet
from regrow.search.spec import as_name

_LOG = optuna.logging.get_logger("optuna.study")


def create_study(
    *,
    storage: Any = None,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    study_name: str | None = None,
    direction: str | StudyDirection | None = None,
    load_if_exists: bool = False,
    directions: Sequence[str | StudyDirection] | None = None,
) -> Study:
    """Create a study or, with `load_if_exists`, load the existing one of that name. The trials of
    a `storage` are taken over, and new ones are copied to it.

    Without a name it gets a unique one, as in Optuna. Raises DuplicatedStudyError for a name that
    is taken, ValueError for what Optuna refuses, and UserError for an unsupported sampler or
    pruner.
    """
    name = _named(study_name)
    ways: Any = {"direction": direction, "directions": directions}  # Optuna checks a text
    with quiet():
        plain = optuna.create_study(sampler=sampler, pruner=pruner, **ways)
    places = Places.at(None)
    history, theirs = _history(places, name), Storage.of(storage, study_name or name)
    exists = history is not None or (theirs is not None and theirs.exists)
    if exists and not load_if_exists:
        raise DuplicatedStudyError(
            f"there is a study {name!r} in {places.root}; load_if_exists=True continues with it"
        )
    found = plain.directions
    if history is not None:
        found = directions_of(history)
    elif theirs is not None:
        found = theirs.begin(plain.directions)
    if (direction or directions) and plain.directions != found:
        kept = ", ".join(one.name.lower() for one in found)
        _LOG.warning(
            "the study '%s' is there with %s, which stays, as in Optuna; what was given is not"
            " used",
            name,
            kept,
        )
    if exists:
        _LOG.info("Using an existing study with name '%s' instead of creating a new one.", name)
    else:
        _LOG.info("A new study created in %s with name: %s", places.root, name)
        if study_name is None:
            _LOG.info(
                "Without a name each run begins a new study. With study_name and"
                " load_if_exists=True the same command continues it, also after a kill."
            )
    return _made(name, places, history, found, sampler, pruner, theirs)


def load_study(
    *,
    study_name: str,
    storage: Any = None,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
) -> Study:
    """Load an existing study, to which `optimize` adds trials. Raises KeyError if there is none."""
    places, name = Places.at(None), _named(study_name)
    history, theirs = _history(places, name), Storage.of(storage, study_name)
    if history is not None:
        found = directions_of(history)
    elif theirs is not None and theirs.exists:
        found = theirs.begin([])
    else:
        raise KeyError(f"there is no study {name!r} in {places.root}")
    study = _made(name, places, history, found, sampler, pruner, theirs)
    study.keep_existing_trials()
    return study


def _made(
    name: str,
    places: Places,
    history: History | None,
    directions: Sequence[StudyDirection],
    sampler: optuna.samplers.BaseSampler | None,
    pruner: optuna.pruners.BasePruner | None,
    theirs: Storage | None,
) -> Study:
    """Return the study, which exists from now on, with the trials that `theirs` has."""
    study = Study(
        name,
        places,
        Mirror(name, directions),
        sampler,
        pruner,
        stored=None if history is None else history.spec,
        storage=theirs,
    )
    if history is not None:
        study.take(history)
    else:
        study.begin()
    study.take_over()
    return study


def delete_study(*, study_name: str, storage: Any = None) -> None:
    """Remove a study, also from a storage of Optuna's that is given. Raises KeyError if there is
    none of that name.
    """
    from regrow.flows.housekeeping.removal import remove

    places, theirs = Places.at(None), Storage.of(storage, study_name)
    exists = _history(places, _named(study_name)) is not None
    if not exists and (theirs is None or not theirs.exists):
        raise KeyError(f"there is no study {study_name!r} in {places.root}")
    if theirs is not None:
        theirs.delete()
    if exists:
        remove(places, _named(study_name))


def copy_study(
    *,
    from_study_name: str,
    from_storage: Any = None,
    to_storage: Any = None,
    to_study_name: str | None = None,
) -> None:
    """Copy a study's trials and attributes to a new one. Raises KeyError if there is none of that
    name, DuplicatedStudyError if the new one is there.
    """
    source = load_study(study_name=from_study_name, storage=from_storage)
    copied = create_study(
        study_name=to_study_name or from_study_name,
        storage=to_storage,
        directions=source.directions,
    )
    for key, value in source.user_attrs.items():
        copied.set_user_attr(key, value)
    copied.add_trials(source.get_trials(deepcopy=False))
    copied.finish_asking()


def get_all_study_names(storage: Any = None) -> list[str]:
    """Return the names of the state root's studies, or of a storage of Optuna's that is given."""
    if storage is not None:
        return optuna.get_all_study_names(storage)
    return Places.at(None).experiments()


def get_all_study_summaries(
    storage: Any = None, include_best_trial: bool = True
) -> list[StudySummary]:
    """Return a summary of each study of the state root, or of a storage of Optuna's that is given.
    Experiments that are no studies count, too.
    """
    if storage is not None:
        return optuna.get_all_study_summaries(storage, include_best_trial)
    places, found = Places.at(None), list[StudySummary]()
    for number, name in enumerate(places.experiments()):
        history = _history(places, name)
        if history is None:
            continue
        trials = list(Trials(history, places.store(name)))
        begun = [one.datetime_start for one in trials if one.datetime_start is not None]
        directions = directions_of(history)
        mirror = Mirror(name, directions)
        mirror.replace_all(trials)
        best = None
        if include_best_trial and len(directions) == 1:
            with suppress(ValueError):
                best = mirror.get_best_trial(0)
        about = records.read(places.store(name))
        found.append(
            StudySummary(
                study_name=name,
                direction=None,
                directions=directions,
                best_trial=best,
                user_attrs={key: plain_value(one) for key, one in about.attributes.items()},
                n_trials=len(trials),
                datetime_start=min(begun, default=None),
                study_id=number,
            )
        )
    return found


def _named(name: str | None) -> str:
    if name is None:
        return f"no-name-{uuid.uuid4()}"
    if (made := as_name(name, "study")) != name:
        _LOG.warning(
            "the study %r is called %r here: a name has letters, digits, '-', '_' and '.'",
            name,
            made,
        )
    return made


def _history(places: Places, name: str) -> History | None:
    """Return an experiment's history, None if it does not exist."""
    history = replay(places.store(name), name)
    return history if history.created is not None else None
