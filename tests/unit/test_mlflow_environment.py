"""What is found of the code and the machine, and what never is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from regrow.infra.state.environment import begin_collecting, collect, collected, without_credentials


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_a_repository_is_told_by_commit_branch_and_whether_it_was_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "work.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    git(tmp_path, "remote", "add", "origin", "https://ann:secret@example.org/a.git?token=secret")
    (tmp_path / "deep").mkdir()
    found = collect(str(tmp_path / "deep"))
    assert found["git"]["branch"] == "trunk"
    assert len(found["git"]["commit"]) == 40
    assert found["git"]["dirty"] is False
    assert found["git"]["remote"] == "https://example.org/a.git"
    (tmp_path / "work.py").write_text("a = 2\n")
    assert collect(str(tmp_path))["git"]["dirty"] is True


def test_a_folder_in_no_repository_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "git" not in collect(str(tmp_path))
    assert "git" not in collect(None)
    monkeypatch.setenv("PATH", "")
    assert "git" not in collect(str(tmp_path)), "there is no git at all"


def test_packages_and_machine_are_told_and_no_variable_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_MINE", "squeamish ossifrage")
    found = collect(None)
    assert found["packages"]["regrow"] == found["regrow"]
    assert found["machine"]["cpus"] >= 1
    assert found["machine"]["memory_bytes"] > 2**20
    assert "ossifrage" not in json.dumps(found)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://token@example.org/a.git", "https://example.org/a.git"),
        ("ssh://git:word@example.org:22/a", "ssh://example.org:22/a"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("/srv/a@b.git", "/srv/a@b.git"),
    ],
)
def test_an_address_is_shown_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


def test_what_was_begun_is_taken_once(tmp_path: Path) -> None:
    begin_collecting(str(tmp_path))
    first = collected(str(tmp_path))
    assert first == collected(str(tmp_path))
    assert first is not collected(str(tmp_path)), "the next session looks again"
