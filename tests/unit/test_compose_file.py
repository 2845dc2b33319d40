"""What `regrow up --compose` writes."""

import re
import resource
import signal
import stat
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from regrow.apps.station import compose
from regrow.tasks.errors import UserError

VARIABLE = re.compile(r"\$\{(\w+)(:-[^}]*)?(?::\?[^}]*)?\}")


def test_the_compose_file_is_whole_and_has_no_password(tmp_path: Path) -> None:
    told = "\n".join(compose.write(tmp_path, force=False))
    said, env = (tmp_path / "compose.yaml").read_text(), (tmp_path / ".env").read_text()
    known = dict(line.split("=", 1) for line in env.splitlines())
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert {name for name, default in VARIABLE.findall(said) if not default} == set(known)
    assert not [value for value in known.values() if value in said or value in told]
    assert len(set(known.values())) == len(known)
    assert "@" not in re.sub(r"@postgres:5432/\w+", "", said)  # each version is filled in

    servers = yaml.safe_load(said)
    assert set(servers["services"]) == {"postgres", "s3", "prefect", "mlflow"}
    for service in servers["services"].values():
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        assert all(port.startswith("${BIND:-127.0.0.1}:") for port in service.get("ports", []))
    assert "ports" not in servers["services"]["postgres"]
    image = servers["services"]["prefect"]["build"]["dockerfile_inline"]
    assert f"prefect=={version('prefect')}" in image
    assert f"mlflow=={version('mlflow')}" in image


def test_a_file_that_is_there_stays_and_so_do_passwords(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"MINE=\xe4")
    compose.write(tmp_path, force=False)
    before = (tmp_path / ".env").read_bytes()
    assert before.startswith(b"MINE=\xe4\nPOSTGRES_PASSWORD=")
    (tmp_path / "compose.yaml").write_text("mine")
    with pytest.raises(UserError, match="--force"):
        compose.write(tmp_path, force=False)
    assert (tmp_path / "compose.yaml").read_text() == "mine"
    compose.write(tmp_path, force=True)
    assert (tmp_path / "compose.yaml").read_text() != "mine"
    assert (tmp_path / ".env").read_bytes() == before


def test_a_disk_that_is_full_takes_no_password(tmp_path: Path) -> None:
    compose.write(tmp_path, force=False)
    env = tmp_path / ".env"
    env.write_text("".join(env.read_text().splitlines(keepends=True)[:-1]).rstrip("\n"))
    before, most = env.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, most[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            compose.write(tmp_path, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        signal.signal(signal.SIGXFSZ, ignored)
    assert env.read_bytes() == before
