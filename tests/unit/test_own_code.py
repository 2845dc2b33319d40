"""The trial's code in processes that it starts: found where the trial finds it, and in nobody's way
before.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.tasks.attempt.trainable import find
from regrow.tasks.process.own_code import (
    CODE,
    TRIAL,
    WORK,
    OwnCode,
    install,
    second_name,
    variables,
)


@pytest.fixture(autouse=True)
def _python_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import path, finders and modules are as before at the end."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "own_trainable.py").write_text(
        "import own_beside\nVALUE = own_beside.VALUE\ndef train(trial): pass\n"
    )
    (tmp_path / "own_beside.py").write_text("VALUE = 7\n")
    (tmp_path / "queue.py").write_text("raise RuntimeError('not Python\\'s')\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "part.py").write_text("VALUE = 8\n")
    return tmp_path


def installed(folder: Path, trainable: str = "deep/own_trainable.py:train") -> None:
    install({TRIAL: "1", **variables(trainable, str(folder))})


def test_without_it_nothing_is_found(folder: Path) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("own_beside")


def test_the_trainables_module_is_found_whatever_its_folder_and_what_lies_beside_the_specification(
    folder: Path,
) -> None:
    installed(folder)
    assert importlib.import_module("own_trainable").VALUE == 7
    assert importlib.import_module("own_package.part").VALUE == 8
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("own_package.missing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("own_missing")


def test_a_module_whose_name_was_taken_has_the_name_that_it_has_in_the_trial(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_trainable", pytest)
    there = find("deep/own_trainable.py:train", str(folder)).__module__
    assert there == second_name(folder / "deep" / "own_trainable.py")
    del sys.modules[there]
    installed(folder)
    assert importlib.import_module(there).VALUE == 7


def test_the_folder_is_in_nobodys_way_until_it_is_needed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "queue")
    before = list(sys.path)
    installed(folder)
    importlib.import_module("queue")
    assert sys.path == before
    importlib.import_module("own_beside")
    assert sys.path == [str(folder), *before], "in front, as in the trial"


def test_what_ray_has_shipped_is_where_the_worker_is_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    install({TRIAL: "1", **variables("deep/own_trainable.py:train", None)})
    monkeypatch.chdir("/")
    assert importlib.import_module("own_trainable").VALUE == 7


def test_a_folder_that_another_node_of_the_host_unpacks_anew_stays_where_processes_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "working_dir_files" / "_ray_pkg_1"
    monkeypatch.setenv("PYTHONPATH", f"{shipped}{os.pathsep}/elsewhere")
    environment = {
        TRIAL: "1",
        "RAY_RAYLET_PID": "17",
        "PWD": str(shipped),
        **variables("deep/own_trainable.py:train", None),
    }
    for _ in range(2):  # two of its processes: before, and after
        shutil.copytree(folder, shipped, ignore=shutil.ignore_patterns("working_dir_files"))
        monkeypatch.chdir(shipped)
        monkeypatch.setattr(sys, "path", [str(shipped), *sys.path])
        install(environment)
        shutil.rmtree(shipped)
        assert Path("own_beside.py").read_text() == "VALUE = 7\n"
        assert importlib.import_module("own_trainable").VALUE == 7
    assert Path.cwd() == Path(sys.path[0]) == shipped.with_name("_ray_pkg_1-17")
    assert os.environ["PYTHONPATH"] == f"{shipped}-17{os.pathsep}/elsewhere"
    shipped.mkdir()
    monkeypatch.chdir(shipped)
    shipped.rmdir()  # in the instant before it is looked at
    install(environment)
    assert Path.cwd() == shipped.with_name("_ray_pkg_1-17")


@pytest.mark.parametrize("missing", [TRIAL, CODE])
def test_other_processes_than_a_trials_are_left_alone(missing: str, folder: Path) -> None:
    environment = {
        TRIAL: "1",
        WORK: str(folder),
        **variables("deep/own_trainable.py:train", str(folder)),
    }
    before, place = list(sys.meta_path), Path.cwd()
    install({name: value for name, value in environment.items() if name != missing})
    assert (sys.meta_path, Path.cwd()) == (before, place)


def test_the_process_is_where_the_trial_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    install({TRIAL: "1", WORK: str(folder), **variables("own_beside.py:train", str(folder))})
    assert Path.cwd() == folder


def test_a_module_that_is_no_file_of_the_folder_is_not_made_up(folder: Path) -> None:
    code = OwnCode("own_installed.module:train", folder)
    assert code.find_spec("own_installed") is None
    assert code.find_spec("part", [str(folder / "own_package")]) is None
