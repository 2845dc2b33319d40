"""`regrow try`: one trial in this process, as a user types it, without anything beside it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regrow.flows.one_trial import OneTrial, configuration, temporary_store
from regrow.search.errors import SpecError
from regrow.search.events import Row
from regrow.search.planning.planner import seed_for
from regrow.search.samplers import make
from regrow.search.spec import Spec
from regrow.tasks.ports.messages import Progress
from tests.unit.fresh import printed

WORK = """
import json

def train(trial):
    total = json.loads((trial.restored / "total").read_text()) if trial.restored else 0.0
    for step in trial.steps():
        print("at", step)
        total += trial.config["lr"]
        trial.report({"score": total}, checkpoint=lambda folder: (folder / "total").write_text(json.dumps(total)))

def forgetful(trial):
    for n, step in enumerate(trial.steps(), 1):
        trial.report({"score": n}, checkpoint=lambda folder: (folder / "nothing").touch())

def debugged(trial):
    for step in trial.steps():
        score = 42.5
        breakpoint()
        trial.report({"score": score})

def broken(trial):
    trial.report({"score": 1})
    raise ValueError("a bug of the user's")

def leaving(trial):
    import os
    trial.report({"score": 1})
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    print("after its child")
    os._exit(0)

def endless(trial):
    trial.report({"score": 1})
    while True:
        pass

class Half:
    def setup(self, config): self.n = 0
    def step(self):
        self.n += 1
        return {"score": self.n}
    def save(self, folder): (folder / "n").write_text(str(self.n))
    def load(self, folder): raise RuntimeError("load is broken")
"""
SPEC: dict[str, Any] = {
    "name": "tried",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "trials": 4,
    "max_steps": 5,
    "search": "random",
    "space": {
        "lr": {"uniform": [0.1, 1.0]},
        "optimizer": {"choice": ["sgd", "adam"]},
        "momentum": {"uniform": [0.5, 0.9], "when": {"optimizer": "sgd"}},
        "size": {"choice": ["1", "2"]},
        "model": {"layers": {"int": [1, 4]}},
    },
}


class Desk:
    """A folder with trainables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "work.py").write_text(WORK)

    def write(self, **changes: Any) -> None:
        (self.folder / "tried.yaml").write_text(
            json.dumps({k: v for k, v in {**SPEC, **changes}.items() if v is not None})
        )

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "regrow", "try", "tried.yaml", *options]

    def run(self, *options: str, expect: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            self.command(*options),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return re.sub(r"\(\d+\.\d\d s\)", "(... s)", done.stdout), done.stderr


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.write()
    return desk


def test_a_trial_runs_here_and_goes_on_once_from_its_checkpoint(desk: Desk) -> None:
    out, err = desk.run(
        "--set",
        "lr=0.5",
        "--set",
        "optimizer=adam",
        "--set",
        "size=2",
        "--set",
        "model.layers=3",
        "--steps",
        "3",
    )
    lines = out.splitlines()
    assert lines[:7] == [
        "trial 0 of tried: lr=0.5 optimizer=adam size=2 model.layers=3",
        "at 1",
        "step 1    score 0.5  (... s)",
        "at 2",
        "step 2    score 1  (... s)",
        "at 3",
        "step 3    score 1.5  (... s)",
    ]
    assert re.fullmatch(r"done after 3 steps, .* s a step after the first", lines[7])
    assert lines[8:] == [
        "checkpoints: 3, the last at step 3: total (3 bytes)",
        "once more from the checkpoint of step 2, as after a loss:",
        "at 3",
        "step 3    score 1.5  (... s), as before",
    ]
    assert err == ""
    assert sorted(p.name for p in desk.folder.iterdir() if p.name != "__pycache__") == [
        "tried.yaml",
        "work.py",
    ], "no state is left"


def test_a_step_is_told_before_the_next_one_begins_also_after_a_message_without_news() -> None:
    with temporary_store() as store:
        one = OneTrial(spec=Spec.parse(SPEC), config={}, number=0, store=store, show=lambda _: None)
        assert one.report(Progress(trial=0, attempt=1)).until == 1, (
            "the lease is renewed while the first step takes long"
        )
        assert (
            one.report(Progress(trial=0, attempt=1, rows=(Row(1, 0.0, {"score": 1.0}),))).until == 2
        )


def test_it_loads_neither_ray_nor_prefect_nor_mlflow(desk: Desk) -> None:
    code = (
        "import sys, atexit; atexit.register(lambda: print([m for m in ('ray', 'prefect', 'mlflow', 'optuna') if m in sys.modules]))\n"
        "sys.argv = ['regrow', 'try', 'tried.yaml']\nfrom regrow.cli import main\nmain()"
    )
    desk.write(search="tpe", schedule="asha")
    assert printed(code, cwd=desk.folder).splitlines()[-1] == "[]"


def test_the_draw_is_that_of_random_search_and_what_is_set_leaves_the_rest_alone() -> None:
    spec = Spec.parse(SPEC)
    for number in range(8):
        proposed = make("random", spec.setting).ask(number, seed_for(spec.seed, number))
        assert proposed is not None
        assert configuration(spec, number, {}) == proposed.config
        changed = configuration(spec, number, {"optimizer": "sgd"})
        assert 0.5 <= changed.pop("momentum") <= 0.9
        assert changed == {k: v for k, v in proposed.config.items() if k != "momentum"} | {
            "optimizer": "sgd"
        }


def test_the_first_point_comes_first() -> None:
    point = {"lr": 0.3, "optimizer": "adam", "size": "1", "model": {"layers": 1}}
    spec = Spec.parse({**SPEC, "points": [point]})
    assert configuration(spec, 0, {"lr": 0.4})["lr"] == 0.4
    assert configuration(spec, 0, {})["lr"] == 0.3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": 5}, "--set lr: 5: is outside of its domain; it is one of {'uniform': [0.1, 1.0]}"),
        ({"lr": "fast"}, '--set lr: "fast": is outside of its domain'),
        ({"layers": 1}, "--set layers: 1: is no parameter; did you mean 'model.layers'?"),
        (
            {"optimizer": "adam", "momentum": 0.6},
            "--set momentum: 0.6: has no place: its condition does not hold; leave it out",
        ),
    ],
)
def test_a_value_outside_of_its_domain_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        configuration(Spec.parse(SPEC), 0, given)
    assert str(refused.value).startswith(message)


def test_words_that_are_no_pair_are_refused(desk: Desk) -> None:
    assert (
        desk.run("--set", "lr", expect=2)[1]
        == "regrow: --set lr: write NAME=VALUE, such as lr=0.01\n"
    )


def test_a_checkpoint_that_is_not_loaded_shows(desk: Desk) -> None:
    desk.write(trainable="work.py:forgetful")
    out = desk.run()[0]
    assert "step 5    score 1  (... s), but score 5 before" in out
    assert out.splitlines()[-1].startswith("a difference: the checkpoint lacks")
    assert "once more" not in desk.run("--no-restore")[0]


def test_a_load_that_is_broken_is_found(desk: Desk) -> None:
    desk.write(trainable="work.py:Half")
    out, err = desk.run("--steps", "2", expect=1)
    assert "once more from the checkpoint of step 1" in out
    assert err.startswith('Traceback (most recent call last):\n  File "' + str(desk.folder))
    assert err.endswith(
        "RuntimeError: load is broken\nregrow: the trial failed after step 1: RuntimeError: load is broken\n"
    )


def test_the_users_own_traceback_comes_first(desk: Desk) -> None:
    desk.write(trainable="work.py:broken")
    err = desk.run(expect=1)[1]
    assert err.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{desk.folder}/work.py", line 23, in broken',
    ]
    assert err.endswith("regrow: the trial failed after step 1: ValueError: a bug of the user's\n")


def test_a_trial_that_ends_its_process_has_failed(desk: Desk) -> None:
    desk.write(trainable="work.py:leaving")
    out, err = desk.run(expect=1)
    assert "after its child\n" in out
    assert err.startswith("regrow: the trial ended its process after step 1, by os._exit(0): ")
    assert len(err.splitlines()) == 1


def test_a_script_that_fails_says_so_once(desk: Desk) -> None:
    (desk.folder / "train.py").write_text("raise ValueError('no data')")
    desk.write(trainable=None, command=["python", "train.py"])
    err = desk.run(expect=1)[1]
    assert err.count("Traceback") == 1
    assert err.endswith(
        "regrow: the trial failed after step 0: python train.py exited with 1: ValueError: no data\n"
    )


def test_a_script_that_has_done_enough_is_ended(desk: Desk) -> None:
    (desk.folder / "train.py").write_text(
        "import regrow as rg, time\nrg.report({'score': 0.9})\ntime.sleep(1000)"
    )
    desk.write(trainable=None, command=["python", "train.py"], stop={"trial": {"target": 0.8}})
    assert "done after 1 step (" in desk.run()[0]


def test_a_debugger_has_the_terminal(desk: Desk) -> None:
    desk.write(trainable="work.py:debugged")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        desk.command("--steps", "2"), cwd=desk.folder, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""

        def until(text: bytes) -> None:
            nonlocal said
            while text not in said:
                try:
                    said += os.read(ours, 1024)
                except OSError:
                    pytest.fail(f"it ended before {text.decode()}, and had said: {said.decode()}")
            said = said.partition(text)[2]

        until(b"(Pdb)")
        os.write(ours, b"p score * 2\n")
        until(b"85.0")
        os.write(ours, b"c\n")
        until(b"step 1")
        until(b"(Pdb)")
        os.write(ours, b"q\n")
        until(b"left by the debugger after step 1")
        assert process.wait(20) == 3
    os.close(ours)


def test_ctrl_c_ends_it(desk: Desk) -> None:
    desk.write(trainable="work.py:endless")
    with subprocess.Popen(
        desk.command(), cwd=desk.folder, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("step 1"):
            pass
        process.send_signal(signal.SIGINT)
        assert "ended by Ctrl-C after step 1" in process.stdout.read()
        assert process.wait(20) == 3


def test_a_command_is_tried_as_well_and_its_checkpoint_can_be_kept(desk: Desk) -> None:
    (desk.folder / "train.sh").write_text("""
step=$REGROW_STEP
while [ "$step" -lt "$2" ]; do
  step=$((step + 1)); echo $step > "$REGROW_CHECKPOINT/step"; echo "{\\"score\\": $step}"; sleep 0.2
done
""")
    desk.write(trainable=None, command=["bash", "train.sh", "{lr}", "{max_steps}"])
    out, _ = desk.run("--steps", "2", "--keep", "kept")
    assert "step 2    score 2  (... s)\n" in out
    assert "once more from the checkpoint of step 1" in out
    assert "step 2    score 2  (... s), as before" in out
    assert (desk.folder / "kept" / "step").read_text() == "2\n"
