"""An experiment as an object: what it says is what its log holds, also while that grows and where
users wrote what is shown.
"""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest

import regrow as rg
from regrow.figures import Figures
from regrow.infra.log import segments
from regrow.infra.log.log import Log
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.places import Places
from regrow.integrations.tune.results import ResultGrid
from regrow.search.events import Opened, Row, encode
from regrow.search.lifecycle import TrialState
from regrow.search.planning.simulator import Simulation
from regrow.show import figures
from regrow.tasks.checkpoint import saving
from tests.unit import exported
from tests.unit.fresh import printed
from tests.unit.told import kept as kept_rows


@pytest.fixture
def run() -> Simulation:
    """One with trials in many states."""
    return exported.unfinished()


@pytest.fixture
def result(run: Simulation, tmp_path: Path) -> rg.Result:
    """The same, opened."""
    exported.keep(tmp_path / "state", run.events)
    return rg.open("kinds", tmp_path / "state")


def test_an_experiment_is_opened_by_name_below_the_state_root(
    result: rg.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_STATE", str(tmp_path / "state"))
    assert repr(rg.open("kinds")) == repr(result)
    with pytest.raises(rg.UserError, match=r"there is no experiment 'kind' .*kinds"):
        rg.open("kind")


def points(rows: dict[int, list[tuple[int, Row]]]) -> list[dict[str, Any]]:
    """Rows by trial as `Result.points` says them."""
    return [
        {**row.metrics, "trial": number, "step": row.step, "attempt": attempt}
        for number in sorted(rows)
        for attempt, row in rows[number]
    ]


def test_what_it_says_is_what_the_log_holds(result: rg.Result, run: Simulation) -> None:
    history = run.history
    assert (result.name, result.status, result.spec) == ("kinds", "interrupted", history.spec)
    assert history.best is not None
    assert result.best is not None
    trial = history.trials[history.best]
    assert (result.best.trial, (result.best.value, result.best.step)) == (trial.number, trial.best)
    assert result.best.config == history.spec.space.nest(trial.config)
    rows = kept_rows(run.events)
    assert result.best.metrics == rows[trial.number][result.best.step - 1][1].metrics
    assert result.points() == points(rows)
    for ours, theirs in zip(result.trials, history.trials, strict=True):
        assert (ours.number, ours.state, ours.steps) == (
            theirs.number,
            theirs.state.value,
            theirs.step,
        )
        assert (ours.value, ours.step) == (theirs.best or (None, None))
        assert [(a.number, a.from_step, a.to_step) for a in ours.attempts] == [
            (a.number, a.from_step, a.to_step) for a in theirs.attempts
        ]
    failed = next(trial for trial in result.trials if trial.state == "failed")
    assert failed.attempts[-1].reason == "ValueError: =1+1\x1b[31m"
    assert failed.attempts[-1].cause == "error"


def test_it_reads_on_where_it_stopped(tmp_path: Path) -> None:
    run = exported.simulation().run(most_events=20)
    places = exported.keep(tmp_path, run.events)
    result = rg.open("kinds", str(tmp_path))
    before = result.trials
    known = len(run.events)
    run.run()
    log = Log.open(places.store("kinds"))
    log.claim([encode(event) for event in run.events[known : known + 3]])
    assert result.refresh() is result
    log.append([encode(event) for event in run.events[known + 3 :]])
    assert result.refresh().status == "finished" == rg.open("kinds", str(tmp_path)).status
    assert result.points() == points(kept_rows(run.events))
    assert len(before) < len(result.trials) == 12  # what was taken before stays what it was
    assert result.refresh().points() == result.points()


def test_a_last_segment_that_is_torn_is_read_once(tmp_path: Path) -> None:
    run = exported.simulation().run(most_events=30)
    places = exported.keep(tmp_path, run.events[:20])
    store = places.store("kinds")
    last = Log.open(store).last + 1
    whole = segments.encode(last, [encode(event) for event in run.events[20:30]], writer="w")
    (tmp_path / "kinds" / segments.Extent(last, last).key).write_bytes(whole[:-30])
    result = rg.open("kinds", str(tmp_path))
    expected = points(kept_rows(run.events[:29]))
    assert result.points() == expected
    assert result.refresh().points() == expected
    took = Opened(t=run.now, by="driver", driver="next", slots=3, trials=12)
    Log.open(store).claim([encode(took)])
    assert result.refresh().points() == expected
    assert result._history.sessions == 2


def test_it_runs_while_somebody_runs_it(result: rg.Result, tmp_path: Path) -> None:
    assert result.status == "interrupted"
    with driving(Places.at(str(tmp_path / "state")), "kinds"):
        assert result.refresh().status == "running"
    assert result.refresh().status == "interrupted"


def test_data_frames_are_the_trials_and_their_steps(result: rg.Result, run: Simulation) -> None:
    frame = result.dataframe()
    assert list(frame["trial"]) == [trial.number for trial in run.history.trials]
    assert list(frame["config.lr"]) == [trial.config["lr"] for trial in run.history.trials]
    best = result.best
    assert best is not None
    assert frame.loc[frame["value"].idxmax(), "trial"] == best.trial
    curve = result.history(best.trial)
    assert curve.index.name == "step"
    assert list(curve.columns) == ["attempt", "time", "score", "=cost", "loss"]
    assert curve["score"].max() == best.value == curve.loc[best.step, "score"]
    assert math.isnan(curve.loc[2, "loss"])
    everything = result.history()
    assert everything.index.names == ["trial", "step"]
    assert len(everything) == len(result.points())
    assert list(everything.loc[best.trial]["score"]) == list(curve["score"])
    for number in (-1, len(run.history.trials)):
        with pytest.raises(rg.UserError, match=f"no trial {number} in .*; it has the trials 0 to"):
            result.history(number)


def test_a_metric_with_the_name_of_a_column_keeps_its_place(tmp_path: Path) -> None:
    run = exported.simulation(
        lambda config, step: {"score": config["lr"], "time": 7.0 * step, "attempt": -1.0}
    ).run()
    exported.keep(tmp_path, run.events)
    curve = rg.open("kinds", str(tmp_path)).history(0)
    assert curve["attempt"].tolist() == [1] * len(curve)
    assert curve["metrics.attempt"].tolist() == [-1.0] * len(curve)
    assert curve["metrics.time"].iloc[0] == 7.0


# ---- checkpoints


@pytest.fixture
def saved(run: Simulation, result: rg.Result, tmp_path: Path) -> rg.Result:
    """The same, its checkpoints there: each has a file with the trial's number and the step."""
    store = Places.at(str(tmp_path / "state")).store("kinds")
    for trial in run.history.trials:
        for step, kept in trial.checkpoints.items():
            folder = tmp_path / "made"
            folder.mkdir()
            (folder / "model").write_text(f"{trial.number} {step}")
            done = saving.save(store, folder, trial=trial.number, attempt=kept.attempt, step=step)
            assert done.manifest == kept.manifest
            (folder / "model").unlink()
            folder.rmdir()
    return result


def test_the_best_checkpoint_is_restored_where_it_is_wanted(
    saved: rg.Result, tmp_path: Path
) -> None:
    best = saved.best
    assert best is not None
    assert best.checkpoint is not None
    assert Path(best.checkpoint).exists()
    step = (
        best.step
        if best.step in saved.trials[best.trial].checkpoints
        else max(saved.trials[best.trial].checkpoints)
    )
    assert best.load_checkpoint(tmp_path / "here") == tmp_path / "here"
    assert (tmp_path / "here" / "model").read_text() == f"{best.trial} {step}"
    for folder in (
        saved.load_checkpoint(),
        saved.load_checkpoint(best.trial),
        best.load_checkpoint(),
    ):
        assert (folder / "model").read_text() == f"{best.trial} {step}"
        (folder / "model").unlink()
        folder.rmdir()
    with pytest.raises(rg.UserError, match="here exists already"):
        saved.load_checkpoint(folder=tmp_path / "here")
    with pytest.raises(rg.UserError, match="model/x cannot be written"):
        saved.load_checkpoint(folder=tmp_path / "here" / "model" / "x")


def test_any_checkpoint_that_is_kept_can_be_had_and_no_other(
    saved: rg.Result, tmp_path: Path
) -> None:
    trial = max(saved.trials, key=lambda one: len(one.checkpoints))
    assert len(trial.checkpoints) > 1
    for step, address in trial.checkpoints.items():
        assert Path(address).exists()
        folder = saved.load_checkpoint(trial.number, step, tmp_path / str(step))
        assert (folder / "model").read_text() == f"{trial.number} {step}"
    kept = ", ".join(map(str, trial.checkpoints))
    with pytest.raises(
        rg.UserError, match=rf"does not have the checkpoint of step 77 \(kept: {kept}\)"
    ):
        saved.load_checkpoint(trial.number, 77)


def test_a_damaged_checkpoint_is_refused_and_leaves_nothing_behind(
    saved: rg.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    for blob in (tmp_path / "state" / "kinds" / "blobs").rglob("*"):
        if blob.is_file():
            blob.chmod(0o644)
            blob.write_bytes(b"X" + blob.read_bytes()[1:])
    for folder in (None, tmp_path / "here"):
        with pytest.raises(rg.UserError, match=r"cannot be restored: model: .*another hash"):
            saved.load_checkpoint(folder=folder)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not (tmp_path / "here").exists()


def test_before_the_first_report_there_is_no_best(tmp_path: Path) -> None:
    exported.keep(tmp_path, exported.simulation().events)
    result = rg.open("kinds", str(tmp_path))
    assert result.best is None
    assert len(result.dataframe()) == 3
    assert result.history(0).empty
    with pytest.raises(rg.UserError, match="no trial of 'kinds' has a best value yet"):
        result.load_checkpoint()
    assert "0 of 12" not in repr(result)
    assert "3 of 12 trials (3 running)" in repr(result)
    assert "<b>kinds</b>" in result._repr_html_()


# ---- figures, exports and notebooks


def test_every_figure_of_the_report_can_be_asked_for(result: rg.Result) -> None:
    named = {
        name
        for name, what in inspect.getmembers(Figures, inspect.isfunction)
        if not name.startswith("_")
    } - {"all"}
    assert named == set(figures.KINDS)
    made = result.figures.all()
    assert {"optimization_history", "learning_curves", "rungs"} <= set(made)
    assert "pareto_front" not in made
    for name in figures.KINDS:
        if name in made:
            assert getattr(result.figures, name)().to_dict().keys() == made[name].to_dict().keys()
        else:
            with pytest.raises(rg.UserError, match=f"there is no figure '{name}' to draw: .+"):
                getattr(result.figures, name)()


def test_a_report_a_study_and_event_files_can_be_written(result: rg.Result, tmp_path: Path) -> None:
    page = result.report(tmp_path / "report.html")
    assert page.read_text().startswith("<!")
    assert "kinds" in page.read_text()
    with pytest.raises(rg.UserError, match=r"nowhere/report\.html cannot be written"):
        result.report(tmp_path / "nowhere" / "report.html")
    study = result.to_optuna(f"sqlite:///{tmp_path / 'x.db'}", "mine")
    assert study.study_name == "mine"
    assert len(study.trials) == len(result.trials) == len(result.to_optuna().trials)
    assert len([p for p in result.to_tensorboard(tmp_path / "tb").iterdir() if p.is_dir()]) == len(
        result.trials
    )


def test_a_notebook_shows_a_table_in_which_nothing_of_the_users_is_markup(tmp_path: Path) -> None:
    space = {"<b>x</b>": {"choice": ["<script>alert(1)</script>", "&"]}}
    run = exported.simulation(
        lambda config, step: {"score": step}, space=space, trials=30, duplicates=True
    ).run()
    exported.keep(tmp_path, run.events)
    result = rg.open("kinds", str(tmp_path))
    best = result.best
    assert best is not None
    for page in (result._repr_html_(), best._repr_html_()):
        assert "<script>" not in page
        assert "<b>x" not in page
        assert "&lt;script&gt;" in page or "&amp;" in page
    assert result._repr_html_().count("<tr>") == 11  # the best ten and the head
    assert repr(result).startswith("<Result 'kinds': finished, 30 of 30 trials (")
    assert "best score" in repr(result)
    assert repr(best).startswith(
        f"BestResult(trial={best.trial}, value={best.value}, step={best.step}, config="
    )


def test_states_are_as_users_read_them(result: rg.Result) -> None:
    assert {trial.state for trial in result.trials} <= {state.value for state in TrialState}


def test_importing_regrow_loads_nothing_heavy_and_hides_no_builtin() -> None:
    code = (
        "import sys\nfrom regrow import *\nimport builtins\nassert open is builtins.open\n"
        "print(sorted({'pandas', 'optuna', 'plotly', 'ray', 'prefect', 'mlflow', 'numpy', 'matplotlib'} & set(sys.modules)))\n"
    )
    assert printed(code).strip() == "[]"


def test_a_metric_may_have_the_name_of_anything_that_a_log_has(tmp_path: Path) -> None:
    named = {"step": 10.0, "time": 5.0, "trial": 7.0, "attempt": 3.0, "rung": 1.0}
    run = exported.simulation(
        lambda config, step: {"score": step, **{key: value + step for key, value in named.items()}},
        trials=1,
    )
    exported.keep(tmp_path, run.run().events)
    result = rg.open("kinds", str(tmp_path))
    steps = result.trials[0].step or 0
    last = {key: value + steps for key, value in named.items()}
    told = ResultGrid(result)[0]
    assert {key: told.metrics[key] for key in named} == last
    assert told.value("step", "max", "last") == last["step"]
    assert {key: ResultGrid(result).get_dataframe()[key][0] for key in named} == last
    point = result.points()[-1]
    assert (point["trial"], point["step"], point["attempt"]) == (0, result.trials[0].step, 1)
    assert [point[f"metrics.{key}"] for key in ("trial", "step", "attempt")] == [
        last[key] for key in ("trial", "step", "attempt")
    ]
    assert (point["time"], point["rung"]) == (last["time"], last["rung"])
