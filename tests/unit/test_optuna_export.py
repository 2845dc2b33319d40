"""An experiment as a study of Optuna's: every trial is there, as it was, and a database is written
whole or not at all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import MetaData, create_engine, select

from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.search.samplers.optuna_study_model import quiet
from regrow.show.exports.optuna_study import study
from regrow.tasks.errors import UserError
from tests.unit import exported
from tests.unit.figured import run
from tests.unit.told import its_rows

SEVERAL: dict[str, Any] = {
    "metric": [{"name": "score", "mode": "max"}, {"name": "=cost", "mode": "min"}],
    "mode": None,
    "schedule": "fifo",
}


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with quiet():
        yield


def test_a_trial_is_there_under_its_number_with_its_state_value_and_curve(
    unfinished_history: History,
) -> None:
    expected = {
        "done": TrialState.COMPLETE,
        "stopped": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }
    made = study(unfinished_history)
    assert made.study_name == "kinds"
    assert made.directions == [optuna.study.StudyDirection.MAXIMIZE]
    assert made.metric_names == ["score"]
    assert len(made.trials) == len(unfinished_history.trials)
    for ours, theirs in zip(unfinished_history.trials, made.trials, strict=True):
        assert theirs.number == ours.number
        assert theirs.state == expected.get(
            ours.state.value, TrialState.RUNNING if ours.attempts else TrialState.WAITING
        )
        assert theirs.intermediate_values == dict(enumerate(ours.values, start=1))
        if theirs.state in (TrialState.COMPLETE, TrialState.PRUNED):
            assert ours.best is not None
            assert theirs.value == ours.best[0]
        assert theirs.user_attrs["regrow.state"] == ours.state.value
    failed = next(t for t in made.trials if t.state is TrialState.FAIL)
    assert failed.user_attrs["regrow.reason"] == "ValueError: =1+1\x1b[31m"
    states = {t.state for t in made.trials}
    assert states >= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING}


@pytest.mark.parametrize(
    "steps", [[0, 7.7, 1e-13], [1, 1e16, 1e16], [-9007199254740989, 1, 9007199254740988]]
)
def test_steps_finer_than_optuna_tells_apart_are_a_range(steps: list[float]) -> None:
    space = {"x": {"quniform": steps}}
    made = study(run(space=space, value=lambda config, _: config["x"]).history)
    assert made.best_value == made.best_params["x"]


def test_times_are_those_of_the_attempts_in_local_time(unfinished_history: History) -> None:
    for ours, theirs in zip(
        unfinished_history.trials, study(unfinished_history).trials, strict=True
    ):
        if theirs.datetime_start is not None:
            first = ours.attempts[0]
            assert theirs.datetime_start.timestamp() == (
                first.t_started if first.t_began is None else first.t_began
            )
        assert (theirs.datetime_complete is not None) == ours.state.final
        if theirs.datetime_complete is not None:
            assert theirs.datetime_complete.timestamp() == ours.attempts[-1].t_ended


def test_parameters_are_the_configuration_and_absent_where_their_condition_does_not_hold(
    unfinished_history: History,
) -> None:
    seen = set()
    for ours, theirs in zip(
        unfinished_history.trials, study(unfinished_history).trials, strict=True
    ):
        plain = {k: v for k, v in ours.proposed.items() if k not in ("mixed", "seed")}
        assert {k: v for k, v in theirs.params.items() if k != "mixed"} == plain
        assert ("momentum" in theirs.params) == (theirs.params["optimizer"] == "sgd")
        seen.add((theirs.params["mixed"], repr(ours.proposed["mixed"])))
    # 1, True and "1" are three choices, of which Optuna would take the first two for the same.
    assert {word for word, _ in seen} <= {"1", "true", '"1"', "null", "[1, 2]", '{"a": 1}'}
    assert len({word for word, _ in seen}) == len(seen) > 3
    assert study(unfinished_history).user_attrs["regrow.constants"] == {"seed": 3}


@pytest.mark.parametrize(
    ("values", "choices"),
    [
        ([1, True], ("1", "true")),
        ([1, "1"], (1, "1")),
        ([None, 0.5], (None, 0.5)),
        ([[1], "[1]"], ("[1]", '"[1]"')),
    ],
)
def test_choices_stay_as_many_as_they_are(values: list[Any], choices: tuple[Any, ...]) -> None:
    history = exported.history(
        lambda config, step: {"score": step}, space={"x": {"choice": values}}, trials=6
    )
    made = study(history)
    assert {trial.distributions["x"] for trial in made.trials} == {
        optuna.distributions.CategoricalDistribution(choices)
    }
    for ours, theirs in zip(history.trials, made.trials, strict=True):
        place = next(
            n
            for n, value in enumerate(values)
            if value is ours.config["x"] or repr(value) == repr(ours.config["x"])
        )
        assert repr(theirs.params["x"]) == repr(choices[place])


def test_a_normal_parameter_is_a_range_that_holds_all_that_was_tried() -> None:
    history = exported.history(
        lambda config, step: {"score": config["x"] + step},
        space={"x": {"normal": [0.0, 1.0]}},
        points=[{"x": 40.0}],
    )
    made = study(history)
    distribution: Any = made.trials[0].distributions["x"]
    assert made.trials[0].params["x"] == 40.0 == distribution.high
    assert distribution.low == -5.0
    assert any("x" in note and "normal" in note for note in made.user_attrs["regrow.notes"])


def test_what_population_based_training_changed_is_an_attribute() -> None:
    history = exported.history(schedule={"pbt": {"perturbation_interval": 3}}, trials=8)
    changed = [trial for trial in history.trials if trial.changes]
    made = study(history)
    assert changed
    for trial in changed:
        theirs = made.trials[trial.number]
        assert theirs.params["lr"] == trial.proposed["lr"]
        told = theirs.user_attrs["regrow.changes"]
        assert [(c["after_step"], c["config"]["lr"]) for c in told] == [
            (c.step, c.config["lr"]) for c in trial.changes
        ]
        assert [c.get("weights_of") for c in told] == [c.source for c in trial.changes]
    assert any("regrow.changes" in note for note in made.user_attrs["regrow.notes"])


def test_several_metrics_are_the_values_at_the_last_step_each_with_its_direction() -> None:
    history = exported.history(**SEVERAL)
    made = study(history)
    assert [d.name for d in made.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert made.metric_names == ["score", "=cost"]
    for ours, theirs in zip(history.trials, made.trials, strict=True):
        last = its_rows(history, ours)[-1].metrics
        assert theirs.values == [last["score"], last["=cost"]]
    done = {t.number for t in history.trials if t.state.value == "done"}
    assert {t.number for t in made.best_trials} <= done


def test_a_trial_without_a_value_that_can_be_compared_has_failed_in_optunas_eyes() -> None:
    metrics = [{"name": "score", "mode": "max"}, {"name": "loss", "mode": "min"}]
    history = exported.history(metric=metrics, mode=None, max_steps=2, schedule="fifo")
    made = study(history)
    assert {t.state.value for t in history.trials} == {"done"}  # its loss at step 2 is not finite
    assert {t.state for t in made.trials} == {TrialState.FAIL}
    assert {t.user_attrs["regrow.state"] for t in made.trials} == {"done"}


def test_constraints_are_violations_at_the_step_of_the_value() -> None:
    history = exported.history(constraints=["=cost <= 8", "absent <= 1"], schedule="fifo")
    made = study(history)
    assert history.best is None  # nothing ever meets the second
    for ours, theirs in zip(history.trials, made.trials, strict=True):
        step = theirs.user_attrs["regrow.value_at_step"]
        assert (
            theirs.value == its_rows(history, ours)[step - 1].metrics["score"] == max(ours.values)
        )
        assert theirs.constraints == {"0": 2.0 * step - 8.0, "1": sys.float_info.max}
    feasible = exported.history(constraints=["=cost <= 8"], schedule="fifo")
    assert all(
        t.user_attrs["regrow.value_at_step"] == 4 and t.constraints["0"] == 0.0
        for t in study(feasible).trials
    )


def test_addresses_of_checkpoints_are_whole_where_the_state_root_is_known(
    unfinished_history: History, tmp_path: Path
) -> None:
    for places in (Places.at(str(tmp_path)), Places(root="s3://bucket/runs?x=1")):
        found = [
            t.user_attrs["regrow.checkpoint"]
            for t in study(unfinished_history, places=places).trials
            if "regrow.checkpoint" in t.user_attrs
        ]
        base, mark, rest = places.root.partition("?")
        assert found
        assert all(
            one.startswith(f"{base}/kinds/manifests/") and one.endswith(f".json{mark}{rest}")
            for one in found
        )


def test_an_experiment_without_a_trial_is_an_empty_study() -> None:
    assert study(exported.empty()).trials == []


# ---- in a database


def rows(file: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    engine, known = create_engine(f"sqlite:///{file}"), MetaData()
    known.reflect(engine)
    with engine.connect() as connection:
        found = {
            name: sorted(map(tuple, connection.execute(select(table))), key=repr)
            for name, table in known.tables.items()
        }
    engine.dispose()
    return found


@pytest.mark.parametrize(
    "changes", [{}, SEVERAL, {"constraints": ["=cost <= 8"]}], ids=["one", "several", "constraints"]
)
def test_a_database_has_row_for_row_what_optuna_itself_would_write(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    made = study(exported.history(trials=6, **changes))
    theirs = optuna.create_study(
        study_name=made.study_name,
        directions=made.directions,
        storage=f"sqlite:///{tmp_path / 'theirs.db'}",
    )
    for key, value in made.user_attrs.items():
        theirs.set_user_attr(key, value)
    theirs.set_metric_names(made.metric_names or [])
    theirs.add_trials(made.trials)
    written = study(
        exported.history(trials=6, **changes), storage=f"sqlite:///{tmp_path / 'ours.db'}"
    )
    assert written.study_name == made.study_name
    ours = rows(tmp_path / "ours.db")
    expected = rows(tmp_path / "theirs.db")
    assert {k: len(v) for k, v in ours.items()} == {k: len(v) for k, v in expected.items()}
    for table in expected:
        # The first column is a counter, and means nothing but in these three, to which others
        # refer.
        cut = 0 if table in ("studies", "trials", "version_info", "alembic_version") else 1
        assert sorted((row[cut:] for row in ours[table]), key=repr) == sorted(
            (row[cut:] for row in expected[table]), key=repr
        ), table


def test_a_name_that_a_database_cannot_hold_is_refused(
    unfinished_history: History, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        study(unfinished_history, storage=f"sqlite:///{tmp_path / 'x.db'}", name="\udcff")


def test_what_is_read_back_is_what_was_written(unfinished_history: History, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    made, found = (
        study(unfinished_history),
        study(unfinished_history, storage=url, name="other name"),
    )
    assert found.study_name == "other name"
    again = optuna.load_study(study_name="other name", storage=url)
    for ours, theirs in zip(made.trials, again.trials, strict=True):
        for field in (
            "number",
            "state",
            "values",
            "params",
            "distributions",
            "user_attrs",
            "intermediate_values",
            "datetime_start",
        ):
            assert getattr(theirs, field) == getattr(ours, field), field
    assert again.best_value == made.best_value
    assert again.metric_names == made.metric_names


def test_a_study_of_that_name_is_not_touched_nor_is_any_other(
    unfinished_history: History, tmp_path: Path
) -> None:
    file = tmp_path / "x.db"
    other = optuna.create_study(study_name="mine", storage=f"sqlite:///{file}")
    other.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    study(unfinished_history, storage=f"sqlite:///{file}")
    before = rows(file)
    for name in ("kinds", "mine"):
        with pytest.raises(
            UserError, match=f"has a study '{name}' already, and nothing is overwritten"
        ):
            study(unfinished_history, storage=f"sqlite:///{file}", name=name)
    assert rows(file) == before
    assert [
        t.params for t in optuna.load_study(study_name="mine", storage=f"sqlite:///{file}").trials
    ] == [t.params for t in other.trials]


def test_a_writer_that_is_killed_leaves_nothing_of_the_study(tmp_path: Path) -> None:
    killed = (
        "import os, sys\n"
        "from regrow.show.exports import optuna_database\n"
        "from regrow.show.exports.optuna_study import study\n"
        "from tests.unit import exported\n"
        "optuna_database._steps = lambda trial: os.kill(os.getpid(), 9)\n"  # the last table
        "study(exported.history(trials=3), storage=sys.argv[1])\n"
    )
    url = f"sqlite:///{tmp_path / 'x.db'}"
    done = subprocess.run(
        [sys.executable, "-c", killed, url], check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -9
    assert rows(tmp_path / "x.db")["trials"] == []
    assert optuna.get_all_study_names(url) == []
    assert len(study(exported.history(trials=3), storage=url).trials) == 3


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+nosuch://me:sesame@127.0.0.1:1/db",
        "postgresql+nosuch://me:ses/ame@127.0.0.1:1/db",
        "nosuch://127.0.0.1/db?user=me&password=sesame",
        "me:sesame@127.0.0.1/db",
        "postgresql://me:s@same@127.0.0.1/db",
        "mysql://me:s@same@127.0.0.1:port/db?password=sesame",
        "mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3Dsesame",
    ],
)
def test_a_password_is_in_no_message(url: str, unfinished_history: History) -> None:
    with pytest.raises(UserError) as error:
        study(unfinished_history, storage=url)
    assert "ame" not in str(error.value).replace("name", "")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "postgresql://me:sesame@h/db",
            "postgresql://me:***@h/db needs a driver that is not installed: pip install 'psycopg2-binary'",
        ),
        (
            "mysql://me:sesame@h/db",
            "mysql://me:***@h/db needs a driver that is not installed: pip install 'mysqlclient'",
        ),
        (
            "mysql+pymysql://me@h/db",
            "mysql+pymysql://me@h/db needs a driver that is not installed: pip install 'PyMySQL'",
        ),
        (
            "mssql+pyodbc://me@h/db",
            "mssql+pyodbc://me@h/db needs a driver that is not installed: pip install 'pyodbc'",
        ),
        (
            "postgres://h/db",
            "postgres://h/db: 'postgres' is no kind of database that SQLAlchemy knows; write postgresql://...",
        ),
        (
            "postgresql+asyncpg://h/db",
            "postgresql+asyncpg://h/db: asyncpg is a driver for asyncio; write postgresql://h/db",
        ),
        ("mysql://h:port/db", "mysql://h:port/db is no URL of a database; write sqlite:///FILE.db"),
        ("sqlite:////dev", "/dev is a folder; write sqlite:///FILE.db"),
        ("sqlite:////dev/zero", "/dev/zero is no file; write sqlite:///FILE.db"),
    ],
)
def test_a_database_that_nothing_here_can_speak_to_is_refused_in_a_line(
    url: str, said: str, unfinished_history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in ("psycopg", "psycopg2", "MySQLdb", "pymysql", "pyodbc"):
        monkeypatch.setitem(sys.modules, driver, None)  # as if not installed
    with pytest.raises(UserError) as error:
        study(unfinished_history, storage=url)
    assert str(error.value) == said


def test_a_database_that_cannot_be_used_is_named(
    unfinished_history: History, tmp_path: Path
) -> None:
    (tmp_path / "text.db").write_text(
        "no database, but a text that is long enough to be looked at\n" * 50
    )
    for url, said in (
        ("x.db", "is no URL of a database; write sqlite:///FILE.db"),
        ("sqlite://", "is kept in memory and would be lost; write sqlite:///FILE.db"),
        (f"sqlite:///{tmp_path}/nowhere/x.db", "unable to open database file"),
        (f"sqlite:///{tmp_path}/text.db", "file is not a database"),
    ):
        with pytest.raises(UserError, match=said):
            study(unfinished_history, storage=url)
    assert (tmp_path / "text.db").read_text().startswith("no database")
