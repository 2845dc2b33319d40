"""Which code a session ran, and what of it changed since the one before."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.state import sources as module
from regrow.infra.state.environment import collect
from regrow.infra.state.sources import changes, code_changed, sources
from regrow.search.events import Opened
from regrow.search.spec import COMMAND, Spec
from tests.unit.simulated import SPEC


def put(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def opened(environment: dict[str, Any]) -> Opened:
    t = time.mktime((2026, 11, 21, 14, 2, 0, 0, 0, -1))
    return Opened(t=t, by="driver", driver="d", slots=1, trials=1, environment=environment)


def test_the_trainable_s_file_and_the_folder_s_sources_are_hashed(tmp_path: Path) -> None:
    put(tmp_path, train_py="a = 1", models__net_py="b = 2", sweep_yaml="name: x")
    (tmp_path / "weights.bin").write_bytes(b"0" * 10)
    found = sources(str(tmp_path), "train.py:train")
    assert list(found["files"]) == ["models/net.py", "sweep.yaml", "train.py"]
    assert found["code"]["file"] == "train.py"
    assert found["code"]["sha256"].startswith(found["files"]["train.py"])
    assert (found["code"]["files"], found["code"]["complete"]) == (3, True)
    assert sources(str(tmp_path), "models.net:Net")["code"]["file"] == "models/net.py"
    assert "file" not in sources(str(tmp_path), "pickled")["code"]
    (tmp_path / "train.sh").write_text("python train.py")
    command = Spec.parse({**SPEC, "trainable": COMMAND, "command": ["bash", "train.sh", "{x}"]})
    assert sources(str(tmp_path), command.program)["code"]["file"] == "train.sh"


@pytest.mark.parametrize(
    "aside", [".git", ".venv", "env", "__pycache__", "data", "state", "node_modules"]
)
def test_what_is_no_source_of_the_user_s_is_left_out(tmp_path: Path, aside: str) -> None:
    put(tmp_path, train_py="a = 1")
    before = sources(str(tmp_path), "train.py:train")
    put(tmp_path / aside, more_py="b = 2", inner__more_py="c = 3")
    (tmp_path / "env" / "pyvenv.cfg").parent.mkdir(exist_ok=True)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "state" / ".services").mkdir(parents=True, exist_ok=True)
    assert sources(str(tmp_path), "train.py:train") == before


def test_it_is_bounded_and_says_where_it_left_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, **{f"m{n}_py": str(n) for n in range(9)}, z__train_py="a = 1")
    (tmp_path / "huge.py").write_bytes(b"#" * (module.MOST_BYTES + 1))
    assert "huge.py" not in sources(str(tmp_path), "")["files"]
    monkeypatch.setattr(module, "MOST_FILES", 4)
    few = sources(str(tmp_path), "z.train:train")
    assert (len(few["files"]), few["code"]["complete"]) == (4, False)
    assert "z/train.py" in few["files"], "the trainable's own file is always among them"
    monkeypatch.setattr(module, "MOST_ENTRIES", 3)
    assert sources(str(tmp_path), "z.train:train")["code"] | {"working_dir_sha256": ""} == {
        "file": "z/train.py",
        "sha256": few["code"]["sha256"],
        "working_dir_sha256": "",
        "files": 1,
        "complete": False,
    }


def test_what_changed_is_said_in_one_line_with_the_commit(tmp_path: Path) -> None:
    put(tmp_path, train_py="a = modle", net_py="b = 2", old_py="c = 3")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    before = opened(collect(str(tmp_path), "train.py:train"))
    assert code_changed(before, collect(str(tmp_path), "train.py:train")) is None
    put(tmp_path, train_py="a = model")
    now = collect(str(tmp_path), "train.py:train")
    commit = now["git"]["commit"][:7]
    line = code_changed(before, now)
    assert (
        line
        == f"code: train.py changed since the session of 2026-11-21 14:02 (commit {commit}, dirty)"
    )
    put(tmp_path, net_py="b = 3", new_py="d")
    (tmp_path / "old.py").unlink()
    line = code_changed(before, collect(str(tmp_path), "train.py:train"))
    assert line is not None
    assert line.startswith("code: net.py, new.py, old.py and train.py changed since")


def test_a_new_commit_of_the_same_files_is_said_too_and_an_old_log_says_nothing() -> None:
    files = {"files": {"train.py": "a"}}
    one, two = {**files, "git": {"commit": "a" * 40}}, {**files, "git": {"commit": "b" * 40}}
    assert changes(one, two) == ["the commit"]
    assert changes(one, one) == []
    assert changes({}, two) == []
    assert code_changed(opened({}), two) is None
    many = {"files": {f"m{n}.py": "x" for n in range(9)}}
    line = code_changed(opened({"files": {}}), many)
    assert (
        line
        == "code: m0.py, m1.py, m2.py and 6 others changed since the session of 2026-11-21 14:02"
    )
