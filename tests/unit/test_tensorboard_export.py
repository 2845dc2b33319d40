"""Event files for TensorBoard: each trial is a run, with every point once."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

from regrow.search.history import History
from regrow.show.exports import tensorboard
from regrow.tasks.errors import UserError
from regrow.tasks.trial.names import task_name
from tests.unit import exported
from tests.unit.exported import CONFIG, regrow
from tests.unit.told import its_rows, rows_of


def runs(folder: Path) -> dict[str, EventAccumulator]:
    """What TensorBoard reads, by run."""
    found = {}
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        found[run.name] = EventAccumulator(
            str(run), size_guidance={"scalars": 0, "tensors": 0}
        ).Reload()
    return found


def plugin(run: EventAccumulator, tag: str) -> Any:
    """One of the messages for the HParams page."""
    return run.SummaryMetadata(tag).plugin_data.content


def test_each_trial_is_a_run_with_every_point_once_at_its_time(
    unfinished_history: History, tmp_path: Path
) -> None:
    assert tensorboard.write(rows_of(unfinished_history), tmp_path / "tb") == len(
        unfinished_history.trials
    )
    found = runs(tmp_path / "tb")
    assert list(found) == [task_name(trial.number) for trial in unfinished_history.trials]
    for trial in unfinished_history.trials:
        run = found[task_name(trial.number)]
        its = its_rows(unfinished_history, trial)
        for name in ("score", "loss", "=cost") if its else ():
            points = [(e.wall_time, e.step, e.value) for e in run.Scalars(name)]
            assert [p[:2] for p in points] == [(row.t, row.step) for row in its]
            for (_, _, value), row in zip(points, its, strict=True):
                expected = row.metrics[name]
                assert (
                    math.isnan(value)
                    if expected is None
                    else value == pytest.approx(expected, rel=1e-6)
                )
        if trial.best is not None:
            (best,) = run.Scalars("best/score")
            assert (best.step, best.value) == (
                trial.best[1],
                pytest.approx(trial.best[0], rel=1e-6),
            )


def test_the_hparams_page_is_told_domains_values_states_and_metrics(
    unfinished_history: History, tmp_path: Path
) -> None:
    tensorboard.write(rows_of(unfinished_history), tmp_path / "tb")
    found = runs(tmp_path / "tb")
    experiment = metadata.parse_experiment_plugin_data(
        plugin(found["trial-0000"], metadata.EXPERIMENT_TAG)
    )
    told = {info.name: info for info in experiment.hparam_infos}
    assert list(told) == [name for name in CONFIG if name != "seed"]  # it is the same in all
    assert (told["lr"].domain_interval.min_value, told["lr"].domain_interval.max_value) == (
        1e-4,
        1e-1,
    )
    assert [value.string_value for value in iter(told["optimizer"].domain_discrete.values)] == [
        "sgd",
        "adam",
    ]
    assert told["mixed"].type == api_pb2.DATA_TYPE_STRING
    assert [m.name.tag for m in experiment.metric_infos] == ["best/score", "score", "=cost", "loss"]
    states = {
        "done": api_pb2.STATUS_SUCCESS,
        "stopped": api_pb2.STATUS_SUCCESS,
        "failed": api_pb2.STATUS_FAILURE,
    }
    for trial in unfinished_history.trials:
        run = found[task_name(trial.number)]
        start = metadata.parse_session_start_info_plugin_data(
            plugin(run, metadata.SESSION_START_INFO_TAG)
        )
        assert start.hparams["lr"].number_value == trial.config["lr"]
        assert ("momentum" in start.hparams) == (trial.config["optimizer"] == "sgd")
        if trial.attempts:
            end = metadata.parse_session_end_info_plugin_data(
                plugin(run, metadata.SESSION_END_INFO_TAG)
            )
            assert end.status == states.get(trial.state.value, api_pb2.STATUS_RUNNING)


def test_what_a_schedule_changed_is_a_curve(tmp_path: Path) -> None:
    history = exported.history(schedule={"pbt": {"perturbation_interval": 3}}, trials=8)
    tensorboard.write(rows_of(history), tmp_path / "tb")
    found = runs(tmp_path / "tb")
    changed = [
        trial
        for trial in history.trials
        if any(c.config["lr"] != trial.proposed["lr"] for c in trial.changes)
    ]
    assert changed
    for trial in changed:
        curve = {e.step: e.value for e in found[task_name(trial.number)].Scalars("config/lr")}
        assert list(curve) == list(range(1, trial.step + 1))
        for step, value in curve.items():
            before = [c.config for c in trial.changes if c.step < step]
            assert value == pytest.approx(
                (before[-1] if before else trial.proposed)["lr"], rel=1e-6
            )


def test_an_export_of_the_same_experiment_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    run = exported.simulation().run(most_events=40)
    tensorboard.write(rows_of(run.history), tmp_path / "tb")
    first = len(runs(tmp_path / "tb")["trial-0000"].Scalars("score"))
    run.run()
    (tmp_path / "tb" / "trial-0000" / "events.out.tfevents.1.mine").write_bytes(b"")
    tensorboard.write(rows_of(run.history), tmp_path / "tb")
    found = runs(tmp_path / "tb")
    assert len(found) == 12
    assert len(found["trial-0000"].Scalars("score")) == run.history.trials[0].step >= first
    # ours once, and what is not ours
    assert len(list((tmp_path / "tb" / "trial-0000").iterdir())) == 2


def test_a_folder_that_is_not_ours_is_left_alone(
    unfinished_history: History, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty, and not an export of this experiment"):
        tensorboard.write(rows_of(unfinished_history), tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    with pytest.raises(UserError, match="is a file"):
        tensorboard.write(rows_of(unfinished_history), tmp_path / "full" / "notes.txt")
    tensorboard.write(rows_of(unfinished_history), tmp_path / "tb")
    (tmp_path / "tb" / tensorboard.MARK).write_text('{"id": "another"}')
    with pytest.raises(UserError, match="holds the export of another experiment"):
        tensorboard.write(rows_of(unfinished_history), tmp_path / "tb")
    with pytest.raises(UserError, match="is no local folder"):
        tensorboard.write(rows_of(unfinished_history), "s3://bucket/tb")


@pytest.fixture
def _without_tensorboardx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name in [
            n
            for n in sys.modules
            if n.startswith("tensorboardX.") or n == "regrow.show.exports.tensorboard"
        ]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "tensorboardX", None)
        yield
    importlib.import_module("regrow.show.exports.tensorboard")


@pytest.mark.usefixtures("_without_tensorboardx")
def test_a_missing_tensorboardx_is_named_with_the_extra_that_has_it(
    unfinished_root: Path, tmp_path: Path
) -> None:
    done = regrow("export", "kinds", "--tensorboard", tmp_path / "tb", "--state", unfinished_root)
    assert isinstance(done.exception, UserError)
    assert "pip install 'regrow[tensorboard]'" in str(done.exception)
    assert not (tmp_path / "tb").exists()
