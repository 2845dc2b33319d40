"""What a script of Ray Tune's finds in its results: as it reported it, and in files of its own."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ray import tune

from regrow.experiment import store_trainable
from regrow.infra.state.places import Places
from regrow.integrations.tune.analysis import ExperimentAnalysis
from regrow.integrations.tune.results import Result, ResultGrid, opened
from regrow.search.events import Created, Opened, Proposed
from regrow.search.spec import Spec
from tests.unit import exported
from tests.unit.tuned import Tuned, translate, tuned

__all__ = ["tuned"]


def reporting(config: dict[str, Any]) -> None:
    for i in range(2):
        tune.report(
            {
                "score": float(i),
                "step": i * 10,
                "time": 5.0 + i,
                "trial": 7,
                "attempt": 3,
                "np": np.float32(1.5),
                "count": np.int64(2),
                "up": math.inf,
                "down": -math.inf,
                "nan": math.nan,
                "flag": True,
                "note": "text",
                "list": np.array([1.0, 2.0]),
                "nested": {"a": {"b": i}},
                "none": None,
                "half": "\ud800",
            }
        )


def test_what_was_reported_comes_back_as_it_was(tuned: Tuned) -> None:
    (result,) = tuned(reporting, {"lr": 0.1, "f": len})
    told = result.metrics
    assert told == {**told, "score": 1.0, "step": 10, "time": 6.0, "trial": 7, "attempt": 3}
    assert (told["up"], told["down"], told["flag"], told["note"]) == (
        math.inf,
        -math.inf,
        True,
        "text",
    )
    assert math.isnan(told["nan"])
    assert told["nested"] == {"a": {"b": 1}}
    assert (told["list"], told["none"]) == ([1.0, 2.0], None)
    types = {name: type(told[name]) for name in ("step", "count", "trial", "np", "up", "flag")}
    assert types == dict.fromkeys(types, int) | {"np": float, "up": float, "flag": bool}
    assert told["half"] == "?"
    assert told["training_iteration"] == 2
    assert type(told["training_iteration"]) is int
    assert told["done"] is True
    assert told["config"] == {"lr": 0.1, "f": len}
    frame = result.metrics_dataframe
    assert list(frame["step"]) == [0, 10]
    assert list(frame["up"]) == [math.inf, math.inf]
    assert list(frame["config/lr"]) == [0.1, 0.1]


def test_the_path_of_a_result_has_the_files_that_scripts_read(tuned: Tuned) -> None:
    grid = tuned(reporting, {"lr": tune.grid_search([0.1, 0.2]), "f": len})
    assert len({result.path for result in grid}) == 2
    for result in grid:
        folder = Path(result.path)
        assert folder.parent == Path(grid.experiment_path)
        params = json.loads((folder / "params.json").read_text())
        assert params == {"lr": result.config["lr"], "f": str(len)}
        lines = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
        assert [line["training_iteration"] for line in lines] == [1, 2]
        assert [line["nested"]["a"]["b"] for line in lines] == [0, 1]
        assert lines[-1]["config"]["lr"] == result.config["lr"]
        assert {"timestamp", "date", "time_total_s", "trial_id", "hostname"} < set(lines[0])
        table = pd.read_csv(folder / "progress.csv")
        assert list(table["nested/a/b"]) == [0, 1]
        assert list(table["score"]) == [0.0, 1.0]


def test_a_best_one_is_the_greatest_or_the_least_and_by_no_other_word(tuned: Tuned) -> None:
    grid = tuned(reporting, {"lr": tune.grid_search([0.1, 0.2])})
    with pytest.raises(ValueError, match="mode='maximize' is neither 'max' nor 'min'"):
        grid.get_best_result("score", "maximize")
    assert list(grid.get_dataframe("score", "min")["score"]) == [0.0, 0.0]
    assert list(grid.get_dataframe("score")["score"]) == [1.0, 1.0]  # the last ones, as in Ray


def test_names_that_look_alike_without_their_odd_letters_are_different_experiments(
    tuned: Tuned,
) -> None:
    names = ("a b", "a/b", "\u5b9e\u4e00", "\u5b9e\u4e8c")
    grids = [tuned(reporting, {"lr": 0.1}, run=tune.RunConfig(name=name)) for name in names]
    assert len({grid.experiment_path for grid in grids}) == len(names)
    root = Path(grids[0].experiment_path).parent
    assert opened(f"{root}/a b").name == Path(grids[0].experiment_path).name


def failing_once(config: dict[str, Any]) -> None:
    start = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "step").read_text()) + 1
    for step in range(start, 4):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            files = tune.Checkpoint.from_directory(folder)
            tune.report({"score": step, "start": start}, checkpoint=files)
        if (step, start) == (1, 0):
            raise RuntimeError("once")


def test_after_a_failure_each_step_is_there_once_with_the_attempt_that_counts(
    tuned: Tuned,
) -> None:
    run = tune.RunConfig(name="again", failure_config=tune.FailureConfig(max_failures=2))
    (result,) = tuned(failing_once, {"a": 1}, run=run)
    frame = result.metrics_dataframe
    assert list(frame["score"]) == [0, 1, 2, 3]
    assert list(frame["start"]) == [0, 0, 2, 2]
    assert list(frame["iterations_since_restore"]) == [1, 2, 1, 2]
    assert Result.from_path(result.path).metrics["score"] == 3
    assert ExperimentAnalysis(str(Path(result.path).parent)).get_best_trial("score", "max")


def test_another_process_reads_configurations_with_what_no_log_can_hold(tmp_path: Path) -> None:
    late: Any = tune.sample_from
    found = translate(reporting, {"f": len, "x": 2, "y": late(lambda spec: spec.config.x + 1)})
    store = Places.at(str(tmp_path)).store("tuned")
    code = store_trainable(store, found.trainable)
    spec = Spec.parse({"trainable": "pickled", **found.options})
    exported.keep(
        tmp_path,
        [
            Created(t=1.0, id="i", spec=spec.to_json()),
            Opened(t=2.0, by="driver", driver="d", slots=1, trials=1, code=code),
            Proposed(t=3.0, trial=0, config={"x": 2, "trial": 0}),
        ],
    )
    (result,) = ResultGrid.from_path(f"{tmp_path}/tuned")
    assert result.config == {"f": len, "x": 2, "y": 3}
