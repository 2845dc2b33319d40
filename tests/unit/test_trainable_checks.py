"""Faults of the user's module that are found before a trial starts: the user's own frame, and one
line that names the key.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.flows.checks import check_trainable, precheck
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import UserCodeError


@pytest.fixture(autouse=True)
def _imports_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("refused", None)


def specified(folder: Path, code: str, **more: object) -> Spec:
    (folder / "refused.py").write_text(code)
    return Spec.parse(
        {
            "name": "x",
            "trainable": "refused.py:train",
            "working_dir": str(folder),
            "space": {"x": {"uniform": [0, 1]}},
            "metric": "score",
            "mode": "max",
            "trials": 1,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("code", "trace", "said"),
    [
        (
            "import nosuch\ndef train(trial): pass\n",
            "ModuleNotFoundError: No module named 'nosuch'",
            "cannot be imported: ModuleNotFoundError: No module named 'nosuch'",
        ),
        (
            "import sys\nsys.exit()\ntrain = 1",
            "SystemExit",
            'cannot be imported: SystemExit; put what is to run only as a script below `if __name__ == "__main__":`',
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_users_own_frame(
    tmp_path: Path, code: str, trace: str, said: str
) -> None:
    with pytest.raises(UserCodeError) as told:
        check_trainable(specified(tmp_path, code))
    assert str(told.value) == f'trainable: "refused.py:train": {said}'
    *before, last = told.value.trace.splitlines()
    assert last == trace
    assert sum(line.startswith("  File ") for line in before) == 1
    assert not any("regrow" in line.replace(str(tmp_path), "") for line in before)


WHOLE = "def setup(self, config): pass\n def step(self): return {}\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("train = 1\n", "is an int, not a function or a class; name one of these"),
        (
            "def train(x, *, lr): pass\n",
            "takes (x, *, lr), and is called with one argument, the trial; write `def train(trial)",
        ),
        ("def train(): pass\n", "takes (), and is called with one argument, the trial"),
        (
            f"class train:\n def __init__(self, x): pass\n {WHOLE}",
            "takes (x), and is called with no arguments; give all parameters a default",
        ),
        ("async def train(trial): pass\n", "is an async function, whose body would not run"),
        ("def train(trial): yield 1\n", "is a generator (it has a yield), whose body would not"),
    ],
)
def test_what_cannot_be_called_as_a_trainable_is_refused(
    tmp_path: Path, code: str, said: str
) -> None:
    with pytest.raises(SpecError) as told:
        check_trainable(specified(tmp_path, code))
    assert str(told.value).startswith(f'trainable: "refused.py:train": {said}')


@pytest.mark.parametrize(
    "code",
    [
        "def train(trial, lr=1, *more, **named): pass\n",
        "from functools import partial\ntrain = partial(print, sep='')\n",
        "train = vars\n",
        f"class train:\n def __init__(self, x=1): pass\n {WHOLE}",
    ],
)
def test_what_can_be_called_with_a_trial_is_not(tmp_path: Path, code: str) -> None:
    check_trainable(specified(tmp_path, code))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "def setup(self): pass\n def step(self): pass",
            'setup": takes (self), and is called with',
        ),
        ("def setup(self, c): pass\n async def step(self): pass", 'step": is an async function'),
        (
            f"{WHOLE} def save(self): pass",
            'save": takes (self), and is called with one argument, the folder; see save of',
        ),
    ],
)
def test_methods_that_cannot_be_called_are_refused(tmp_path: Path, code: str, said: str) -> None:
    with pytest.raises(SpecError) as told:
        check_trainable(specified(tmp_path, f"class train:\n {code}\n"))
    assert str(told.value).startswith(f'trainable: "refused.py:train.{said}')


def test_a_stop_function_is_called_with_two_arguments(tmp_path: Path) -> None:
    code = "def train(trial): pass\ndef enough(metrics): pass\n"
    spec = specified(tmp_path, code, stop={"trial": {"function": "refused.py:enough"}})
    with pytest.raises(SpecError, match=r"takes \(metrics\), and is called with two arguments"):
        check_trainable(spec)


def test_an_error_of_syntax_is_found_without_an_import(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"SyntaxError: invalid syntax \(refused.py, line 1\)$"):
        precheck(specified(tmp_path, "def train(:\n"))
