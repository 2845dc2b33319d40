"""What a killed process leaves in TMPDIR goes away; what a living one uses stays."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from regrow.tasks.process import temporary
from tests.unit.programs import await_true

USES = """
import sys, tempfile
from regrow.tasks.process import temporary
made = tempfile.mkdtemp(prefix="snapshot-", dir=temporary.process_temp_dir())
open(made + "/weights", "wb").write(bytes(1000))
print(made, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / f"regrow-{os.getuid()}"


def started(code: str = USES) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_leaves_is_removed_by_the_next_one_and_what_a_living_one_uses_stays(
    rooms: Path,
) -> None:
    living, used = started()
    killed, left = started()
    killed.kill()
    killed.communicate()
    assert (left / "weights").is_file()
    assert temporary.process_temp_dir().is_dir()
    assert await_true(lambda: not left.parent.exists())
    assert (used / "weights").is_file()
    living.communicate("")
    assert living.returncode == 0


def test_a_forked_child_keeps_its_parents_room_and_makes_one_of_its_own(rooms: Path) -> None:
    code = USES.replace(
        "sys.stdin.read()",
        "import os\nif os.fork() == 0:\n    print(temporary.process_temp_dir(), flush=True)\n    sys.stdin.read()",
    )
    parent, used = started(code)
    parent.wait()
    assert parent.stdout is not None
    own = Path(parent.stdout.readline().strip())
    assert own.is_dir()
    assert own != used.parent
    temporary.process_temp_dir()
    time.sleep(0.5)  # nothing tells that nothing was removed
    assert (used / "weights").is_file()
    assert own.is_dir()
    parent.communicate("")


def test_a_process_that_ends_in_good_order_and_leaves_nothing_in_its_room_removes_it(
    rooms: Path,
) -> None:
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from regrow.tasks.process import temporary; temporary.process_temp_dir()",
        ],
        check=True,
    )
    assert list(rooms.iterdir()) == []


def test_only_this_user_may_enter(rooms: Path) -> None:
    assert temporary.process_temp_dir().stat().st_mode & 0o777 == 0o700
    assert rooms.stat().st_mode & 0o777 == 0o700
    rooms.chmod(0o755)
    assert temporary.own() == rooms
    assert rooms.stat().st_mode & 0o777 == 0o700, "one that was open to others is mended"


def test_a_place_that_somebody_else_has_made_is_not_used(rooms: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    rooms.symlink_to(tmp_path / "elsewhere")
    assert temporary.own() is None
    assert temporary.process_temp_dir().parents[1] == tmp_path
    assert temporary.process_temp_dir().parent.stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_room_that_was_never_locked_or_half_removed_goes_once_it_is_old(rooms: Path) -> None:
    for name in (".making-a", "1-b"):
        (rooms / name).mkdir(parents=True)
    os.utime(rooms / ".making-a", (0, 0))
    os.utime(rooms / "1-b", (0, 0))
    (rooms / "2-c").mkdir()
    temporary.process_temp_dir()
    assert await_true(lambda: not (rooms / ".making-a").exists() and not (rooms / "1-b").exists())
    assert (rooms / "2-c").is_dir()
