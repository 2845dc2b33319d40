"""What a machine over SSH gets for its agent, and the unit that keeps it running there, without SSH:
the supervisor and its agent are real processes below a home of their own.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.clusters import project, unit, unit_files
from regrow.infra.clusters.agents import AgentWork
from regrow.infra.clusters.description import Cluster, Ssh
from regrow.infra.clusters.ssh import SshEngine
from regrow.tasks.errors import RegrowError
from tests.system.hosts import await_
from tests.unit.test_clusters import SSH, changed

NAME = "sweep.0123abcd"
VALUE = 'a "b" $HOME `id` \\ c'


def parsed(**keys: Any) -> Ssh:
    found = Cluster.parse(changed(SSH, python=sys.executable, **keys))
    assert isinstance(found, Ssh)
    return found


def test_a_machine_that_answers_nothing_of_ours_is_not_one_without_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\ncat > /dev/null\necho Welcome\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("REGROW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine = SshEngine(parsed(machines=["a"]))
    assert [(one.state, one.reason) for one in engine.agents()] == [
        ("does not answer", "printed 'Welcome'")
    ]
    with pytest.raises(RegrowError, match=r"left, or may be: a: does not answer"):
        engine.end(print)


def work(project: Path, **changes: Any) -> AgentWork:
    words = ("join", "a b.yaml", "--state", "/mnt/my lab/state", "--set", "x=$(id)")
    given = {"experiment": "sweep", "state": "/mnt/my lab/state", "words": words, **changes}
    return AgentWork(project=project, **given)


def test_a_machine_gets_the_project_without_secrets_and_the_values_in_a_file_of_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", VALUE)
    project = tmp_path / "my project"
    for file, text in {
        "run.sh": "#!/bin/sh\n",
        ".gitignore": "*.bin\n!small.bin\n",
        "large.bin": "x",
        "small.bin": "x",
        ".env": "KEY=hush",
        ".git/config": "x",
        "results/log/0": "x",
        "lib/a[1].py": "x",
    }.items():
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text(text)
    (project / "run.sh").chmod(0o755)
    said: list[str] = []
    cluster = parsed(env={"TOKEN": "$TOKEN", "PLAIN": "b"})
    parcel = unit_files.packed(cluster, work(project, state=str(project / "results")), said.append)
    with tarfile.open(fileobj=io.BytesIO(parcel.archive)) as tar:
        assert {one.mode for one in tar} == {0o600}
        tar.extractall(tmp_path / "there")  # our own; Python before 3.11.4 has no filters
    packed = next((tmp_path / "there").glob("units/*/project-*.tar.gz"))
    with tarfile.open(packed) as tar:
        names = {one.name for one in tar if one.isfile()}
    assert names == {"run.sh", ".gitignore", "small.bin", "lib/a[1].py"}
    (line,) = said
    assert line.startswith(
        "not sent, as they may hold keys or passwords, cannot be read, or lead to a folder above"
        " (never sent) or to much data:"
        " .env; --include"
    )
    shell = 'set -a; . "$0"; exec "$@"'
    show = [sys.executable, "-c", "import os; print(os.environ['TOKEN'])"]
    values = tmp_path / "there" / "environment"
    read = subprocess.check_output(["sh", "-c", shell, values, *show], text=True)
    assert read == f"{VALUE}\n"
    texts = unit_files.files(cluster, work(project))
    assert VALUE not in "".join(texts.values())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("exported", [False, True])
def test_systemd_takes_the_unit_also_with_names_of_the_greatest_length(
    tmp_path: Path, *, exported: bool
) -> None:
    cluster = parsed(name="c" * 40)
    what = work(tmp_path / "100% my project", experiment="e" * 63)
    called, text = next(
        (name, text)
        for name, text in unit_files.files(cluster, what).items()
        if name.endswith(".service")
    )
    assert called == unit.service("c" * 40, unit_files.unit_name(what))
    file = tmp_path / called
    file.write_text(text if exported else unit_files.unit(cluster, what))
    # Without --user, for which a session of a user's own would have to run.
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False
    )
    assert (
        ended.returncode,
        [line for line in ended.stderr.splitlines() if file.name in line],
    ) == (0, [])


def test_the_agents_command_keeps_each_word(tmp_path: Path) -> None:
    text = unit_files.script(parsed(cpus=2, ports="20000-20100"), work(tmp_path))
    assert "\nneed -d '/mnt/my lab/state'\n" in text
    assert text.endswith(
        f"exec {sys.executable} -P -m regrow join 'a b.yaml' --state '/mnt/my lab/state' --set"
        " 'x=$(id)' --cpus 2 --ports 20000-20100\n"
    )
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine's home with one unit, whose agent ends with the codes in `codes`, one after the
    other, and notes its starts in `ran`.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = unit.root("lab") / "units" / NAME
    folder.mkdir(parents=True)
    (tmp_path / "sent" / "lib" / "empty").mkdir(parents=True)
    (tmp_path / "sent" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "sent" / "run.sh").chmod(0o700)
    (tmp_path / "sent" / "lib" / "plain.py").touch(0o600)
    sent = project.packed(tmp_path / "sent", print, most=1_000, of="a test packs")
    (folder / "project-1.tar.gz").write_bytes(sent)
    (folder / "agent.sh").write_text(
        f"""export {unit.MARK}=lab {unit.NAMED}={NAME}
        echo $$ >> {tmp_path}/ran
        code=$(head -n 1 {tmp_path}/codes)
        sed -i 1d {tmp_path}/codes
        [ "$code" != wait ] || exec {sys.executable} -c 'import time; print("at work", flush=True); time.sleep(600)'
        echo "ends with $code"; exit $code
        """
    )
    yield tmp_path
    unit.stop("lab")


def does(*words: str) -> dict[str, Any]:
    """What a command for this machine answers."""
    command = [sys.executable, "-P", "-m", "regrow.infra.clusters.unit", "lab", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def state() -> str:
    (one,) = unit.status("lab")["units"]
    assert one["name"] == NAME
    found: str = one["state"]
    return found


@pytest.mark.parametrize("last", unit.FINAL)
def test_an_agent_starts_again_until_its_end_is_final(home: Path, last: int) -> None:
    (home / "codes").write_text(f"3\n{last}\n")
    assert does("start", NAME) == {"by": "supervisor"}
    await_(lambda: state() == "ended", "the end of the supervisor")
    assert len((home / "ran").read_text().splitlines()) == 2
    (one,) = unit.status("lab")["units"]
    assert one["said"] == f"ends with {last}"
    made = unit.root("lab") / "units" / NAME / "project-1"
    assert (made / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (made / "lib" / "plain.py").stat().st_mode & 0o777 == 0o644
    assert (made / "lib" / "empty").is_dir()


def test_an_agent_is_started_once_told_to_leave_and_nothing_is_left(home: Path) -> None:
    (home / "codes").write_text("wait\nwait\n")
    does("start", NAME)
    await_(lambda: state() == "running", "the agent")
    assert does("start", NAME) == {"by": "supervisor"}
    assert len((home / "ran").read_text().splitlines()) == 1
    log = next((unit.root("lab") / "units" / NAME).glob("*.log"))
    await_(lambda: "at work" in log.read_text(), "its work")
    agent = int((home / "ran").read_text())
    os.kill(agent, signal.SIGKILL)
    await_(lambda: len((home / "ran").read_text().splitlines()) == 2, "its next start")
    assert does("stop") == {"units": [], "left": []}
    assert state() == "ended"


def test_what_ended_experiments_left_is_removed_by_the_next_one_but_not_what_runs(
    home: Path,
) -> None:
    (home / "codes").write_text("0\nwait\n0\n")
    does("start", NAME)
    await_(lambda: state() == "ended", "its end")
    folder = unit.root("lab") / "units"
    shutil.copytree(folder / NAME, folder / "next.1")
    agent = (folder / "next.1" / "agent.sh").read_text()
    (folder / "next.1" / "agent.sh").write_text(agent.replace(NAME, "next.1"))
    does("start", "next.1")
    assert [one.name for one in folder.iterdir()] == ["next.1"]
    await_(lambda: "at work" in next((folder / "next.1").glob("*.log")).read_text(), "its work")
    shutil.copytree(folder / "next.1", folder / NAME)
    (folder / NAME / "agent.sh").write_text(agent)
    does("start", NAME)
    assert {one.name for one in folder.iterdir()} == {"next.1", NAME}
