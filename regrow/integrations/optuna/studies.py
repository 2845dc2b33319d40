"""Creates, finds and removes studies: Optuna's functions, on the experiments of a state root."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection

from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.integrations.optuna.durable import Study
from regrow.integrations.optuna.following import Mirror
from regrow.search.history import History
from regrow.search.samplers.optuna_study_model import quiet
from regrow.search.spec import NAME

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
    """Create a study or, with `load_if_exists`, load the existing one of that name. `storage` is
    ignored.

    Without a name it gets a unique one, as in Optuna. Raises DuplicatedStudyError for a name that
    is taken, ValueError for what Optuna refuses, and UserError for an unsupported sampler or
    pruner.
    """
    _not_used(storage)
    name = _named(study_name)
    ways: Any = {"direction": direction, "directions": directions}  # Optuna checks a text
    with quiet():
        plain = optuna.create_study(sampler=sampler, pruner=pruner, **ways)
    places = Places.at(None)
    history = _history(places, name)
    if history is not None and not load_if_exists:
        raise DuplicatedStudyError(
            f"there is a study {name!r} in {places.root}; load_if_exists=True continues with it"
        )
    found = plain.directions if history is None else _directions(history)
    if (direction or directions) and plain.directions != found:
        kept = ", ".join(one.name.lower() for one in found)
        _LOG.warning(
            "the study '%s' is there with %s, which stays, as in Optuna; what was given is not"
            " used",
            name,
            kept,
        )
    study = Study(name, places, Mirror(name, found), plain.sampler, plain.pruner)
    if history is not None:
        _LOG.info("Using an existing study with name '%s' instead of creating a new one.", name)
        study.take(history)
    return study


def load_study(
    *,
    study_name: str,
    storage: Any = None,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
) -> Study:
    """Load an existing study, to which `optimize` adds trials. Raises KeyError if there is none."""
    _not_used(storage)
    places, name = Places.at(None), _named(study_name)
    history = _history(places, name)
    if history is None:
        raise KeyError(f"there is no study {name!r} in {places.root}")
    study = Study(name, places, Mirror(name, _directions(history)), sampler, pruner)
    study.take(history, wanted=history.total, queue=history.spec.enqueue)
    return study


def delete_study(*, study_name: str, storage: Any = None) -> None:
    """Remove a study. Raises KeyError if there is none of that name."""
    from regrow.flows.housekeeping.removal import remove

    _not_used(storage)
    places = Places.at(None)
    if _history(places, _named(study_name)) is None:
        raise KeyError(f"there is no study {study_name!r} in {places.root}")
    remove(places, _named(study_name))


def get_all_study_names(storage: Any = None) -> list[str]:
    """Return the names of the state root's studies."""
    _not_used(storage)
    return Places.at(None).experiments()


def _directions(history: History) -> list[StudyDirection]:
    return [
        StudyDirection.MINIMIZE if one.mode == "min" else StudyDirection.MAXIMIZE
        for one in history.spec.metrics
    ]


def _not_used(storage: Any) -> None:
    if storage is not None:
        _LOG.warning("storage is not used: studies are kept in %s", Places.at(None).root)


def _named(name: str | None) -> str:
    if name is None:
        return f"no-name-{uuid.uuid4()}"
    if re.fullmatch(NAME, name):
        return name
    made = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:63] or "study"
    _LOG.warning(
        "the study %r is called %r here: a name has letters, digits, '-', '_' and '.'", name, made
    )
    return made


def _history(places: Places, name: str) -> History | None:
    """Return an experiment's history, None if it does not exist."""
    history = replay(places.store(name), name)
    return history if history.created is not None else None
