"""A script of Optuna's whose import alone is another one: it is killed and run again; nothing is
suggested anew, nothing counts twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regrow.infra.log.reading import stream_events
from regrow.infra.state.places import Places
from regrow.search.events import Suggested
from tests.system.conftest import Desk

pytestmark = pytest.mark.usefixtures("shared_prefect")

SCRIPT = """
import sys, time

import regrow.optuna as optuna

OFFSET = 2.0


def objective(trial):
    x = trial.suggest_float("x", -10, 10)
    widths = [trial.suggest_int(f"w{i}", 8, 64, log=True) for i in range(trial.suggest_int("depth", 1, 3))]
    time.sleep(0.05)
    if trial.suggest_categorical("optimizer", ["sgd", None]) == "sgd":
        trial.suggest_float("momentum", 0, 1, step=0.1)
    trial.set_user_attr("widths", widths)
    trial.set_user_attr("model", slice(len(widths)))
    trial.suggest_categorical("pair", [(1, 2)])
    for step in range(0, 30, 10):
        trial.report((x - OFFSET) ** 2 + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned()
    if x > 9:
        raise ArithmeticError("too far")
    return (x - OFFSET) ** 2 + sum(widths) / 100


study = optuna.create_study(
    study_name=sys.argv[1], load_if_exists=True, sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=5),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=10, interval_steps=10),
)
study.enqueue_trial({"x": 5.0})
seen = []
study.optimize(lambda trial: objective(trial), n_trials=int(sys.argv[2]), catch=ArithmeticError, callbacks=[lambda s, t: seen.append(t.number)])
states = {name: sum(t.state.name == name for t in study.trials) for name in ("COMPLETE", "PRUNED", "FAIL")}
assert sum(states.values()) == len(study.trials) == int(sys.argv[2]), states
assert study.best_trial.state.name == "COMPLETE" and study.trials[0].params["x"] == 5.0
assert "params_x" in study.trials_dataframe() and len(seen) <= len(study.trials)
optuna.visualization.plot_optimization_history(study)
print("pruned", states["PRUNED"], "values", [t.value for t in study.trials])
"""

AGAIN = """
import regrow.optuna as optuna

import threading, time

study = optuna.create_study(study_name="twin", direction="maximize", load_if_exists=True)
print(study.direction.name)
try:
    study.optimize(print, n_trials=-1)
except Exception as error:
    print(type(error).__name__)
for kept in (study.best_trial.user_attrs["model"], study.best_params["pair"]):
    print(repr(kept).replace(" ", ""))
print([one.n_trials for one in optuna.get_all_study_summaries() if one.study_name == "twin"])


def objective(trial):
    if trial.study.study_name == "wrong":
        raise FileNotFoundError("data.csv")
    return trial.suggest_float("x", 0, 1)


def follow(study, trial):
    if trial.number == 2:
        study.stop()


def in_a_thread(name):
    study = optuna.create_study(study_name=name)
    try:
        study.optimize(objective, n_trials=9, callbacks=[follow])
    except FileNotFoundError:
        outcomes[name] = "no such file"
    else:
        outcomes[name] = len(study.trials)


outcomes = {}
threads = [threading.Thread(target=in_a_thread, args=(name,)) for name in ("first", "wrong")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
asked = optuna.create_study(study_name="asked")
asked.tell(asked.ask(), 1.0)
print(sorted(outcomes.items()), len(asked.trials))
"""


CALLS = """
import json, os, signal, sys, time

import regrow.optuna as optuna

DIES = sys.argv[1:] == ["die"]


def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    while DIES and trial.number == 4:
        time.sleep(0.1)
    return x


def wrong(trial):
    return len(trial.suggest_categorical("kind", ["a", "b"] if trial.number == 5 else ["a", "c"]))


def follow(study, trial):
    seen.append(trial.number)
    if trial.number == 3 and DIES:
        os.killpg(0, signal.SIGKILL)


seen, caught = [], ""
study = optuna.create_study(study_name="calls", load_if_exists=True)
study.optimize(objective, n_trials=2)
first = len(study.trials)
study.optimize(objective, n_trials=3, callbacks=[follow])
try:
    study.optimize(wrong, n_trials=2)
except ValueError as error:
    caught = str(error).splitlines()[0]
print(json.dumps([first, seen, len(study.trials), caught]))
"""


def begin(desk: Desk, name: str, trials: int) -> subprocess.Popen[str]:
    """Starts the script."""
    return start(desk, SCRIPT, name, str(trials))


def start(desk: Desk, script: str, *arguments: str) -> subprocess.Popen[str]:
    (desk.folder / "script.py").write_text(script)
    return desk.start_script("script.py", *arguments)


def suggested(folder: Path, name: str) -> list[tuple[int, str, object]]:
    """What the log has, in its order."""
    if not (folder / ".regrow" / name / "log").exists():
        return []
    events = stream_events(Places(root=str(folder / ".regrow")).store(name))
    return [(e.trial, e.name, e.value) for e in events if isinstance(e, Suggested)]


def ended(process: subprocess.Popen[str]) -> str:
    """What the script printed last."""
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    return out.strip().splitlines()[-1]


def killed(desk: Desk, name: str, trials: int, kills: int) -> None:
    """Runs the script, and kills it by SIGKILL so often, each time after some more suggestions."""
    chance = random.Random(name)
    for _ in range(kills):
        process, before = begin(desk, name, trials), len(suggested(desk.folder, name))
        more = chance.randint(2, 3 + 3 * trials // (kills + 1))
        while process.poll() is None and len(suggested(desk.folder, name)) < before + more:
            time.sleep(0.05)
        assert process.poll() is None, "it was over before it was to be killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# By day the next test kills a script, test_every_pair.py every sampler after each event of its log,
# and tests/unit/test_optuna_bodies.py compares studies with Optuna's.
@pytest.mark.nightly
@pytest.mark.parametrize("kills", [1, 10])
def test_a_study_that_is_killed_goes_on_with_the_same_suggestions_to_the_same_total(
    desk: Desk, kills: int
) -> None:
    trials = 10 if kills == 1 else 30
    twin = ended(begin(desk, "twin", trials))
    killed(desk, "killed", trials, kills)
    assert ended(begin(desk, "killed", trials)) == twin
    assert suggested(desk.folder, "killed") == suggested(desk.folder, "twin")
    assert "all as recorded" in desk.look("verify", "killed")
    again = [sys.executable, "-c", AGAIN]
    done = subprocess.run(
        again, cwd=desk.folder, env=desk.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "the study 'twin' is there with minimize, which stays" in done.stderr
    said = done.stdout.splitlines()
    assert said[:2] == ["MINIMIZE", "ValueError"]
    assert said[2].startswith("slice(None,")
    outcomes = "[('first', 3), ('wrong', 'no such file')] 1"
    assert said[3:] == ["(1,2)", f"[{trials}]", outcomes], done.stderr
    assert "run by the script" in desk.run("resume", "asked", expect=2).stderr


def test_a_script_that_is_killed_in_its_second_call_goes_on_there_and_finds_what_an_objective_raises(
    desk: Desk,
) -> None:
    dying = start(desk, CALLS, "die")
    assert dying.wait(timeout=240) == -signal.SIGKILL
    there, seen, total, caught = json.loads(ended(start(desk, CALLS)))
    assert there in (4, 5), "the last one was on its way or had not begun"
    assert seen == [4], "it runs in the second call, which has a callback"
    assert total == 7
    assert caught.startswith(
        "trial 6 failed: ValueError: 'kind': CategoricalDistribution does not support dynamic value space."
    )
    assert "all as recorded" in desk.look("verify", "calls")
