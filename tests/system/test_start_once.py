"""What a run does once: each of its processes validates the specification, and its driver prepares
the experiment and surveys its log. A raised total leaves alone what has ended.

Counted in the real processes: a `sitecustomize` writes down each call of the functions that do it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.system.conftest import Desk
from tests.system.test_main_job import check_whole

COUNTED = {
    "regrow.search.spec.checks": "check",  # the last step of validation, whoever asks for it
    "regrow.infra.state.experiments": "prepare",
    "regrow.infra.log.reading": "survey",
}
HOOK = f"""
import functools, importlib.util, os, sys


class Counting:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in {COUNTED}:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, cls)
        spec.loader.exec_module = functools.partial(executed, spec.loader.exec_module)
        return spec


def executed(load, module):
    load(module)
    name = {COUNTED}[module.__name__]
    setattr(module, name, counted(getattr(module, name)))


def counted(function):
    def call(*given, **options):
        with open("/proc/self/cmdline") as told, open(
            os.path.join(os.environ["COUNTS"], str(os.getpid())), "a"
        ) as counts:
            print(function.__name__, told.read().replace("\\0", " "), file=counts)
        return function(*given, **options)

    return call


sys.meta_path.insert(0, Counting)
"""


def counts(desk: Desk, *command: object) -> dict[str, list[Counter[str]]]:
    """Runs a command; returns the calls of each of its processes, by what the process is."""
    hook = desk.folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    folder = desk.folder / f"counts-{command[0]}"
    folder.mkdir()
    desk.run(*command, PYTHONPATH=str(hook), COUNTS=str(folder))
    found: dict[str, list[Counter[str]]] = {}
    for file in folder.iterdir():
        lines = [line.split(maxsplit=1) for line in file.read_text().splitlines()]
        found.setdefault(kind(lines[-1][1]), []).append(Counter(name for name, _ in lines))
    return found


def kind(process: str) -> str:
    """What a process is, by its command line: Ray names those of actors and tasks."""
    for word in ("coordinator", "Recorder"):
        if process.startswith(f"ray::{word}") or f"ray::regrow-{word}" in process:
            return word
    return "driver" if "-m regrow" in process else Path(process.split(maxsplit=1)[0]).name


@pytest.mark.usefixtures("shared_prefect")
def test_a_run_and_a_raised_total_parse_the_specification_prepare_and_survey_once(
    desk: Desk,
) -> None:
    once, parsed = Counter(check=1, prepare=1, survey=1), [Counter(check=1)]
    file, points = desk.write("once", seconds=0.0, max_steps=1), []
    for command in (("run", file), ("resume", "once", "--trials", 5)):
        found = counts(desk, *command)
        assert found == {"driver": [once], "coordinator": parsed, "Recorder": parsed}
        points.append(desk.points("once"))
    assert "finished already" in desk.run("resume", "once").stdout
    check_whole(desk, "once", 5)
    assert points[0] == [point for point in points[1] if point["trial"] < 4]
