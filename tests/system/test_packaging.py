"""What is shipped: the wheel, the sdist, the lock, the deployment; each as its user meets it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from regrow.infra.prefect.server import prefect_server

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PARTS = ("search", "tasks", "flows", "infra")


def run(*command: object, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, links as links, as a fresh clone has it."""
    target = tmp_path_factory.mktemp("source") / "regrow"
    skipped = shutil.ignore_patterns(
        ".git", ".venv", ".regrow", ".*_cache", ".hypothesis", "__pycache__", "dist"
    )
    shutil.copytree(ROOT, target, symlinks=True, ignore=skipped)
    return target


@pytest.fixture(scope="module")
def built(source: Path) -> Path:
    """A folder with the sdist, the wheel and, in `again`, the wheel that is built from the
    sdist.
    """
    dist = source / "dist"
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "sdist",
        "-t",
        "wheel",
        "-d",
        dist,
        cwd=source,
    )
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        archive.extractall(dist / "unpacked")  # our own; Python before 3.11.4 has no filters
    unpacked = next((dist / "unpacked").iterdir())
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        dist / "again",
        cwd=unpacked,
    )
    return dist


def modules(folder: Path) -> set[str]:
    """The modules of the package as they are in the source tree, as paths in a wheel."""
    face = {str(file.relative_to(folder)) for file in (folder / "regrow").rglob("*.py")}
    return face | {
        f"regrow/{file.relative_to(folder)}"
        for part in PARTS
        for file in (folder / part).rglob("*.py")
    }


@pytest.mark.parametrize("wheel", ["*.whl", "again/*.whl"], ids=["from the tree", "from the sdist"])
def test_a_wheel_holds_every_module_once_and_nothing_else(
    built: Path, source: Path, wheel: str
) -> None:
    (file,) = built.glob(wheel)
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    assert {name for name in names if name.endswith(".py")} == modules(source)
    assert "regrow/py.typed" in names
    assets = [
        file
        for owner in ("show/web", "show/report", "apps/page", "apps/serving")
        for part in ("templates", "static")
        for file in (source / "regrow" / owner / part).iterdir()
    ]
    assert {str(file.relative_to(source)) for file in assets} <= set(names), (
        "all pages are made of them"
    )
    assert [name for name in names if not name.startswith(("regrow/", "regrow-"))] == []
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a fresh environment with the wheel from the sdist, which holds the same as that
    from the tree; the dependencies are those of this environment.
    """
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (wheel,) = built.glob("again/*.whl")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=home,
    )
    (site,) = (home / "lib").glob("python*/site-packages")
    # A line in a .pth is put on the path without its own .pth files, hence without the editable
    # install of this tree.
    (site / "dependencies.pth").write_text(str(Path(pytest.__file__).parents[1]) + "\n")
    return python


def test_the_installed_wheel_runs_outside_of_the_repository(
    installed: Path, tmp_path: Path
) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    places = run(
        installed,
        "-c",
        "import regrow, regrow.search.spec as s, regrow.tasks.trial.trial as t, regrow.flows.run as f, regrow.infra.log.log as i;"
        "print(*(m.__file__ for m in (regrow, s, t, f, i)))",
        cwd=tmp_path,
        env=environment,
    ).split()
    assert all(Path(place).is_relative_to(installed.parents[1]) for place in places)
    schema = json.loads(run(installed.with_name("regrow"), "schema", cwd=tmp_path, env=environment))
    assert {"name", "trainable", "space"} <= schema["properties"].keys()


def locked() -> dict[str, list[tuple[Version, str]]]:
    """The versions in the lock by package, with the text up to the next package."""
    text = (ROOT / "requirements.lock").read_text()
    found: dict[str, list[tuple[Version, str]]] = {}
    for entry in re.split(r"\n(?=[a-z0-9])", text):
        if match := re.match(r"([a-z0-9.-]+)==([^\s;]+)", entry):
            found.setdefault(match[1], []).append((Version(match[2]), entry))
    return found


def test_the_lock_covers_every_dependency_with_hashes_and_names_no_host() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        Requirement(line)
        for line in [*project["dependencies"], *extras["examples"], *extras["s3"], *extras["dev"]]
    ]
    lock = locked()
    assert [
        str(r)
        for r in wanted
        if not any(r.specifier.contains(v) for v, _ in lock.get(re.sub("[_.]", "-", r.name), []))
    ] == [], "run `make lock`"
    assert [
        name
        for name, entries in lock.items()
        if any("--hash=sha256:" not in entry for _, entry in entries)
    ] == []
    assert not re.search(
        r"://|index-url|find-links|trusted-host|^-",
        (ROOT / "requirements.lock").read_text(),
        re.MULTILINE,
    )
    assert "torch" not in lock, "its hash would tie everybody to one build"


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user with a Prefect server of their own, and its work pool `regrow`."""
    tmp_path = tmp_path_factory.mktemp("prefect")
    with prefect_server(tmp_path / "server") as server:
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PREFECT_", "RAY_", "MLFLOW_", "REGROW_"))
        }
        home = {
            "HOME": str(tmp_path),
            "PREFECT_HOME": str(tmp_path / "prefect"),
            "REGROW_STATE": str(tmp_path / "state"),
        }
        environment = {
            **clean,
            **server.environment(),
            **home,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        ask(environment, "POST", "work_pools/", json={"name": "regrow", "type": "process"})
        yield environment


def ask(prefect: dict[str, str], method: str, path: str, **given: Any) -> Any:
    """What the server answers; Prefect's own commands take three seconds to start."""
    user, _, password = prefect["PREFECT_API_AUTH_STRING"].partition(":")
    url = f"{prefect['PREFECT_API_URL']}/{path}"
    answer = httpx.request(method, url, auth=(user, password), timeout=30, **given)
    return answer.raise_for_status().json()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, prefect: dict[str, str]) -> Path:
    """A folder with the deployment and its example, made small; the server has it."""
    folder = tmp_path_factory.mktemp("deployed") / "project"
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "prefect.yaml", folder)
    spec = yaml.safe_load((folder / "examples/digits.yaml").read_text()) | {
        "trials": 3,
        "max_steps": 2,
    }
    (folder / "examples/digits.yaml").write_text(yaml.safe_dump(spec))
    run(BIN / "prefect", "--no-prompt", "deploy", "--all", cwd=folder, env=prefect)
    return folder


@pytest.mark.nightly  # Prefect's own worker runs deployments in test_schedules.py
def test_a_run_of_the_deployment_is_the_experiment(prefect: dict[str, str], project: Path) -> None:
    run(BIN / "prefect", "deployment", "run", "regrow/experiment", cwd=project, env=prefect)
    run(
        BIN / "prefect",
        "worker",
        "start",
        "--pool",
        "regrow",
        "--run-once",
        cwd=project,
        env=prefect,
    )
    done = json.loads(run(BIN / "regrow", "show", "digits", "--json", cwd=project, env=prefect))
    assert done["status"] == "finished"
    assert len(done["trials"]) == 3


def test_prefect_accepts_the_deployment(prefect: dict[str, str], project: Path) -> None:
    deployment = ask(prefect, "GET", "deployments/name/regrow/experiment")
    assert deployment["parameters"] == {"name": "digits", "spec": "examples/digits.yaml"}
    assert deployment["parameter_openapi_schema"]["required"] == ["name"]
    run(BIN / "regrow", "schedules", "--resume", "nightly", cwd=project, env=prefect)
    (nightly,) = map(
        json.loads,
        run(BIN / "regrow", "schedules", "--json", cwd=project, env=prefect).splitlines(),
    )
    assert (nightly["name"], nightly["words"], nightly["paused"]) == (
        "nightly",
        "0 2 * * * Europe/Zurich",
        False,
    )
    assert [at[10:16] for at in nightly["next"]] == ["T02:00"] * 3
