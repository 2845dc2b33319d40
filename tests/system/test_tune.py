"""A script of Ray Tune's by `regrow tune`: a worker and the driver are killed, and what it prints
at its end is the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.system.conftest import Desk, await_no_process
from tests.system.test_losses import kill

SCRIPT = """
import json, os, sys, tempfile, time
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

FOLDER = os.path.dirname(os.path.abspath(__file__))

def train(config):
    step, score = 0, 0.0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = json.load(open(os.path.join(folder, "state.json")))
            step, score = state["step"], state["score"]
    while True:
        while os.path.exists(os.path.join(FOLDER, f"hold-{step}")):
            time.sleep(0.05)
        step, score = step + 1, score + config["lr"] * config["scale"][0]
        with tempfile.TemporaryDirectory() as folder:
            json.dump({"step": step, "score": score}, open(os.path.join(folder, "state.json"), "w"))
            tune.report({"score": score, "nested": {"step": step}}, checkpoint=tune.Checkpoint.from_directory(folder))

class Told(tune.Callback):
    def __init__(self):
        self.results, self.over = set(), set()
    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results.add((trial.trial_id, result["training_iteration"], result["score"]))
    def on_trial_complete(self, iteration, trials, trial, **info):
        self.over.add(str({trial: trial}[trial]))

told = Told()
results = tune.Tuner(
    train,
    param_space={"lr": 0.1, "scale": tune.grid_search([[1.0], [2.0], [3.0]])},
    tune_config=tune.TuneConfig(
        metric="score", mode="max", max_concurrent_trials=1,
        scheduler=PopulationBasedTraining(
            "training_iteration", perturbation_interval=3, hyperparam_mutations={"lr": tune.uniform(0.01, 1.0)}
        ),
    ),
    run_config=tune.RunConfig(name="population", stop={"training_iteration": 9}, callbacks=[told]),
).fit()
best = results.get_best_result()
with best.checkpoint.as_directory() as folder:
    assert json.load(open(os.path.join(folder, "state.json")))["score"] == best.metrics["score"]
print("told", len(told.results) >= 27, sorted(told.over) == sorted(r.trial_id for r in results))
print("END", best.config["scale"], best.metrics["nested"], [(r.config["lr"], r.metrics["score"]) for r in results], results.num_errors)
"""


def last_words(said: str) -> list[str]:
    assert "told True True" in said, said
    return re.findall("END .*", said)


# By day tests/unit/test_tune_bodies.py has populations of Ray Tune, test_crash_equivalence.py loses
# workers and driver of one, and the next tests but one run `regrow tune`.
@pytest.mark.nightly
@pytest.mark.usefixtures("shared_prefect")
def test_a_population_of_ray_tune_whose_worker_and_driver_are_killed_ends_as_one_that_is_left_alone(
    desk: Desk,
) -> None:
    script = desk.folder / "script.py"
    script.write_text(SCRIPT)
    calm = desk.run("tune", "--name", "calm", script).stdout
    # Each kill comes between two decisions, which are at every third step. One that costs the
    # checkpoint of such a step leaves another trial older weights to take over, which is as right.
    first, second = (desk.folder / f"hold-{step}" for step in (2, 4))
    first.touch()
    second.touch()
    process = desk.start("tune", script)
    desk.await_events("population", "saved", 2, process)
    kill(desk.folder, "ray::trial-")
    first.unlink()
    desk.await_events("population", "saved", 10, process)
    process.kill()
    process.communicate()
    assert await_no_process(desk.folder) == []
    second.unlink()
    end = desk.run("tune", script).stdout
    assert last_words(end) == last_words(calm) != []
    assert any(
        event["event"] == "decided" and event.get("source") is not None
        for event in desk.events("calm")
    ), "nobody exploited"
    causes = [
        event.get("cause") for event in desk.events("population") if event["event"] == "ended"
    ]
    assert "infrastructure" in causes
    assert "preempted" in causes
    again = desk.run("tune", script).stdout
    assert "population is finished already" in again
    assert last_words(again) == last_words(end)
    for name in ("calm", "population"):
        desk.look("verify", name)
    await_no_process(desk.folder)


@pytest.mark.nightly
def test_a_class_of_ray_tunes_goes_on_and_a_failed_trial_is_one_of_its_results(desk: Desk) -> None:
    script = desk.folder / "classes.py"
    script.write_text("""
import json, os
from ray import tune

class Model(tune.Trainable):
    def setup(self, config, offset=0):
        self.x, self.offset = 0, offset
    def step(self):
        if self.config["a"] == 3 and self.x == 2:
            raise ValueError("three is too much")
        self.x += self.config["a"]
        return {"score": self.x + self.offset, "note": "text"}
    def save_checkpoint(self, folder):
        return {"x": self.x}
    def load_checkpoint(self, state):
        self.x = state["x"]

def fails(config):
    tune.report({"score": 1})
    if not os.path.exists(os.environ["MENDED"]):
        raise ValueError("no more")
    tune.report({"score": 2})

analysis = tune.run(
    tune.with_parameters(Model, offset=100), config={"a": tune.grid_search([1, 2])}, metric="score", mode="min",
    stop={"training_iteration": 4}, name="classes",
)
print("RUN", analysis.best_config, analysis.best_result["score"], len(analysis.results_df), analysis.best_checkpoint is not None)
grid = tune.Tuner(fails, run_config=tune.RunConfig(name="fails")).fit()
print("GRID", grid.num_errors, isinstance(grid[0].error, ValueError), "no more" in str(grid[0].error))
restored = tune.Tuner.restore(grid.experiment_path, fails)
print("CAN", tune.Tuner.can_restore(grid.experiment_path), tune.Tuner.can_restore(".regrow/nothing"), len(restored.get_results()))
open(os.environ["MENDED"], "w").close()
grid = tune.Tuner.restore(grid.experiment_path, fails, resume_errored=True).fit()
print("AGAIN", grid.num_errors, grid[0].metrics["score"])
os.remove(os.environ["MENDED"])
try:
    tune.run(fails, name="fails-too")
except tune.TuneError as error:
    print("RAISED", error.args[0])
""")
    said = desk.run("tune", script, MENDED=str(desk.folder / "mended")).stdout
    assert "AGAIN 0 2\n" in said
    assert "RUN {'a': 1} 104 2 True" in said
    assert "GRID 1 True True" in said
    assert "CAN True False 1" in said
    assert "RAISED Trials did not complete" in said


def test_what_cannot_run_is_said_with_its_line_and_nothing_is_started(desk: Desk) -> None:
    script = desk.folder / "wrong.py"
    script.write_text(
        "from ray import tune\n\ntune.Tuner(print, tune_config=tune.TuneConfig(num_samples=-1)).fit()\n"
    )
    done = desk.run("tune", script, expect=2)
    assert done.stderr.strip().endswith(
        "num_samples: -1: never ends; give time_budget_s as well, or a number"
    )
    assert f"{script}, line 3: " in done.stderr
    script.write_text("1 / 0\n")
    assert "ZeroDivisionError" in desk.run("tune", script, expect=1).stderr
    assert (
        desk.run("tune", desk.folder / "none.py", expect=2).stderr.strip()
        == f"regrow: there is no file {desk.folder / 'none.py'}"
    )
    assert not list(desk.folder.glob(".regrow/*"))


@pytest.mark.usefixtures("shared_prefect")
def test_a_metric_that_no_report_has_is_an_error_of_the_script_as_in_ray_tune(desk: Desk) -> None:
    script = desk.folder / "metric.py"
    script.write_text(
        "from ray import tune\n\n\ndef train(config):\n    tune.report({'loss': 1.0})\n\n\n" + WRONG
    )
    said = desk.run("tune", script, expect=1).stderr
    assert "ValueError: Trial returned a result which did not include the specified metric" in said
    assert "the metric 'los' was not reported; did you mean 'loss'?" in said


WRONG = "tune.Tuner(train, tune_config=tune.TuneConfig(metric='los', mode='min', num_samples=2)).fit()\nprint('on')\n"
GRID = """
from ray import tune

def train(config):
    for step in range(1, 6):
        tune.report({"loss": (config["x"] - 2) ** 2 + config["deep"]["y"] / step})

space = {"x": tune.grid_search([0, 1, 2.5]), "deep": {"y": tune.grid_search([1.0, 3.0])}, "z": tune.sample_from(lambda c: c["x"] * 2)}
results = tune.Tuner(train, param_space=space, tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2)).fit()
best, first = results.get_best_result(), results.get_best_result(scope="avg")
frame = results.get_dataframe()
print("END", len(results), best.config, best.metrics["loss"], first.config, best.metrics["training_iteration"],
      sorted(frame["loss"]), sorted(frame["config/deep/y"]), len(best.metrics_dataframe))
"""


@pytest.mark.nightly
def test_a_grid_gives_what_ray_tune_itself_gives(desk: Desk) -> None:
    script = desk.folder / "grid.py"
    script.write_text(GRID)
    environment = {**os.environ, "RAY_ADDRESS": "local", "HOME": str(desk.folder)}
    theirs = subprocess.run(
        [sys.executable, script],
        cwd=desk.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert (
        re.findall("END .*", desk.run("tune", script).stdout)
        == re.findall("END .*", theirs.stdout)
        != []
    )
