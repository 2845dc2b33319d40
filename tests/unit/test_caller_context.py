"""What a process takes over of the terminal in which its command was typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regrow.infra.machine.caller_context import CallerContext


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {
        "SAME": "1",
        "OTHER": "old",
        "GONE": "x",
        "RAY_AUTH_TOKEN": "mine",
        "PREFECT_API_URL": "u",
    }.items():
        monkeypatch.setenv(name, value)


def pytests() -> dict[str, str]:
    """What pytest has set for itself."""
    return {name: value for name, value in os.environ.items() if name.startswith("PYTEST_")}


def test_it_takes_over_what_is_otherwise_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    there = {
        "SAME": "1",
        "OTHER": "new",
        "MORE": "2",
        "RAY_AUTH_TOKEN": "theirs",
        "PWD": "/",
    } | pytests()
    typed = CallerContext.of_shell(str(tmp_path / "there"), there)
    assert typed.variables == {"OTHER": "new", "MORE": "2", "GONE": None}
    typed.take_over()
    here = {
        "SAME": "1",
        "OTHER": "new",
        "MORE": "2",
        "RAY_AUTH_TOKEN": "mine",
        "PREFECT_API_URL": "u",
    } | pytests()
    assert dict(os.environ) == here
    assert Path.cwd() == tmp_path / "there"


def test_what_a_process_that_is_started_for_it_has_from_the_start() -> None:
    variables = {"OTHER": "new", "GONE": None}
    assert CallerContext(variables=variables).inherited() == {"OTHER": "new"}
    assert CallerContext(folder="/there", variables=variables).inherited() == {
        "OTHER": "new",
        "REGROW_WORK": "/there",
    }


def test_a_folder_that_is_not_here_changes_nothing(tmp_path: Path) -> None:
    CallerContext.of_shell(str(tmp_path / "elsewhere"), dict(os.environ)).take_over()
    assert Path.cwd() == tmp_path
