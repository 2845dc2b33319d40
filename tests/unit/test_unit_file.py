"""What `regrow up --systemd` writes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from regrow.apps.station import unit
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush")
    root = tmp_path / 'a "state" of 100% $HOME'
    root.mkdir()
    return Places.at(str(root))


def test_the_unit_starts_the_station_again_and_lets_it_save(places: Places, tmp_path: Path) -> None:
    told = unit.write(places, tmp_path)
    [file] = (tmp_path / "config" / "systemd" / "user").iterdir()
    said = file.read_text()
    assert file.name == unit.name(places)
    assert f"systemctl --user enable --now {file.name}" in told
    assert any(line.startswith("loginctl enable-linger") for line in told)
    for line in (
        "Restart=always",
        "KillMode=mixed",
        "TimeoutStopSec=90",
        'Environment="REGROW_STATION_NO_KEEPER=1"',
    ):
        assert line in said.splitlines()
    assert '-m" "regrow" "up" "--foreground" "--state"' in said
    assert '\\"state\\" of 100%% $$HOME' in said
    assert "hush" not in said


def test_a_folder_with_a_line_break_is_refused(places: Places, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line break.*rename the folder"):
        unit.write(places, tmp_path / "a\nUser=root")
    assert not (tmp_path / "config").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit(places: Places, tmp_path: Path) -> None:
    unit.write(places, tmp_path)
    file = unit.folder() / unit.name(places)
    # Without --user, for which a session of a user's own would have to run; the section and its
    # words are the same.
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False
    )
    assert (
        ended.returncode,
        [line for line in ended.stderr.splitlines() if file.name in line],
    ) == (0, [])
