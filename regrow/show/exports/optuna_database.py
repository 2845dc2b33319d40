"""Writes a study into an Optuna database, in one transaction.

Optuna's API queries before each insert, and takes 1.6 ms for each step of each trial; this takes 20
us. The rows are identical (a test compares every table), and are written through Optuna's engine
and models.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial
from sqlalchemy import insert, make_url, select
from sqlalchemy.exc import IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from regrow.search.secret import is_secret
from regrow.show.exports.optuna_private import models
from regrow.tasks.errors import UserError
from regrow.tasks.process.addresses import redacted

_PACKAGES = {
    "MySQLdb": "mysqlclient",
    "mysql": "mysql-connector-python",
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "pymysql": "PyMySQL",
    "cx_Oracle": "cx-Oracle",
}
"""Packages of modules that have another name."""
_WRITTEN = {"postgres": "postgresql", "sqlite3": "sqlite"}
"""Intended names for those that SQLAlchemy does not know."""


def copy(study: optuna.Study, source: BaseStorage, url: str) -> optuna.Study:
    """Copy the study, held by `source`, into the database at `url` (an SQLAlchemy URL), which may
    contain other studies.

    Raises UserError if the database cannot be used, or already has a study of that name; then
    nothing is written.
    """
    if "://" not in url:
        raise UserError(
            f"{re.sub(':.*@', ':***@', url)} is no URL of a database; write sqlite:///FILE.db"
        )
    if re.fullmatch(r"sqlite(\+\w+)?://(/(:memory:)?)?", url):
        raise UserError(f"{url} is kept in memory and would be lost; write sqlite:///FILE.db")
    _checked(url)
    try:
        storage = RDBStorage(url)
    except Exception as error:  # noqa: BLE001 - errors of SQLAlchemy and Alembic, and a RuntimeError for tables of another version
        raise UserError(f"{shown_url(url)} cannot be opened: {_first_line(error)}") from None
    try:
        with Session(storage.engine) as session, session.begin():
            _insert(session, study, source)
    except DuplicatedStudyError:
        hint = "choose another name (--study-name), or delete that one with `optuna delete-study`"
        problem = f"{shown_url(url)} has a study {study.study_name!r} already"
        raise UserError(f"{problem}, and nothing is overwritten; {hint}") from None
    except (SQLAlchemyError, UnicodeEncodeError) as error:  # a name of half a surrogate pair
        raise UserError(f"{shown_url(url)} cannot be written: {_first_line(error)}") from None
    return optuna.load_study(study_name=study.study_name, storage=storage)


def shown_url(url: str) -> str:
    """Return the URL for messages, with all passwords hidden."""
    try:
        parts = make_url(url)
    except (SQLAlchemyError, ValueError):
        # Passwords may contain unescaped characters: hide everything up to the last @, and omit
        # what follows a question mark.
        return re.sub(r"(://[^:/@]*):[^?]*@", r"\1:***@", url.partition("?")[0])
    hidden = {
        name: "***" if is_secret(name) or name == "odbc_connect" else value
        for name, value in parts.query.items()
    }
    rendered = parts.set(query=hidden).render_as_string(hide_password=True)
    # Up to the last @: a password may contain an unescaped one.
    return re.sub(r"(://[^:/@]*):[^?]*@", r"\1:***@", rendered.replace("%2A%2A%2A", "***"))


def _checked(url: str) -> None:
    """Raise UserError for a database that no installed driver supports, before connecting."""
    try:
        parts = make_url(url)
        dialect = parts.get_dialect()
        dialect.import_dbapi()
    except NoSuchModuleError:
        kind = url.partition("://")[0]
        meant = _WRITTEN.get(kind, "postgresql, mysql or sqlite")
        raise UserError(
            f"{shown_url(url)}: {kind!r} is no kind of database that SQLAlchemy knows; write"
            f" {meant}://..."
        ) from None
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        package = _PACKAGES.get(module, module)
        raise UserError(
            f"{shown_url(url)} needs a driver that is not installed: pip install '{package}'"
        ) from None
    except (SQLAlchemyError, ValueError):
        raise UserError(
            f"{shown_url(url)} is no URL of a database; write sqlite:///FILE.db"
        ) from None
    # Part of the password, which the driver would report as the host's name.
    if parts.host is not None and "@" in parts.host:
        raise UserError(
            f"{shown_url(url)}: an @ of the user's name or the password is written as %40"
        )
    if dialect.is_async:
        plain = parts.set(drivername=parts.get_backend_name())
        meant = shown_url(plain.render_as_string(hide_password=True))
        driver = f"{parts.get_driver_name()} is a driver for asyncio"
        raise UserError(f"{shown_url(url)}: {driver}; write {meant}")
    if parts.get_backend_name() == "sqlite" and parts.database and not parts.query:
        _check_database(Path(parts.database))


def _check_database(file: Path) -> None:
    """Raise UserError for a file that sqlite would wait for, or could not open."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise UserError(
            f"{file} is {'a folder' if stat.S_ISDIR(mode) else 'no file'}; write sqlite:///FILE.db"
        )


def _first_line(error: BaseException) -> str:
    deepest = error
    while deepest.__cause__ is not None:
        deepest = deepest.__cause__
    return redacted(str(deepest).strip().partition("\n")[0] or type(deepest).__name__)


def _insert(session: Session, study: optuna.Study, source: BaseStorage) -> None:
    same = models.StudyModel.study_name == study.study_name
    if session.scalar(select(models.StudyModel).where(same)) is not None:
        raise DuplicatedStudyError
    directions = [
        models.StudyDirectionModel(objective=n, direction=d) for n, d in enumerate(study.directions)
    ]
    made = models.StudyModel(study_name=study.study_name, directions=directions)
    session.add(made)
    try:
        session.flush()
    except IntegrityError:  # another process was faster
        raise DuplicatedStudyError from None
    # The names of metrics.
    noted = source.get_study_system_attrs(source.get_study_id_from_name(study.study_name))
    of_study = {"study_id": made.study_id}
    for table, attributes in (
        (models.StudyUserAttributeModel, study.user_attrs),
        (models.StudySystemAttributeModel, noted),
    ):
        _rows(session, table, [{**of_study, **row} for row in _attributes(attributes)])
    trials = study.get_trials(deepcopy=False)
    rows = [
        models.TrialModel(
            number=trial.number,
            study_id=made.study_id,
            state=trial.state,
            datetime_start=trial.datetime_start,
            datetime_complete=trial.datetime_complete,
        )
        for trial in trials
    ]
    session.add_all(rows)
    session.flush()
    numbered = [(row.trial_id, trial) for row, trial in zip(rows, trials, strict=True)]
    for table, of_trial in (
        (models.TrialParamModel, _params),
        (models.TrialValueModel, _values),
        (models.TrialUserAttributeModel, lambda trial: _attributes(trial.user_attrs)),
        (models.TrialSystemAttributeModel, lambda trial: _attributes(trial.system_attrs)),
        (models.TrialIntermediateValueModel, _steps),
    ):
        found = [{"trial_id": n, **row} for n, trial in numbered for row in of_trial(trial)]
        _rows(session, table, found)


def _rows(session: Session, table: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        session.execute(insert(table), rows)


def _attributes(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key, value in found.items():
        yield {"key": key, "value_json": json.dumps(value)}


def _params(trial: FrozenTrial) -> Iterator[dict[str, Any]]:
    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        yield {
            "param_name": name,
            "param_value": distribution.to_internal_repr(value),
            "distribution_json": distribution_to_json(distribution),
        }


def _values(trial: FrozenTrial) -> Iterator[dict[str, Any]]:
    for objective, value in enumerate(trial.values or ()):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        yield {"objective": objective, "value": stored, "value_type": kind}


def _steps(trial: FrozenTrial) -> Iterator[dict[str, Any]]:
    to_stored = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr
    for step, value in trial.intermediate_values.items():
        stored, kind = to_stored(value)
        yield {"step": step, "intermediate_value": stored, "intermediate_value_type": kind}
