"""Files and surroundings that are refused before anything is started, and what Python and editors
say of a specification.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # its stubs are a package apart

from regrow import Experiment, SpecError
from regrow.cli import main
from tests.unit.refusing import SPEC, TEXT, Refused

# ---- the file


BOMB = "a0: &a0 [1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "s.yaml: is empty, not a map of keys; see `regrow schema`"),
        ("- a\n", "s.yaml: holds a list, not a map of keys; see `regrow schema`"),
        ("hello", "s.yaml: holds a single value, not a map of keys; see `regrow schema`"),
        (TEXT + "trials: 4\n", "s.yaml:7: not valid YAML: the key 'trials' is given twice"),
        ("space:\n  a: 1\n  a: 2\n", "s.yaml:3: not valid YAML: the key 'a' is given twice"),
        (TEXT + "\tseed: 1\n", "s.yaml:7: not valid YAML: there is a tab; indent with spaces"),
        (
            TEXT.replace("[0, 1]", "[0, 1"),
            "s.yaml:6: not valid YAML: expected ',' or ']', but got '}'",
        ),
        (TEXT + "seed: 1: 2\n", "s.yaml:7: not valid YAML: mapping values are not allowed here"),
        (TEXT + "---\na: 1\n", "s.yaml:7: not valid YAML: but found another document"),
        (TEXT + "seed: *nope\n", "s.yaml:7: not valid YAML: found undefined alias 'nope'"),
        (TEXT + "? [a]\n: 1\n", "s.yaml:7: not valid YAML: a list or map cannot be a key"),
        (TEXT + "1: 2\n", "s.yaml:7: 1: 1: is not a key; put quotes around it"),
        (
            TEXT + "seed: 0b_\n",
            "s.yaml: not valid YAML: invalid literal for int() with base 2: '0b'; put quotes around what is text",
        ),
        (
            TEXT + BOMB,
            "s.yaml:13: not valid YAML: more than 1,000,000 values, by anchors within anchors",
        ),
        (TEXT + "seed: &a [*a]\n", "s.yaml:7: not valid YAML: a value contains itself"),
        (
            TEXT + 'env: {A: "\\ud83d"}\n',
            r"s.yaml:7: not valid YAML: '\ud83d' has half of a surrogate pair, which is no letter; write the whole one",
        ),
        ("a: " + "[" * 5000, "s.yaml: is nested too deeply; see `regrow schema` for its form"),
        (
            TEXT.replace("max", "on"),
            's.yaml:4: on: is true to some and text to others; write true, or "on" in quotes if the text is meant',
        ),
        (
            TEXT.replace("trials: 3", "trials: 1e1"),
            "s.yaml:5: trials: 10.0: is not a whole number; write 10",
        ),
        (b"\x80", "s.yaml: is not text in UTF-8 (byte 1); save it as UTF-8"),
        (b"a: \0", "s.yaml: not valid YAML: special characters are not allowed"),
    ],
)
def test_what_is_no_specification_is_named_by_its_line(
    text: str | bytes, line: str, refused: Refused
) -> None:
    Path("s.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert refused("run", "s.yaml") == line


@pytest.mark.parametrize(
    "tag", ["python/object/apply:os.mkdir", "python/object/new:os.mkdir", "python/name:os.mkdir"]
)
def test_nothing_in_a_file_is_ever_executed(tag: str, refused: Refused) -> None:
    Path("s.yaml").write_text(TEXT + f"seed: !!{tag} [pwned]\n")
    assert (
        refused("run", "s.yaml")
        == f"s.yaml:7: not valid YAML: the tag !!{tag} is not taken; write plain values"
    )
    assert not Path("pwned").exists()


def test_merge_keys_are_taken(refused: Refused) -> None:
    Path("s.yaml").write_text(TEXT + "resources: &r {cpu: 1}\nretries: {<<: *r, error: 1}\n")
    assert refused("run", "s.yaml").startswith("s.yaml:8: retries.cpu: 1: unknown key; ")


def test_a_file_that_is_not_there_or_is_a_folder_is_named(refused: Refused) -> None:
    advice = "give the path of the experiment's YAML file"
    assert refused("run", "s.yaml") == f"s.yaml: there is no such file; {advice}"
    Path("s.yaml").mkdir()
    assert refused("run", "s.yaml") == f"s.yaml: is a folder; {advice}"


def test_what_has_no_end_is_not_read(refused: Refused) -> None:
    advice = "write it to a file, and name that"
    os.mkfifo("s.yaml")
    assert refused("run", "s.yaml") == f"s.yaml: is a pipe, not a file; {advice}"
    assert (
        refused("cluster", "check", "/dev/zero") == f"/dev/zero: is a device, not a file; {advice}"
    )
    Path("x.yaml").write_text(TEXT + "max_steps: 3\n")
    told = refused("simulate", "x.yaml", "--table", "s.yaml")
    assert told == f"s.yaml: is a pipe, not a file; {advice}"
    with Path("big.yaml").open("wb") as file:
        file.truncate(17 << 20)  # without a block on the disk
    assert refused("run", "big.yaml").startswith("big.yaml: has 17,825,792 bytes; at most ")


@pytest.mark.skipif(
    os.geteuid() == 0,
    reason="root may read everything; as another user: tests/system/test_bad_input.py",
)
def test_a_file_that_may_not_be_read_is_named(refused: Refused) -> None:
    Path("s.yaml").write_text(TEXT)
    Path("s.yaml").chmod(0)
    assert (
        refused("run", "s.yaml")
        == "s.yaml: cannot be read: Permission denied; check its permissions"
    )


# ---- the surroundings


@pytest.mark.parametrize("command", ["show", "trials", "best", "verify", "stop", "resume", "ui"])
@pytest.mark.parametrize("name", ["nope", "../nope"])
def test_an_experiment_that_is_not_there_is_told_by_every_command(
    command: str, name: str, refused: Refused
) -> None:
    assert refused(command, name) == (
        f"there is no experiment {name!r} in HERE/.regrow (there: none); "
        "start one with `regrow run FILE`, or name another state root with --state"
    )


def test_a_state_root_that_is_a_file_is_told(refused: Refused) -> None:
    Path("s.yaml").write_text(TEXT)
    Path("full").touch()
    advice = "choose another with --state or REGROW_STATE"
    assert (
        refused("run", "s.yaml", "--state", "full")
        == f"the state root HERE/full is not a folder; {advice}"
    )
    assert (
        refused("ls", "--state", "full/x")
        == f"the state root HERE/full/x cannot be used (Not a directory); {advice}"
    )


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("run", "s.yaml"), "--state"),
        (("ls",), "--state"),
        (("run", "s.yaml"), "--budget"),
        (("run", "s.yaml", "--include", "x"), "--include"),
        (("report", "x"), "--png"),  # else pictures among the files of this folder
        (("cluster", "submit", "c.yaml", "s.yaml"), "--name"),
    ],
)
def test_an_empty_option_as_of_an_unset_variable_of_a_shell_is_refused(
    command: tuple[str, ...], option: str, refused: Refused
) -> None:
    Path("s.yaml").write_text(TEXT)
    message = f"{option}: is empty; give a value, or leave it out"
    assert refused(*command, option, "") == refused(*command, f"{option}=") == message
    assert refused(*command, option, " ") == message


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        (("run",), "FILE"),
        (("show",), "NAME"),
        (("rm", "x"), "NAME"),
        (("note", "x"), "TEXT"),
        (("trials", "x", "--csv"), "FILE"),
        (("tune",), "SCRIPT"),
        (("cluster", "status"), "FILE"),
    ],
)
def test_so_is_an_empty_argument(command: tuple[str, ...], argument: str, refused: Refused) -> None:
    message = f"{argument}: is empty; give a value, or leave it out"
    assert refused(*command, "") == refused(*command, " ") == message


# ---- from Python, and for editors


def test_python_says_the_same() -> None:
    with pytest.raises(SpecError) as caught:
        Experiment(
            lambda trial: None, space={"lr": {"uniform": [1, 0]}}, metric="a", mode="max", trials=1
        )
    assert str(caught.value) == "space.lr.uniform: [1, 0]: bounds are reversed; write [low, high]"


def test_the_published_schema_takes_the_examples_and_refuses_a_typo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["regrow", "schema"])
    with pytest.raises(SystemExit):
        main()
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    check = Draft202012Validator(schema)
    examples = sorted(Path(__file__).parents[2].glob("examples/*.yaml"))
    assert examples
    for example in examples:
        check.validate(yaml.safe_load(example.read_text()))
    assert not check.is_valid({**SPEC, "trails": 3})
    assert not check.is_valid({**SPEC, "trials": "3"})
