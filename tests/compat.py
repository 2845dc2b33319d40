"""Tries this checkout with the minor releases of Ray, Prefect and MLflow before and after the
installed ones: `make compat`.

    python -m tests.compat --only mlflow

Each gets an environment in a temporary folder that shows through to the one this runs in, with the
one library exchanged (and what that needs); `.venv` is not touched. There the canary of private
names is run (`tests/unit/test_private_names.py`), the demo, shortened, is run and verified, and the
tests of what touches the library most are run. A table is printed, and what was said goes to
`build/compat`. For a nightly run: it downloads, and takes several minutes for each release.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SAID = HERE / "build" / "compat"
EXTRAS = {"ray": "ray[default,tune]", "prefect": "prefect", "mlflow": "mlflow"}
"""What is exchanged, as it is asked for."""
TESTS = {
    "ray": ("tests/system/test_cluster.py",),
    "prefect": (
        "tests/system/test_task_runner.py",
        "tests/system/test_prefect_server.py",
        "tests/unit/test_recurrence.py",
    ),
    "mlflow": ("tests/system/test_mlflow_sink.py", "tests/unit/test_mlflow_in_trial.py"),
}
"""What touches each library most."""
LIMIT_SECONDS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one release; a column a field, empty for what was not tried since something
    before it failed.
    """

    library: str
    installed: str
    canary: str = ""
    demo: str = ""
    tests: str = ""

    @property
    def passed(self) -> bool:
        return self.canary == self.demo == self.tests == "passed"


def neighbours(library: str) -> list[str]:
    """The minor releases before and after the installed one, as `3.16.*`."""
    major, minor, *_ = map(int, re.findall(r"\d+", version(library)))
    return [f"{major}.{minor + step}.*" for step in (-1, 1) if minor + step >= 0]


def attempt(library: str, release: str, folder: Path) -> Result:
    """Makes the environment, and runs all in it."""
    python = overlay(folder)
    SAID.mkdir(parents=True, exist_ok=True)
    said = SAID / f"{library}-{release.removesuffix('.*')}.txt"
    said.unlink(missing_ok=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    if not _run(said, [*pip, f"{EXTRAS[library]}=={release}"]):
        return Result(library=library, installed=f"{release} cannot be installed")
    asked = f"from importlib.metadata import version; print(version({library!r}))"
    installed = subprocess.run(
        [python, "-c", asked], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    work = folder / "work"
    work.mkdir()
    for name in ("digits.py", "digits.yaml"):
        text = (HERE / "examples" / name).read_text()
        (work / name).write_text(
            text.replace("budget: 15", "trials: 6").replace("max_steps: 27", "max_steps: 9")
        )
    pytest = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    canary = _run(said, [*pytest, "tests/unit/test_private_names.py"])
    regrow = [str(python), "-m", "regrow"]
    demo = all(
        _run(said, [*regrow, *words], work)
        for words in (["run", "digits.yaml"], ["verify", "digits"])
    )
    tests = _run(said, [*pytest, *TESTS[library]])
    return Result(
        library=library,
        installed=installed,
        canary=_word(canary),
        demo=_word(demo),
        tests=_word(tests),
    )


def overlay(folder: Path) -> Path:
    """An environment that has what this one has, behind what will be installed into it. Returns its
    Python.
    """
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run(
        [python, "-c", asked], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    Path(own, "outer.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    return python


def _run(said: Path, command: list[str], cwd: Path = HERE) -> bool:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    with said.open("a") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            file.write(f"ended after {LIMIT_SECONDS} s\n")
            return False
    return done.returncode == 0


def _word(passed: bool) -> str:
    return "passed" if passed else "failed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(EXTRAS), help="some of: %(default)s")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(EXTRAS):
        parser.error(f"--only: {', '.join(sorted(unknown))} (there are {', '.join(EXTRAS)})")
    print("| library | release | canary | demo | tests |\n|---|---|---|---|---|")
    results = []
    for library in chosen:
        for release in neighbours(library):
            with tempfile.TemporaryDirectory(prefix="regrow-compat-") as folder:
                result = attempt(library, release, Path(folder))
            results.append(result)
            print(
                f"| {result.library} | {result.installed} | {result.canary} | {result.demo} | {result.tests} |",
                flush=True,
            )
    print(f"\nwhat was said: {SAID}")
    sys.exit(0 if all(result.passed for result in results if result.demo) else 1)


if __name__ == "__main__":
    main()
