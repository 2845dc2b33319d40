"""A state root that several users share, as a team does, or that this user may only read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.infra.stores.local import LocalStore
from tests.unit.fresh import fresh

LOOKS = """
import os, sys
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError
places = Places.at(sys.argv[1])
os.getuid() or os.setuid(65534)  # root may read everything
print(places.experiments(), places.storage.has("ours"), places.storage.has("none"))
for ask in (lambda: places.known("mine"), places.writable):
    try:
        print(ask())
    except UserError as error:
        print(error)
print(places.prepared().services.relative_to(os.environ["REGROW_HOME"]).parent)
os.environ["REGROW_HOME"] = "/nowhere"
try:
    places.prepared()
except UserError as error:
    print(error)
"""

STATUS = """
import os, sys
import regrow.apps.station.start, regrow.apps.station.state
from regrow.cli.station import down, status
from regrow.tasks.errors import UserError
os.getuid() or os.setuid(65534)  # root may read everything
for command in (status, down):
    try:
        command(state=sys.argv[1])
    except UserError as error:
        print(error)
"""

LIST = """
import os, sys
import regrow.cli.ls as listing
from regrow.tasks.errors import UserError
os.getuid() or os.setuid(65534)  # root may read everything
try:
    listing.ls(state=sys.argv[1])
except UserError as error:
    print(error)
"""

AGENTS = """
import os, sys
from pathlib import Path
from regrow.infra.stores.local import LocalStore
from regrow.tasks.errors import UserError
os.getuid() or os.setuid(65534)  # root may read everything
try:
    LocalStore(Path(sys.argv[1])).read("agents/term/1.head")
except UserError as error:
    print(error)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """The root of another user, with what is that user's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made) / "state"
        for name in ("ours", "mine"):
            LocalStore(folder / name).create("log/1", b"")
        for path in (folder.parent, folder, folder / "ours", folder / "ours" / "log"):
            path.chmod(0o755)
        (folder.parent / "home").mkdir()
        (folder.parent / "home").chmod(0o777)
        (folder / "mine").chmod(0)
        yield folder
        for path in (folder, folder / "mine"):
            path.chmod(0o700)


@pytest.mark.parametrize("umask", [0o077, 0o022, 0])
def test_what_one_of_a_team_adds_has_the_permissions_of_the_experiment(
    tmp_path: Path, umask: int
) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours").chmod(0o2770)
    before = os.umask(umask)
    try:
        LocalStore(tmp_path / "ours").create("manifests/5/1/6.json", b"")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "ours").rglob("*")}
    assert modes == {0o770, 0o660}


def test_one_unreadable_experiment_hides_no_other_one_in_the_list(root: Path) -> None:
    LocalStore(root / "ours").create("log/0000000001.jsonl", b"{}")
    (root / "ours" / "log" / "0000000001.jsonl").chmod(0)
    LocalStore(root / "readable").create("log/1", b"")
    (root / "readable").chmod(0o755)
    (root / "readable" / "log").chmod(0o755)
    done = fresh(LIST, root)
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:3]] == [
        ["ours", "unreadable"],
        ["readable", "empty"],
    ], done.stderr
    assert "ours can't be used: Permission denied" in done.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_agents_of_another_user_are_named_as_such(root: Path) -> None:
    LocalStore(root / "ours").create("agents/term/1.head", b"")
    for folder in ("agents", "agents/term"):
        (root / "ours" / folder).chmod(0o755)
    assert fresh(AGENTS, root / "ours").stdout == (
        f"{root}/ours/agents/term/1.head belongs to another user: only the one whose agents run the"
        " experiment can add agents, list them and stop it\n"
    )


@pytest.mark.parametrize("services", ["another user's", "none"])
def test_another_user_sees_what_is_readable_and_is_told_the_rest(root: Path, services: str) -> None:
    if services != "none":
        (root / ".services").mkdir(mode=0o700 if os.getuid() == 0 else 0)
    if os.getuid():
        root.chmod(0o555)
    done = fresh(LOOKS, root, env={**os.environ, "REGROW_HOME": str(root.parent / "home")})
    looks, mine, writing, *rest = done.stdout.splitlines() or [done.stderr]
    assert looks == "['ours'] True False"
    assert mine == (
        f"experiment 'mine' in {root} cannot be read (Permission denied); its owner can change"
        f" that, for example by `chmod -R g+rX {root / 'mine'}`"
    )
    assert writing == (
        f"the state root {root} cannot be written (Permission denied); choose another with --state"
        " or REGROW_STATE"
    )
    if os.getuid() == 0 or services == "none":
        assert rest[0] == ".", "its own services are elsewhere"
        assert rest[1].startswith("/nowhere/folder-")
        assert rest[1].endswith(
            ", where Prefect and MLflow would keep their files, cannot be written (Permission"
            " denied); name another folder in REGROW_HOME"
        )


def test_whether_a_station_runs_on_a_root_that_cannot_be_read_is_unknown(root: Path) -> None:
    root.chmod(0o700 if os.getuid() == 0 else 0)
    done = fresh(STATUS, root)
    why = f"the state root {root} cannot be read (Permission denied)"
    where = "choose another with --state or REGROW_STATE"
    assert done.stdout.splitlines() == [f"{why}; {where}"] * 2, done.stderr
