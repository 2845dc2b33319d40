"""Sweep files of W&B's: what becomes of every key, and that none is dropped silently."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.state.spec_file import read_spec
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.search.spec.command import arguments
from regrow.search.spec.wandb import is_sweep, translated

SWEEP: dict[str, Any] = {
    "program": "train.py", "method": "random", "metric": {"name": "loss"}, "run_cap": 4, "parameters": {"lr": {"min": 0.1, "max": 1.0}},
}


def spec(**changes: Any) -> dict[str, Any]:
    return translated({**SWEEP, **changes}, "sweep")[0]


def test_a_sweep_becomes_a_specification_that_is_taken() -> None:
    assert is_sweep(SWEEP)
    taken = Spec.parse(spec())
    assert (taken.name, taken.trials, taken.mode, taken.command) == ("sweep", 4, "min", ("python", "train.py", "{args:wandb}"))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"value": 3}, {"constant": 3}), ({"values": [1, 2]}, {"choice": [1, 2]}), ({"min": 1, "max": 4}, {"int": [1, 4]}),
        ({"values": [1, 2], "probabilities": [0.5, 0.5]}, {"choice": [1, 2]}),
        ({"min": 0.1, "max": 1}, {"uniform": [0.1, 1]}), ({"mu": 1, "sigma": 2}, {"normal": [1, 2]}),
        ({"distribution": "q_uniform", "min": 0, "max": 8, "q": 2}, {"quniform": [0, 8, 2]}),
        ({"distribution": "log_uniform", "min": -2, "max": 0}, {"loguniform": [math.exp(-2), 1.0]}),
        ({"distribution": "inv_log_uniform", "min": 0, "max": 2}, {"loguniform": [math.exp(-2), 1.0]}),
        ({"distribution": "log_uniform_values", "min": 0.1, "max": 1}, {"loguniform": [0.1, 1]}),
        ({"distribution": "inv_log_uniform_values", "min": 0.1, "max": 1}, {"loguniform": [0.1, 1]}),
        ({"parameters": {"a": {"value": 1}}}, {"a": {"constant": 1}}),
    ],
)
def test_each_distribution_is_what_it_is_there(written: dict[str, Any], expected: dict[str, Any]) -> None:
    made = spec(parameters={"x": written, "lr": {"min": 0.1, "max": 1.0}})
    assert made["space"]["x"] == expected
    Spec.parse(made)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"method": "own"}, "method"), ({"run_cap": None}, "run_cap"), ({"metric": None}, "metric"), ({"image_uri": "x"}, "image_uri"),
        ({"metric": {"name": "loss", "impute": 1}}, "metric.impute"), ({"early_terminate": {"type": "x"}}, "early_terminate.type"),
        ({"early_terminate": {"type": "hyperband", "min_iter": 1, "strict": True}}, "early_terminate.strict"),
        ({"command": ["${envvar:KEY}"]}, "command.0"), ({"command": ["${args_json_file}"]}, "command.0"), ({"program": None}, "program"),
        ({"parameters": {"x": {"distribution": "beta", "a": 1}}}, "parameters.x.a"),
        ({"parameters": {"x": {"distribution": "q_normal", "mu": 1}}}, "parameters.x"),
        ({"parameters": {"x": {"values": [1, 2], "probabilities": [0.1, 0.9]}}}, "parameters.x.probabilities"),
        ({"parameters": {"x": {"value": 1, "min": 2}}}, "parameters.x.min"),
        ({"method": "grid"}, "parameters.lr"),
    ],
)
def test_what_has_no_like_here_is_refused_by_its_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(**changes)
    assert refused.value.key == key


def test_what_is_only_alike_is_said() -> None:
    early = {"type": "hyperband", "max_iter": 27, "s": 2}
    made, notes = translated({**SWEEP, "method": "bayes", "entity": "me", "early_terminate": early}, "sweep")
    assert [note.partition(":")[0] for note in notes] == ["entity", "method", "early_terminate"]
    assert (made["search"], made["max_steps"], made["schedule"]["asha"]) == ("tpe", 27, {"grace_period": 3, "reduction_factor": 3})
    Spec.parse(made)


@pytest.mark.parametrize(
    ("macro", "expected"),
    [
        ("${args}", ["--a=0.5", "--b=True", "--c=False"]), ("${args_no_hyphens}", ["a=0.5", "b=True", "c=False"]),
        ("${args_no_boolean_flags}", ["--a=0.5", "--b"]), ("${args_json}", ['{"a": 0.5, "b": true, "c": false}']),
    ],
)
def test_arguments_are_those_of_their_agent(macro: str, expected: list[str]) -> None:
    command = spec(command=["${env}", "${interpreter}", "${program}", macro, "{x}"])["command"]
    assert arguments(tuple(command), {"a": 0.5, "b": True, "c": False}, {}) == ["python", "train.py", *expected, "{x}"]


def test_an_error_names_the_sweeps_own_file_line_and_key(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("program: t.py\nmethod: random\nrun_cap: 2\nmetric: {name: loss}\nparameters:\n  lr: {min: 2.0, max: 1.0}\n")
    with pytest.raises(SpecError, match=r"sweep.yaml:6: parameters\.lr"):
        read_spec(file)
