"""What of a project is sent to no cluster: keys and passwords by their names, by where links lead,
and by what is in them.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package

from regrow.cli.options import include_in_uploads
from regrow.infra.clusters import project
from regrow.infra.machine import confidential as confidential_module
from regrow.infra.machine.confidential import INCLUDE, confidential, excludes, warning
from tests.unit.fresh import fresh

PRIVATE = [
    ".aws/",
    ".SSH/",
    "sub/.kube/",
    ".env",
    ".env.production",
    "prod.env",
    ".netrc",
    ".git-credentials",
    ".pypirc",
    "sub/id_rsa",
    "tls/ca.pem",
    "tls/Server.KEY",
    "credentials.json",
    "kaggle.json",
    "service-account-prod.json",
    "named harmlessly.json",
    "deploy",
    "linked",
    "linked-folder/",
    "a[1]!#.pem",
    "line\nend.key",
    "terraform.tfstate",
]
SENT = [
    "train.py",
    "keys.py",
    ".env.example",
    "id_rsa.pub",
    "tokenizer.json",
    "data.json",
    "secrets.py",
    "environment.yml",
    "monkey.txt",
    "credentials/code.py",
    "sub/model.py",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in [*PRIVATE, *SENT]:
        file = folder / (name if not name.endswith("/") else f"{name}config")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    (folder / "named harmlessly.json").write_text(
        '{ "type" : "service_account", "private_key": "-----BEGIN"}'
    )
    (folder / "deploy").write_text("\n-----BEGIN OPENSSH PRIVATE KEY-----\nx")
    (tmp_path / "id_ed25519").write_text("x")
    (tmp_path / ".ssh").mkdir()
    for name, to in (("linked", "id_ed25519"), ("linked-folder", ".ssh")):
        if (folder / name).is_dir():
            (folder / name / "config").unlink()
            (folder / name).rmdir()
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path / to)
    (folder / "itself").symlink_to("itself")
    return folder


def test_keys_and_passwords_are_left_out_and_code_is_not(folder: Path) -> None:
    assert confidential(folder) == sorted(PRIVATE)
    assert warning(confidential(folder)).startswith(
        "not sent, as they may hold keys or passwords, cannot be read, or lead to a folder above"
        " (never sent) or to much data:"
        " .SSH/, .aws/, .env,"
    )


def test_a_packed_project_has_none_of_them(folder: Path) -> None:
    said: list[str] = []
    packed = project.packed(folder, said.append, most=10_000, of="a test packs")
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert sorted(one.name for one in tar if one.isfile()) == sorted(SENT)
    assert said == [warning(confidential(folder))]


def test_ray_packs_none_of_them(folder: Path, tmp_path: Path) -> None:
    create_package(
        str(folder),
        tmp_path / "made.zip",
        include_gitignore=True,
        excludes=excludes(confidential(folder)),
    )
    with zipfile.ZipFile(tmp_path / "made.zip") as packed:
        assert sorted(name for name in packed.namelist() if not name.endswith("/")) == sorted(SENT)


def test_ray_packs_no_key_of_a_linked_folder_and_follows_no_link_to_a_folder_above_or_to_much_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    for file in (project / "code" / "train.py", other / "common.py", other / "tls" / "ca.key"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    (project / "common").symlink_to(other)
    (project / "code" / "up").symlink_to(project)
    (other / "back").symlink_to(project)
    monkeypatch.setattr(confidential_module, "MOST_LINKED", 2)
    for n in range(3):
        (data := tmp_path / "data").mkdir(exist_ok=True)
        (data / f"{n}.png").write_text("x")
    (project / "images").symlink_to(data)
    assert confidential(project, packed=False) == [], "links are not followed, which takes time"
    left_out = confidential(project)
    assert left_out == ["code/up/", "common/back/", "common/tls/ca.key", "images/"]
    create_package(str(project), tmp_path / "made.zip", True, excludes=excludes(left_out))
    with zipfile.ZipFile(tmp_path / "made.zip") as packed:
        sent = {name for name in packed.namelist() if not name.endswith("/")}
        assert sent == {"code/train.py", "common/common.py"}
    monkeypatch.setenv(confidential_module.INCLUDE, "*")
    assert confidential(project) == ["code/up/", "common/back/"], "it would not end"


def test_what_is_asked_for_is_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INCLUDE, ".env")
    include_in_uploads(["tls/*.pem", ".aws/"])
    assert os.environ[INCLUDE] == ".env:tls/*.pem:.aws/"
    assert {*PRIVATE} - {*confidential(folder)} == {".env", "tls/ca.pem", ".aws/"}


@pytest.mark.parametrize("name", ["theirs", ".git", "theirs.csv"])
def test_what_this_user_may_not_read_is_named_before_ray_fails_at_it(name: str) -> None:
    code = (
        "import os, sys; from pathlib import Path; from regrow.infra.machine.confidential import confidential;"
        "os.getuid() or os.setuid(65534);"  # root may read everything
        "print(confidential(Path(sys.argv[1]), packed=False), flush=True);"
        "print(confidential(Path(sys.argv[1])))"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        theirs = folder / name
        if theirs.suffix:
            theirs.touch()
        else:
            theirs.mkdir()
        theirs.chmod(0)
        done = fresh(code, made)
    if theirs.suffix:
        assert done.stdout == "['theirs.csv']\n" * 2, done.stderr
    else:
        assert done.stdout == f"['{name}/']\n", "a snapshot leaves it out"
        assert f"UserError: {theirs}: this user may not read the folder" in done.stderr
