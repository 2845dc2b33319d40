"""What the command line does with an error of a library: a user's file in the place of the library
is named, and Ctrl-C is none.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, field_serializer

from regrow.cli import app as command
from regrow.cli.app import hidden_module


@pytest.fixture
def six(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "six.py").write_text("def fails():\n    raise KeyError('within')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "six", raising=False)
    importlib.import_module("six")
    yield tmp_path / "six.py"
    del sys.modules["six"]


def raised(code: str) -> BaseException:
    with pytest.raises((AttributeError, ImportError, KeyError, ValueError)) as found:
        exec(code, {})
    return found.value


@pytest.mark.parametrize(
    "code", ["import six; six.PY3", "from six import PY3", "import six; six.fails()"]
)
def test_what_comes_from_it(six: Path, code: str) -> None:
    assert (
        hidden_module(raised(code))
        == f"{six} is imported in place of the library 'six', which others need; give it another name"
    )


@pytest.mark.parametrize(
    "code", ["raise ValueError", "None.six", "import nothing", "import json; json.six"]
)
def test_what_does_not(six: Path, code: str) -> None:
    assert hidden_module(raised(code)) == ""


def test_a_library_in_another_place_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "six.py").write_text("")
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, "six", raising=False)
    assert hidden_module(raised("import six; six.PY3")) == ""
    del sys.modules["six"]


class Interrupted(BaseModel):
    value: int = 1

    @field_serializer("value")
    def interrupt(self, value: int) -> int:
        raise KeyboardInterrupt(value)


@pytest.mark.parametrize("how", ["model_dump", "model_dump_json"])
def test_ctrl_c_in_a_serializer_of_pydantic_is_no_bug(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pydantic raises an error of its own, without the KeyboardInterrupt as its cause for JSON."""
    monkeypatch.setattr(command, "app", getattr(Interrupted(), how))
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "")


def test_a_signal_there_at_the_start_of_a_session_interrupts_it(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pydantic import BaseModel, field_serializer
        from regrow import cli
        from regrow.cli import app

        class Interrupted(BaseModel):
            value: int = 1

            @field_serializer("value")
            def interrupt(self, value):
                os.kill(os.getpid(), signal.SIGTERM)

        app.app = Interrupted().model_dump_json
        sys.argv = ["regrow", "run", "a.yaml"]
        cli.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (3, "interrupted before anything was begun\n")
