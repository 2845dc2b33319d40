"""Reading a specification's file: numbers as they are written, words that mean two things, places
of mistakes, functions of a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.state.spec_file import read_spec
from regrow.infra.state.yaml_file import write_map
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.attempt.trainable import check_syntax
from regrow.tasks.errors import UserError

HEAD = """\
name: x
trainable: work.py:train
metric: acc
mode: max
trials: 3
"""
WORK = """
from math import sqrt as root
def train_model(trial): pass
def train(trial): pass
class Net: pass
def _hidden(): pass
def make():
    global made
    def inner(): pass
    made = inner
score = train   # trian is written here
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


def read(folder: Path, text: str) -> Any:
    (folder / "s.yaml").write_text(text)
    return read_spec(folder / "s.yaml")


def wrong(folder: Path, text: str) -> str:
    """What is said of a file, without its folder."""
    with pytest.raises((SpecError, UserError)) as caught:
        read(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("5e3", 5e3),
        ("+1e-3", 1e-3),
        ("-2e3", -2e3),
        ("1.5e3", 1.5e3),
        ("1.0e-4", 1e-4),
        (".5e2", 50.0),
        ("1_000", 1000),
        ("0.5", 0.5),
        ("12", 12),
        ("0x10", 16),
        ("1.", 1.0),
        ("010", 10),
        ("-08", -8),
        ("00", 0),
        ("0o17", 15),
        ("0b11", 3),
        ("+.5", 0.5),
        ("010.5", 10.5),
        ("-.5e-1", -0.05),
    ],
)
def test_a_number_is_a_number_however_it_is_written(
    written: str, number: float, folder: Path
) -> None:
    space = read(folder, HEAD + f"space: {{a: {written}, b: {{uniform: [-1e6, 1e6]}}}}\n").space
    assert space.flat[0].domain.cell(0) == number


@pytest.mark.parametrize(
    "text",
    ["12:30", "8080:80", "2024-01-01", "1.2.3", "1e", "e5", "0o8", "y", "n", "a1", "12:30:00", "="],
)
def test_what_is_no_number_in_yaml_1_2_is_text(text: str, folder: Path) -> None:
    space = read(folder, HEAD + f"space: {{a: {text}, b: {{choice: [{text}, other]}}}}\n").space
    assert space.flat[0].domain.cell(0) == text
    assert space.flat[1].domain.cell(0) == text


@pytest.mark.parametrize(
    ("word", "meant"),
    [("on", "true"), ("off", "false"), ("yes", "true"), ("No", "false"), ("NO", "false")],
)
def test_a_word_that_is_a_boolean_to_some_is_asked_back(
    word: str, meant: str, folder: Path
) -> None:
    choice = f"space:\n  country:\n    choice: [{word}, se]\n"
    hint = f'write {meant}, or "{word}" in quotes if the text is meant'
    assert (
        wrong(folder, HEAD + choice)
        == f"s.yaml:8: {word}: is {meant} to some and text to others; {hint}"
    )
    assert (
        read(folder, HEAD + choice.replace(word, f'"{word}"')).space.flat[0].domain.cell(0) == word
    )


def test_true_and_false_are_booleans(folder: Path) -> None:
    assert read(folder, HEAD + "space: {a: {choice: [true, False]}}\n").space.flat[
        0
    ].domain.values == (True, False)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "space:\n  lr: {uniform: [1, 0]}\n",
            "s.yaml:7: space.lr.uniform: [1, 0]: bounds are reversed; ",
        ),
        ("space:\n  lr:\n    uniform: [1, 0]\n", "s.yaml:8: space.lr.uniform: "),
        ("space:\n  net:\n    lr: {min: 0.0, max: 0.1}\n", "s.yaml:8: space.net.lr: "),
        ("space: {lr: {uniform: [0, 1]}}\ntrails: 3\n", "s.yaml:7: trails: 3: unknown key; "),
        ("space: {lr: {uniform: [0, 1]}}\nstop:\n  hours: 0\n", "s.yaml:8: stop.hours: "),
        (
            "space: {lr: {uniform: [0, 1]}}\nresources:\n  cpu: 1\n  workers: [4, 2]\n",
            "s.yaml:9: resources.workers: [4, 2]: ",
        ),
        (
            "space: {lr: {uniform: [0, 1]}}\nresources:\n  children:\n    cpu: 0\n",
            "s.yaml:9: resources.children.cpu: 0.0: ",
        ),
        (
            "space: {lr: {uniform: [0, 1]}}\npoints:\n  - lr: 0.5\n  - lr: 2\n",
            "s.yaml:9: points.1.lr: ",
        ),
        ("space: {lr: {uniform: [0, 1]}}\nschedule: asha\n", "s.yaml: max_steps: is missing"),
        ("space:\nlr: {uniform: [0, 1]}\n", "s.yaml:6: space: null: is empty: lr stands beside it"),
        (
            "num_samples: 40\nspace: {lr: {uniform: [0, 1]}}\n",
            "s.yaml:6: num_samples: 40: is a key of Ray Tune; here it is `trials: 40`",
        ),
        (
            "space: {lr: 0.1}\n",
            's.yaml:6: space: {"lr": 0.1}: searches nothing: all 3 trials would be the same',
        ),
    ],
)
def test_a_mistake_has_its_line(text: str, line: str, folder: Path) -> None:
    assert wrong(folder, HEAD + text).startswith(line)


def test_a_file_without_a_functions_name_is_told_what_it_has(folder: Path) -> None:
    text = HEAD.replace(":train", "") + "space: {lr: {uniform: [0, 1]}}\n"
    names = "work.py:train_model or work.py:train or work.py:Net or work.py:make"
    assert (
        wrong(folder, text)
        == f's.yaml:2: trainable: "work.py": names no function or class; write {names}'
    )


@pytest.mark.parametrize("name", ["train", "Net", "score", "root", "made", "Net.step"])
def test_a_name_that_the_file_binds_is_left_to_the_import(name: str, folder: Path) -> None:
    check_syntax(folder / "work.py", f"work.py:{name}")


@pytest.mark.parametrize("name", ["trian", "inner", "trial"])
def test_a_name_that_is_only_mentioned_is_told_before_anything_starts(
    name: str, folder: Path
) -> None:
    with pytest.raises(
        SpecError,
        match=rf"work.py has no '{name}'; (did you mean 'train'\?|known: train_model, train, Net, make)",
    ):
        check_syntax(folder / "work.py", f"work.py:{name}")


def test_what_is_written_is_read_as_the_same(folder: Path) -> None:
    texts = [
        "1e-3",
        "on",
        "No",
        "12:30",
        "2024-01-01",
        "true",
        "null",
        "0x10",
        "1",
        "a: b",
        "5e3",
        "ö",
    ]
    spec = Spec.parse(
        {
            "name": "2024-01-01",
            "trainable": "work.py:train",
            "metric": "acc",
            "mode": "max",
            "trials": 3,
            "working_dir": str(folder),
            "space": {
                "a": {"choice": [*texts, 1e-5, 1e20, True, None, 3], "text": True},
                "b": {"constant": {"min": 0, "max": 1}},
            },
        }
    )
    (folder / "s.yaml").write_bytes(write_map(spec.to_json()))
    assert read_spec(folder / "s.yaml") == spec


def test_a_letter_that_json_writes_in_two_halves_is_one(folder: Path) -> None:
    data = {
        "name": "emoji",
        "trainable": "work.py:train",
        "metric": "acc",
        "mode": "max",
        "trials": 3,
        "space": {"prompt": {"choice": ["hello 😀", "bye"]}, "𝜂": 0.1},
    }
    (folder / "s.json").write_text(json.dumps(data))
    space = read_spec(folder / "s.json").space
    assert space.flat[0].domain.cell(0) == "hello 😀"
    assert space.flat[1].name == "𝜂"


@pytest.mark.parametrize("value", [{"choice": ["a\ud83d"]}, {"constant": {"\udc80": 1}}, "\ud83d"])
def test_half_a_letter_is_refused_in_python_too(value: Any) -> None:
    data = {
        "name": "half",
        "trainable": "work.py:train",
        "metric": "acc",
        "mode": "max",
        "trials": 3,
    }
    with pytest.raises(SpecError, match="half of a surrogate pair"):
        Spec.parse({**data, "space": {"a": value, "b": {"uniform": [0, 1]}}})
    with pytest.raises(SpecError, match=r"env\.A: .* half of a surrogate pair"):
        Spec.parse({**data, "space": {"b": {"uniform": [0, 1]}}, "env": {"A": "\udc80"}})


LONG, DIGITS = "y" * 5000, "9" * 400
SMALLER = "or less"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('trainable: "a\\0.py:train"', "s.yaml:1: trainable: "),
        (f"trainable: {LONG}.py:train", "File name too long"),
        (f"trainable: {LONG}.py", "File name too long"),
        ('working_dir: "a\\0b"', "NUL"),
        (f"working_dir: {LONG}", "File name too long"),
        ('env: {A: "b\\0c"}', 's.yaml:1: env.A: "***": has a NUL'),
        (f"env: {{A: {'y' * 140_000}}}", "is longer than 100,000 bytes"),
        (f"max_steps: {DIGITS}", SMALLER),
        (f"trials: {DIGITS}", SMALLER),
        (f"budget: {DIGITS}", SMALLER),
        ("budget: 1e308", SMALLER),
        (f"checkpoint: {{every_steps: {DIGITS}}}", SMALLER),
        (f"resources: {{memory: {DIGITS}}}", SMALLER),
        (f"resources: {{memory: {DIGITS}GB}}", SMALLER),
        (f"seed: {'9' * 5000}", "s.yaml:1: not valid YAML: a number of 5,000 digits"),
    ],
    ids=lambda text: text[:24],
)
def test_paths_and_numbers_that_no_machine_takes_are_refused_in_words(
    folder: Path, line: str, words: str
) -> None:
    key = line.partition(":")[0]
    others = [*HEAD.splitlines(), "max_steps: 9", "space: {x: {uniform: [0, 1]}}"]
    text = "\n".join([line, *(one for one in others if not one.startswith(f"{key}:"))])
    assert words in wrong(folder, text)
