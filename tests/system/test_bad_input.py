"""A user who gets everything wrong, with the whole system: every mistake is told at once, nothing
is lost or left running.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.machine.capacity import resources, resources_text
from tests.system.conftest import Desk, await_no_process

FAULTS = """
import os, sys
import numpy

def raise_deep(trial):
    raise ValueError("the \\ud800 net\\nexploded \\x1b[31m")

def chained(trial):
    try:
        raise_deep(trial)
    except ValueError as error:
        raise RuntimeError("while training") from error

def save_fails(folder):
    raise OSError("no room for the model")

def report(trial, metrics):
    for step in trial.steps():
        trial.report(metrics)

def twice(trial):
    for step in trial.steps():
        trial.report({"score": 1.0})
        trial.report({"score": 1.0})

def never(trial):
    for step in trial.steps():
        pass

def garbage(trial):
    print("\\x00\\ud800 \\x1b[31m")
    os.write(1, bytes(range(256)))
    os.write(2, bytes(range(256)))
    report(trial, {"score": 2.0})

KINDS = {
    "good": lambda trial: report(trial, {"score": float(os.environ["MY_TOKEN"][::-1] == "2retnuh")}),
    "garbage": garbage,
    "chained": chained,
    "save": lambda trial: [trial.report({"score": 1.0}, checkpoint=save_fails) for _ in trial.steps()],
    "misspelt": lambda trial: report(trial, {"scroe": 1.0}),
    "nan": lambda trial: report(trial, {"score": float("nan")}),
    "infinite": lambda trial: report(trial, {"score": -numpy.inf}),
    "huge": lambda trial: report(trial, {"score": 10**400}),
    "text": lambda trial: report(trial, {"score": "0.9"}),
    "none": lambda trial: report(trial, {"score": None}),
    "pair": lambda trial: report(trial, {"score": numpy.zeros(2)}),
    "bare": lambda trial: report(trial, 0.5),
    "unnamed": lambda trial: report(trial, {"score": 1.0, 7: 1.0}),
    "twice": twice,
    "never": never,
    "silent": lambda trial: None,
    "exit": lambda trial: sys.exit(3),
}

def train(trial):
    return KINDS[trial.config["kind"]](trial)
"""
WHY = {
    "chained": "RuntimeError: while training",
    "save": "OSError: no room for the model",
    "misspelt": "{at}: the metric 'score' was not reported; did you mean 'scroe'?",
    "nan": "{at}: metric 'score' is nan, not a finite number; the trial cannot be ranked",
    "infinite": "{at}: metric 'score' is -inf, not a finite number; the trial cannot be ranked",
    "huge": "{at}: metric 'score' is inf, not a finite number; the trial cannot be ranked",
    "text": "{at}: metric 'score' is '0.9' (str), not a number; report one number for each metric",
    "none": "{at}: metric 'score' is None (NoneType), not a number; report one number for each metric",
    "pair": "{at}: metric 'score' is array([0., 0.]) (ndarray), not a number; report one number for each metric",
    "bare": "{at}: 0.5 (float) was reported; report a map, such as {{'score': 0.5}}",
    "unnamed": "{at}: the metric 7 (int) is no name; name metrics by text",
    "twice": "step 1 was reported twice; call trial.report once a step",
    "never": "step 1 was not reported; call trial.report once a step",
    "silent": "it ended without ever reporting 'score'",
    "exit": "SystemExit: 3",
}
"""What each trial that fails says of itself."""


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line that was said."""
    (line,) = done.stderr.splitlines()
    assert "Traceback" not in done.stdout + done.stderr
    return line.removeprefix("regrow: ")


def log_of(desk: Desk, name: str) -> dict[str, bytes]:
    """The log as it is on disk, by object."""
    return {
        file.name: file.read_bytes()
        for file in sorted((desk.folder / ".regrow" / name / "log").iterdir())
    }


@pytest.mark.timeout(600)
def test_each_fault_of_a_trainable_fails_its_own_trial_secrets_are_nowhere_and_a_damaged_log_is_never_overwritten(
    desk: Desk,
) -> None:
    kinds = ["good", "garbage", *WHY]
    given: dict[str, Any] = {
        "train": FAULTS,  # the code itself is in the state, as a snapshot
        "space": {"kind": {"grid": kinds}},
        "search": "grid",
        "trials": len(kinds),
        "max_steps": 2,
        "retries": {"error": 0},
        "env": {"MY_TOKEN": None},
    }
    desk.environment["MY_TOKEN"] = "hunter2"
    file = desk.write("faults", **given)
    said = desk.run("run", file)
    view = desk.show("faults")
    assert view["status"] == "finished"
    assert {state: n for state, n in view["counts"].items() if n} == {"done": 2, "failed": len(WHY)}
    messages = {
        e["trial"]: e["message"]
        for e in desk.events("faults")
        if e["event"] == "ended" and e["outcome"] == "failed"
    }
    for number, kind in enumerate(kinds[2:], start=2):
        assert messages[number] == WHY[kind].format(at="step 1"), kind
    trace, _, rest = said.stdout[said.stdout.index("Traceback") :].partition(
        "\ntrial 2 failed: RuntimeError: while training"
    )
    assert rest, "the traceback comes first, then our line"
    assert 'work.py", line 12, in chained' in trace
    assert "regrow" not in trace.replace(str(desk.folder), ""), (
        "our own frames are not the user's business"
    )
    assert "exploded \\x1b[31m" in trace
    assert await_no_process(desk.folder) == []
    assert desk.points("faults")[0]["score"] == 1.0, "the trial has the secret"
    assert "hunter2" not in said.stdout + said.stderr
    files = [path for path in (desk.folder / ".regrow").rglob("*") if path.is_file()]
    assert any(path.name == "prefect.db" for path in files)
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []

    # Another experiment of the same name, and a smaller one, are refused.
    before = log_of(desk, "faults")
    desk.write("faults", **{**given, "space": {"kind": {"grid": kinds[::-1]}}})
    other = one_line(desk.run("run", file, expect=2))
    assert other.startswith(f"{file}:1: space.kind.grid: [")
    assert ": differs from the experiment 'faults' that exists already, which has [" in other
    assert other.endswith(
        "; give this one another name, or continue with that one: regrow resume faults"
    )
    desk.write("faults", **given)
    count = len(kinds)
    lower = f"trials: 1: experiment 'faults' has {count} already, and a total can only be raised; write {count} or more"
    assert one_line(desk.run("run", file, "--trials", 1, expect=2)) == f"{file}:1: {lower}"
    assert one_line(desk.run("resume", "faults", "--trials", 1, expect=2)) == lower
    assert log_of(desk, "faults") == before

    # A damaged object stops every command; at the end of a log that was never closed it costs its
    # own last lines.
    whole = desk.folder / "whole"
    shutil.copytree(desk.folder / ".regrow" / "faults", whole)
    segments = sorted((desk.folder / ".regrow" / "faults" / "log").glob("*.jsonl"))
    middle, last = segments[len(segments) // 2], segments[-1]
    content = bytearray(middle.read_bytes())
    content[len(content) // 2] ^= 0xFF
    middle.write_bytes(content)
    before = log_of(desk, "faults")
    for command in (["show", "faults"], ["verify", "faults"], ["resume", "faults"], ["run", file]):
        line = one_line(desk.run(*command, expect=4))
        assert line.startswith(
            f"the log of experiment 'faults' in {desk.folder}/.regrow is damaged at log/{middle.name}: "
        )
        assert line.endswith("nothing was overwritten, restore that object from a backup")
    assert log_of(desk, "faults") == before

    shutil.rmtree(desk.folder / ".regrow" / "faults")
    shutil.copytree(whole, desk.folder / ".regrow" / "faults")
    last.write_bytes(last.read_bytes()[:-20])
    assert f"is damaged at log/{last.name}: " in one_line(desk.run("show", "faults", expect=4)), (
        "it was closed with that segment"
    )
    last.with_suffix(".seal").unlink()
    (desk.folder / "work.py").unlink()
    snapshot = desk.folder / ".regrow" / "faults" / "snapshot"
    snapshot.rename(snapshot.with_name("aside"))
    line = one_line_after_warnings(desk.run("resume", "faults", expect=2))
    assert line.startswith(
        f"{desk.folder}/work.py is not here, and the snapshot of the code, snapshot/"
    )
    snapshot.with_name("aside").rename(snapshot)
    said = desk.run("resume", "faults")
    assert f"code: {desk.folder}/work.py is not here; used is the snapshot" in said.stdout
    view = desk.show("faults")
    assert view["status"] == "finished"
    assert sum(view["counts"].values()) == len(kinds)
    assert "all as recorded" in desk.look("verify", "faults")
    assert await_no_process(desk.folder) == []


def one_line_after_warnings(done: subprocess.CompletedProcess[str]) -> str:
    """The last line; those before may say only that the log was cut."""
    *warnings, line = done.stderr.splitlines()
    assert all("; kept its first " in warning for warning in warnings)
    return line.removeprefix("regrow: ")


@pytest.mark.parametrize(
    ("train", "changes", "trace", "line"),
    [
        (
            "import nosuch\ndef train(trial): pass\n",
            {},
            "ModuleNotFoundError: No module named 'nosuch'",
            "cannot be imported: ModuleNotFoundError: No module named 'nosuch'",
        ),
        (
            "def train(trial): pass\n",
            {"resources": {"gpu": 64}},
            "",
            (
                'resources: {"cpu": 1, "gpu": 64.0}: no node of the cluster can hold a trial that needs this; '
                f"it has {resources_text(resources() or {})}; ask for less, or add a node that has it"
            ),
        ),
    ],
    ids=["import", "resources"],
)
def test_what_needs_the_trainable_or_the_cluster_is_told_before_a_trial_starts(
    train: str, changes: dict[str, Any], trace: str, line: str, desk: Desk
) -> None:
    file = desk.write("x", train=train, **changes)
    *before, said = desk.run("run", file, expect=2).stderr.splitlines()
    assert said.endswith(line)
    assert before[-1:] == ([trace] if trace else [])
    assert not before or sum(frame.startswith("  File ") for frame in before) == 1, (
        "only the user's own frame"
    )
    assert not any("regrow" in frame.replace(str(desk.folder), "") for frame in before)
    assert "no experiments" in desk.look("ls")
    assert await_no_process(desk.folder) == []


def test_a_file_of_the_users_that_hides_a_library_is_named_after_the_traceback(desk: Desk) -> None:
    file = desk.write("x", train="import six\ndef train(trial): pass\n")
    (desk.folder / "six.py").write_text("mine = 1\n")
    said = desk.run("run", file, expect=2).stderr.strip()
    assert "AttributeError: module 'six' has no attribute" in said
    assert said.endswith(
        f"regrow: {desk.folder / 'six.py'} is imported in place of the library 'six', which others need; give it another name"
    )


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


# Deaf ones are waited for; that they are named is in test_prefect_server.py, test_mlflow_server.py
# and test_cluster.py, too.
@pytest.mark.parametrize(
    "deaf", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["refused", "deaf"]
)
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:{}"),
        ("PREFECT_API_URL", "http://me:hunter2@127.0.0.1:{}/api"),
        ("RAY_ADDRESS", "127.0.0.1:{}"),
    ],
)
def test_a_server_that_does_not_answer_is_named(
    variable: str, value: str, deaf: bool, desk: Desk
) -> None:
    file = desk.write("x")
    with deaf_port() as port:
        address = value.format(port if deaf else 9)
        line = one_line(desk.run("run", file, expect=2, **{variable: address}))
    assert variable in line
    assert address.replace("hunter2", "***") in line
    assert "unset" in line
    assert b"hunter2" not in b"".join(
        p.read_bytes() for p in (desk.folder / ".regrow").rglob("*") if p.is_file()
    )
    assert await_no_process(desk.folder) == []


def test_a_port_in_use_is_named(desk: Desk) -> None:
    file = desk.write("x")
    with deaf_port() as port:
        line = one_line(desk.run("run", file, "--prefect-port", port, expect=2))
        assert line.startswith(
            f"Port {port} for the Prefect server can't be used (Address already in use"
        )
        assert line.endswith("): choose another")
    assert desk.run("run", file, "--prefect-port", 99999, expect=2).stdout == ""
    assert await_no_process(desk.folder) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, who may do less")
def test_a_place_without_permission_is_named(desk: Desk, tmp_path: Path) -> None:
    file = desk.write("x")
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    advice = "choose another with --state or REGROW_STATE"

    def run(*arguments: object) -> str:
        command = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            *desk._command(arguments),
        ]
        done = subprocess.run(
            command,
            cwd=desk.folder,
            env=desk.environment,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2, done
        return one_line(done)

    root = desk.folder / "state"
    assert (
        run("run", file, "--state", root)
        == f"the state root {root} cannot be written (Permission denied); {advice}"
    )
    root.mkdir(mode=0o700)
    assert (
        run("ls", "--state", root)
        == f"the state root {root} cannot be read (Permission denied); {advice}"
    )
    assert (
        run("run", file, "--state", root / "a")
        == f"the state root {root / 'a'} cannot be used (Permission denied); {advice}"
    )
    file.chmod(0)
    assert run("run", file) == f"{file}: cannot be read: Permission denied; check its permissions"
