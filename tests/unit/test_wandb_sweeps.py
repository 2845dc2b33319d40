"""Sweep files of W&B's: what becomes of every key, and that none is dropped silently."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from regrow.cli.spec_file import read
from regrow.infra.ray.joining import environment
from regrow.infra.state.spec_file import published_spec, read_spec
from regrow.integrations.wandb.run import swept
from regrow.integrations.wandb.sweeps import is_sweep, translated
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.search.spec.command import arguments
from regrow.tasks.errors import UserError

SWEEP: dict[str, Any] = {
    "program": "train.py",
    "method": "random",
    "metric": {"name": "loss"},
    "run_cap": 4,
    "parameters": {"lr": {"min": 0.1, "max": 1.0}},
}


def spec(**changes: Any) -> dict[str, Any]:
    return translated({**SWEEP, **changes}, "sweep")[0]


def test_a_sweep_becomes_a_specification_that_is_taken() -> None:
    assert is_sweep(SWEEP)
    taken = Spec.parse(spec())
    assert (taken.name, taken.trials, taken.mode, taken.command) == (
        "sweep",
        4,
        "min",
        ("python", "train.py", "{args:wandb}"),
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"value": 3}, {"constant": 3}),
        ({"values": [1, 2]}, {"choice": [1, 2]}),
        ({"min": 1, "max": 4}, {"int": [1, 4]}),
        ({"values": [1, 2], "probabilities": [0.5, 0.5]}, {"choice": [1, 2]}),
        ({"min": 0.1, "max": 1}, {"uniform": [0.1, 1]}),
        ({"mu": 1, "sigma": 2}, {"normal": [1, 2]}),
        ({"distribution": "q_uniform", "min": 0, "max": 8, "q": 2}, {"int": [0, 8], "step": 2}),
        (
            {"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.1},
            {"quniform": [0, 1, 0.1]},
        ),
        ({"distribution": "q_uniform", "min": 1, "max": 9, "q": 2}, {"int": [2, 8], "step": 2}),
        (
            {"distribution": "q_log_uniform_values", "min": 8, "max": 64, "q": 8},
            {"choice": [8, 16, 24, 32, 40, 48, 56, 64]},
        ),
        (
            {"distribution": "q_log_uniform", "min": 0, "max": 1, "q": 0.5},
            {"choice": [1, 1.5, 2, 2.5]},
        ),
        ({"distribution": "log_uniform", "min": -2, "max": 0}, {"loguniform": [math.exp(-2), 1.0]}),
        (
            {"distribution": "inv_log_uniform", "min": 0, "max": 2},
            {"loguniform": [math.exp(-2), 1.0]},
        ),
        ({"distribution": "log_uniform_values", "min": 0.1, "max": 1}, {"loguniform": [0.1, 1]}),
        (
            {"distribution": "inv_log_uniform_values", "min": 0.1, "max": 1},
            {"loguniform": [0.1, 1]},
        ),
        ({"parameters": {"a": {"value": 1}}}, {"a": {"constant": 1}}),
    ],
)
def test_each_distribution_is_what_it_is_there(
    written: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = spec(parameters={"x": written, "lr": {"min": 0.1, "max": 1.0}})
    assert made["space"]["x"] == expected
    Spec.parse(made)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"method": "own"}, "method"),
        ({"run_cap": None}, "run_cap"),
        ({"metric": None, "method": "bayes"}, "metric"),
        ({"image_uri": "x"}, "image_uri"),
        ({"metric": {"name": "loss", "impute": 1}}, "metric.impute"),
        ({"early_terminate": {"type": "x"}}, "early_terminate.type"),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "strict": True}},
            "early_terminate.strict",
        ),
        ({"command": ["${unknown}"]}, "command.0"),
        ({"command": "python x.py"}, "command"),
        ({"command": ["${env}"]}, "command"),
        ({"regrow": [1]}, "regrow"),
        ({"regrow": {"space": {}}}, "regrow.space"),
        ({"method": ["grid"]}, "method"),
        ({"parameters": {"x": {"values": 3}}}, "parameters.x.values"),
        (
            {"parameters": {"x": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0}}},
            "parameters.x.q",
        ),
        (
            {"parameters": {"x": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 5}}},
            "parameters.x.q",
        ),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 9, "max_iter": 9}},
            "early_terminate.min_iter",
        ),
        ({"early_terminate": {"type": "hyperband", "min_iter": 0}}, "early_terminate.min_iter"),
        ({"program": None}, "program"),
        ({"parameters": {"x": {"distribution": "beta", "a": 1}}}, "parameters.x.b"),
        ({"parameters": {"x": {"distribution": "gamma", "mu": 1}}}, "parameters.x"),
        (
            {"parameters": {"x": {"values": [1, 2], "probabilities": [0.1]}}},
            "parameters.x.probabilities",
        ),
        (
            {"parameters": {"x": {"values": [1, 2], "probabilities": [0.1, None]}}},
            "parameters.x.probabilities",
        ),
        # values in the place of exponents
        (
            {"parameters": {"x": {"distribution": "log_uniform", "min": 16, "max": 1024}}},
            "parameters.x",
        ),
        (
            {"parameters": {"x": {"distribution": "q_uniform", "min": 0, "max": math.inf}}},
            "parameters.x.max",
        ),
        (
            {"parameters": {"x": {"distribution": "q_log_uniform_values", "min": -9, "max": -1}}},
            "parameters.x.max",
        ),
        (
            {
                "method": "grid",
                "parameters": {"x": {"distribution": "int_uniform", "min": 0.5, "max": 2}},
            },
            "parameters.x.min",
        ),
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
    made, notes = translated(
        {**SWEEP, "method": "bayes", "entity": "me", "name": "My sweep!", "early_terminate": early},
        "sweep",
    )
    assert [key for key, _ in notes] == ["entity", "method", "name", "early_terminate"]
    assert dict(notes)["early_terminate"] == (
        "hyperband is our `asha`: at 3, 9, 27, ... logs of the metric the best 1/3 so far continue, and a trial ends after 27 logs of "
        "the metric (max_iter)"
    )
    assert (made["search"], made["max_steps"], made["schedule"]["asha"]) == (
        "tpe",
        27,
        {"grace_period": 3, "reduction_factor": 3},
    )
    assert re.fullmatch("My-sweep-[0-9a-f]{8}", Spec.parse(made).name)


def test_a_random_sweep_runs_as_often_as_its_cap_says_also_in_a_small_space() -> None:
    small = {"a": {"values": [1, 2]}}
    assert Spec.parse(spec(parameters=small)).duplicates
    assert Spec.parse(spec(parameters=small, method="bayes")).duplicates
    assert not Spec.parse(spec(parameters=small, method="grid")).duplicates


def test_trials_stand_for_a_cap_that_is_missing_and_a_cap_above_a_grid_is_no_error() -> None:
    endless = {key: value for key, value in SWEEP.items() if key != "run_cap"}
    assert translated(endless, "sweep", trials=7)[0]["trials"] == 7
    assert translated(SWEEP, "sweep", trials=7)[0]["trials"] == 4, (
        "run says what --trials is beside a cap"
    )
    grid = {
        **SWEEP,
        "method": "grid",
        "parameters": {
            "a": {"values": [1, 2]},
            "b": {"value": 1},
            "net": {"parameters": {"width": {"min": 1, "max": 3}}},
            "q": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},
        },
    }
    assert Spec.parse(translated({**grid, "run_cap": 50}, "sweep")[0]).total == 18
    assert Spec.parse(translated({**grid, "run_cap": 5}, "sweep")[0]).total == 5


def test_a_name_with_dots_is_a_group_here_and_an_argument_of_its_name() -> None:
    made = spec(
        parameters={
            "net.width": {"value": 3},
            "net.act.kind": {"value": "relu"},
            "lr": {"min": 0.1, "max": 1.0},
        }
    )
    taken = Spec.parse(made)
    assert made["space"]["net"] == {"width": {"constant": 3}, "act": {"kind": {"constant": "relu"}}}
    assert json.loads(str(taken.env["REGROW_WANDB_DOTTED"])) == ["net.width", "net.act.kind"]
    config = {"net": {"width": 3, "act": {"kind": "relu"}}, "lr": 0.5}
    assert arguments(("{args:no_hyphens}",), config, {}) == [
        "net.width=3",
        "net.act.kind=relu",
        "lr=0.5",
    ]


def test_a_name_within_another_parameter_is_the_programs_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clash = {
        "optimizer": {"values": ["adam", "sgd"]},
        "optimizer.lr": {"min": 0.1, "max": 1.0},
        "net.width": {"value": 3},
    }
    made, notes = translated({**SWEEP, "parameters": clash}, "sweep")
    taken = Spec.parse(made)
    config = {"optimizer": "adam", "optimizer_lr": 0.5, "net": {"width": 3}}
    assert arguments(taken.command or (), config, {}) == [
        "python",
        "train.py",
        "--optimizer=adam",
        "--optimizer.lr=0.5",
        "--net.width=3",
    ]
    monkeypatch.setenv("REGROW_CONFIG", json.dumps(config))
    monkeypatch.setenv("REGROW_WANDB_DOTTED", str(taken.env["REGROW_WANDB_DOTTED"]))
    assert swept() == {"optimizer": "adam", "optimizer.lr": 0.5, "net.width": 3}
    assert (
        "parameters.optimizer.lr",
        "it is called optimizer_lr here; the program sees optimizer.lr",
    ) in notes
    for whole in ("${args_json}", "${args_json_file}"):
        with pytest.raises(SpecError, match="lies within another parameter"):
            spec(parameters=clash, command=["python", whole])


def test_without_a_metric_the_rows_are_counted() -> None:
    grid = {key: value for key, value in SWEEP.items() if key not in ("metric", "run_cap")}
    grid |= {"method": "grid", "parameters": {"x": {"values": [1, 2]}}}
    made, notes = translated(grid, "sweep")
    assert (made["metric"], made["mode"], Spec.parse(made).total) == ("_step", "max", 2)
    assert dict(notes)["metric"] == "is missing: trials are ranked by `_step`, the rows they log"


def test_a_macro_inside_of_an_argument_is_passed_on_except_for_variables() -> None:
    command = ["python", "${program}", "--x=${args}", "--data=${HOME}/${envvar:DATA}", "{a}"]
    made, notes = translated({**SWEEP, "command": command}, "sweep")
    taken = Spec.parse(made)
    assert arguments(taken.command or (), {"lr": 0.5}, {"env:DATA": "d"})[2:] == [
        "--x=${args}",
        "--data=${HOME}/d",
        "{a}",
    ]
    assert [key for key, _ in notes] == ["command.2", "command.3"]


@pytest.mark.parametrize(
    ("written", "middle", "near"),
    [
        ({"distribution": "log_normal", "mu": 1, "sigma": 0.5}, math.exp(1), 0.1),
        ({"distribution": "q_log_normal", "mu": 3, "sigma": 0.2, "q": 5}, 20, 0.1),
        ({"distribution": "q_normal", "mu": 10, "sigma": 3, "q": 2}, 10, 0.1),
        ({"distribution": "beta", "a": 2, "b": 2}, 0.5, 0.02),
        ({"distribution": "q_beta", "a": 2, "b": 2, "q": 0.25}, 0.5, 0.02),
    ],
)
def test_other_distributions_are_choices_of_their_quantiles(
    written: dict[str, Any], middle: float, near: float
) -> None:
    made, notes = translated({**SWEEP, "parameters": {"x": written}}, "sweep")
    domain = Spec.parse(made).space.flat[0].domain
    assert domain.quantile(0.5) == pytest.approx(middle, abs=near)
    drawn = [domain.quantile((place + 0.5) / 1000) for place in range(1000)]
    assert drawn == sorted(drawn)
    if "q" in written:
        assert all(value / written["q"] == round(value / written["q"]) for value in drawn)
    assert [key for key, _ in notes] == ["parameters.x"]


def test_values_may_have_probabilities_and_a_grid_tries_each() -> None:
    shares = {"values": [1, 2], "probabilities": [0.1, 0.9]}
    assert spec(parameters={"x": shares})["space"]["x"] == {
        "choice": [1, 2],
        "probabilities": [0.1, 0.9],
    }
    assert spec(parameters={"x": shares}, method="grid")["space"]["x"] == {"grid": [1, 2]}
    _, notes = translated({**SWEEP, "method": "bayes", "parameters": {"x": shares}}, "sweep")
    assert "parameters.x.probabilities" in dict(notes)


def test_keys_of_ours_have_a_place_in_a_sweep_file() -> None:
    ours = {"resources": {"gpu": 1}, "concurrency": 3, "env": {"A": "b"}, "stop": {"hours": 2}}
    taken = Spec.parse(spec(regrow=ours, metric={"name": "loss", "target": 0.1}))
    assert (taken.resources.gpu, taken.concurrency, taken.stop.hours, taken.stop.target) == (
        1,
        3,
        2,
        0.1,
    )
    assert taken.env == {"A": "b", "REGROW_WANDB_PACKAGE": "standin"}
    with pytest.raises(SpecError, match=r"regrow\.metric: .*is set by the sweep's own keys"):
        spec(regrow={"metric": "acc"})


@pytest.mark.parametrize(
    ("macro", "expected"),
    [
        ("${args}", ["--a=0.5", "--b=True", "--c=False"]),
        ("${args_no_hyphens}", ["a=0.5", "b=True", "c=False"]),
        ("${args_no_boolean_flags}", ["--a=0.5", "--b"]),
        ("${args.hydra}", ["a=0.5", "b=true", "c=false"]),
        ("${args_no_equals}", ["--a", "0.5", "--b", "True", "--c", "False"]),
        ("${args_append_hydra}", ["+a=0.5", "+b=True", "+c=False"]),
        ("${args_override_hydra}", ["++a=0.5", "++b=True", "++c=False"]),
        ("${args_json}", ['{"a": 0.5, "b": true, "c": false}']),
    ],
)
def test_arguments_are_those_of_their_agent(macro: str, expected: list[str]) -> None:
    command = spec(command=["${env}", "${interpreter}", "${program}", macro, "{x}"])["command"]
    assert arguments(tuple(command), {"a": 0.5, "b": True, "c": False}, {}) == [
        "python",
        "train.py",
        *expected,
        "{x}",
    ]


def test_a_variable_is_filled_in_by_the_trial_and_its_value_stored_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = spec(command=["${env}", "${program}", "--data=${envvar:DATA_DIR}/x", "${args}"])
    taken = Spec.parse(made)
    assert taken.env == {"REGROW_WANDB_PACKAGE": "standin", "DATA_DIR": None}
    assert arguments(taken.command, {"lr": 0.5}, {"env:DATA_DIR": "/d"}) == [
        "train.py",
        "--data=/d/x",
        "--lr=0.5",
    ]
    assert (
        spec(command=["${env}", "OMP_NUM_THREADS=1", "${interpreter}", "A=1"])["env"][
            "OMP_NUM_THREADS"
        ]
        == "1"
    )
    monkeypatch.delenv("DATA_DIR", raising=False)
    with pytest.raises(SpecError, match=r"env\.DATA_DIR: .*is not set here; export DATA_DIR"):
        environment(taken)
    with pytest.raises(
        SpecError, match=r"the variable HOME is not forwarded to trials; add env: \{HOME: null\}"
    ):
        Spec.parse({**made, "command": ["a", "{env:HOME}"]})


# The file

TEXT = """program: t.py
method: bayes
run_cap: 2
metric: {name: loss}
parameters:
  lr: {min: 0.1, max: 1.0}
entity: me
"""


def written(folder: Path, text: str = TEXT) -> Path:
    (folder / "t.py").write_text("")
    (folder / "sweep.yaml").write_text(text)
    return folder / "sweep.yaml"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (TEXT.replace("max: 1.0", "max: 0.05"), r"sweep.yaml:6: parameters\.lr"),
        (TEXT.replace("run_cap: 2", "run_cap: 0"), "sweep.yaml:3: run_cap"),
        (TEXT.replace("t.py", "u.py"), r'sweep.yaml:1: program: "u\.py": there is no file'),
        (TEXT + "imgae: x\n", "sweep.yaml:8: imgae"),
        (TEXT + "regrow:\n  resources: {gpu: -1}\n", r"sweep.yaml:9: regrow\.resources\.gpu"),
        (
            TEXT.replace("run_cap: 2\n", ""),
            "run_cap: is missing: without it the sweep never ends; add `run_cap: 20`, or give --trials 20",
        ),
    ],
)
def test_an_error_names_the_sweeps_own_file_line_and_key(
    tmp_path: Path, text: str, place: str
) -> None:
    with pytest.raises(SpecError, match=place):
        read_spec(written(tmp_path, text))


def test_notes_are_told_with_their_lines_once_by_the_one_who_asks(tmp_path: Path) -> None:
    told: list[str] = []
    file = written(tmp_path)
    spec = read_spec(file, echo=told.append)
    assert told == [
        f"{file}:7: entity: ignored, there are no accounts here",
        f"{file}:2: method: bayes is our `tpe`, not W&B's Gaussian process",
    ]
    assert spec == read_spec(file)


def test_a_program_may_lie_where_the_command_is_typed_as_for_their_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweeps").mkdir()
    file = written(tmp_path / "sweeps")
    (tmp_path / "sweeps" / "t.py").rename(tmp_path / "t.py")
    monkeypatch.chdir(tmp_path)
    assert read_spec(file).working_dir == str(tmp_path)


def test_what_is_published_of_a_sweep_runs_again_with_the_same_package(tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_bytes(published_spec(read_spec(written(tmp_path)).to_json()))
    assert read_spec(tmp_path / "again.yaml").env == {"REGROW_WANDB_PACKAGE": "standin"}


def test_the_user_chooses_whose_package_trials_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path)
    monkeypatch.setenv("REGROW_WANDB", "real")
    assert read_spec(file).env["REGROW_WANDB_PACKAGE"] == "real"
    monkeypatch.setenv("REGROW_WANDB", "yes")
    with pytest.raises(UserError, match="REGROW_WANDB: 'yes' is not known; write real"):
        read_spec(file)


def test_the_command_line_says_each_note_once_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(written(tmp_path))
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.partition("sweep.yaml:")[2][:8] for line in said.err.splitlines()] == [
        "7: entit",
        "2: metho",
    ]
