"""The command of a specification: which placeholders it may have, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import regrow as rg
from regrow.flows.checks import precheck
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.search.spec.command import arguments
from regrow.tasks.errors import UserCodeError

BASE: dict[str, Any] = {
    "name": "scripts",
    "metric": "score",
    "mode": "max",
    "search": "random",
    "trials": 2,
    "max_steps": 5,
    "space": {
        "lr": {"uniform": [0.1, 1.0]},
        "model": {"layers": {"int": [1, 4]}, "bias": {"choice": [True, False]}},
        "optimizer": {"choice": ["sgd", "adam"]},
        "momentum": {"uniform": [0.5, 0.9], "when": {"optimizer": "sgd"}},
    },
}
CONFIG = {"lr": 0.25, "model": {"layers": 2, "bias": True}, "optimizer": "adam"}
OURS = {
    "trial": "3",
    "attempt": "1",
    "seed": "7",
    "name": "scripts",
    "max_steps": "5",
    "step": "0",
    "checkpoint": "/c",
    "restored": "",
    "scratch": "/s",
    "report": "",
}


def spec(*command: Any, **changes: Any) -> Spec:
    return Spec.parse({**BASE, "command": list(command), **changes})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["--lr", "{lr}"], ["--lr", "0.25"]),
        (["--layers={model.layers}", "{model.bias}"], ["--layers=2", "true"]),
        (["{trial}-{attempt}", "{seed}", "{name}", "{max_steps}"], ["3-1", "7", "scripts", "5"]),
        (["{{lr}} is {lr}"], ["{lr} is 0.25"]),
        (["--epochs", 10, 0.5, True], ["--epochs", "10", "0.5", "true"]),
        (["{args}"], ["--lr=0.25", "--model.layers=2", "--model.bias=true", "--optimizer=adam"]),
        (["{args:hydra}"], ["lr=0.25", "model.layers=2", "model.bias=true", "optimizer=adam"]),
        (["--momentum={momentum}", "last"], ["last"]),
        (["--resume={restored}", "--save={checkpoint}"], ["--save=/c"]),
        (["a b; $HOME `ls` *"], ["a b; $HOME `ls` *"]),
    ],
)
def test_placeholders_become_arguments(written: list[Any], expected: list[str]) -> None:
    assert arguments(spec("prog", *written).command, CONFIG, OURS) == ["prog", *expected]


def test_hydra_gets_its_own_quotes() -> None:
    config = {"name": "it's a net", "sizes": [8, 16], "block": [{"kind": "a b"}]}
    assert arguments(("{args:hydra}",), config, OURS) == [
        r"name='it\'s a net'",
        "sizes=[8,16]",
        "block=[{kind:'a b'}]",
    ]


def test_a_parameter_goes_before_a_placeholder_of_the_same_name() -> None:
    assert arguments(("{seed}",), {"seed": 1}, OURS) == ["1"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["prog", "{l}"],
            "command.1: \"{l}\": there is no parameter 'l'; did you mean 'lr'?; for braces write {{ and }}",
        ),
        (["prog", "{layers}"], "did you mean 'model.layers'?"),
        (
            ["prog", "{zzz}"],
            "known: lr, model.layers, model.bias, optimizer, momentum, trial, attempt",
        ),
        (["prog", '--json={"a": 1}'], "for braces write {{ and }}"),
        (["prog", "a{"], "command.1: \"a{\": has a lone '{'; write '{{' for a brace"),
        (["prog", "x {args}"], "{args} is several arguments; let it stand alone"),
        (["prog", "{report}"], "no file is given; add report: {file: metrics.jsonl}"),
        (
            ["prog", "--momentum", "{momentum}"],
            'momentum may be absent, and --momentum would stay; write one argument, "--momentum={momentum}"',
        ),
        (
            ["prog", "--resume", "{restored}"],
            'write one argument, "--resume={restored}", which is then left out',
        ),
        (["prog", {"lr": None}], 'put quotes around it: "{lr}"'),
        (["prog", [1]], "command.1: [1]: is no argument of a command"),
        ([" "], 'command.0: " ": is no program'),
    ],
)
def test_a_command_that_cannot_be_filled_is_refused_at_once(
    command: list[Any], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        spec(*command)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"command": "python train.py"},
            'command: "python train.py": is not a list of arguments; write a list, [python, train.py',
        ),
        (
            {"command": ["a"], "trainable": "a.py:b"},
            'trainable: "a.py:b": stands beside a command; keep one of them',
        ),
        (
            {},
            "trainable: is missing; write trainable: file.py:function, or command: [python, file.py, ...]",
        ),
        (
            {"command": ["a", "{max_steps}"], "max_steps": None},
            "max_steps is not given; add max_steps: to the specification",
        ),
        (
            {"command": ["a"], "checkpoint": {"every_steps": 2}},
            "checkpoint.every_steps: 2: is the command's own business",
        ),
        ({"command": ["a"], "report": {"file": "../x"}}, "is outside of the trial's own folder"),
        ({"trainable": "a.py:b", "report": {"file": "x"}}, 'report.file: "x": is for a command'),
        (
            {
                "command": ["a"],
                "space": {"step": {"uniform": [0, 1], "when": {"k": 1}}, "k": {"choice": [1, 2]}},
            },
            "may be absent; call it otherwise",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        Spec.parse({**BASE, **changes})
    assert message in str(refused.value)


def test_a_specification_with_a_command_survives_its_log() -> None:
    written = spec("python", "train.py", "{args}", report={"file": "m.csv"})
    assert Spec.parse(written.to_json()) == written


def test_python_takes_a_command_as_well() -> None:
    given = {k: v for k, v in BASE.items() if k != "name"}
    experiment = rg.Experiment(command=["bash", "train.sh", "{lr}"], **given)
    assert (experiment.spec.command, experiment.spec.name) == (
        ("bash", "train.sh", "{lr}"),
        "experiment",
    )
    with pytest.raises(SpecError, match="trainable: is missing"):
        rg.Experiment(**given)
    with pytest.raises(SpecError, match=r"space: .* is not a map of parameters"):
        rg.Experiment("a.py:f", **{**given, "space": [1]})


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program"], 'command.0: "no-such-program": there is no such program'),
        (["./plain.sh"], "cannot be run as it is; chmod +x"),
        (["python", "trian.py"], 'command.1: "trian.py": there is no file'),
        (["bash", "nothing.sh"], 'command.1: "nothing.sh": there is no file'),
    ],
)
def test_a_program_that_is_not_there_is_told_before_anything_starts(
    tmp_path: Path, command: list[str], message: str
) -> None:
    (tmp_path / "plain.sh").write_text("echo")
    with pytest.raises(SpecError) as refused:
        precheck(spec(*command, working_dir=str(tmp_path)))
    assert message in str(refused.value)


def test_a_syntax_error_of_the_script_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(\n")
    with pytest.raises(
        UserCodeError, match=r'command.1: "train.py": cannot be run: SyntaxError'
    ) as refused:
        precheck(spec("python", "train.py", working_dir=str(tmp_path)))
    assert "print(" in refused.value.trace


def test_programs_that_are_there_pass(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    for command in (
        ["python", "train.py"],
        ["python3", "-m", "this"],
        ["bash", "-c", "exit"],
        ["true"],
        ["{optimizer}"],
    ):
        precheck(spec(*command, working_dir=str(tmp_path)))
