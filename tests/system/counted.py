"""What a run does once, counted in its real processes: a `sitecustomize` writes down each call of the
functions that do it. No test lives here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.system.conftest import Desk

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


ONCE = {
    "driver": [Counter(check=1, prepare=1, survey=1)],
    "coordinator": [Counter(check=1)],
    "Recorder": [Counter(check=1)],
}
"""Each process validates the specification, the driver prepares the experiment and surveys its log."""


def run(desk: Desk, *command: object, expect: int = 0) -> str:
    """What a command prints that starts a session; its processes do once what is to be done once."""
    hook = desk.folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    folder = desk.folder / f"counts-{command[0]}"
    folder.mkdir()
    done = desk.run(*command, expect=expect, PYTHONPATH=str(hook), COUNTS=str(folder))
    found: dict[str, list[Counter[str]]] = {}
    for file in folder.iterdir():
        lines = [line.split(maxsplit=1) for line in file.read_text().splitlines()]
        found.setdefault(kind(lines[-1][1]), []).append(Counter(name for name, _ in lines))
    assert found == ONCE
    return done.stdout


def kind(process: str) -> str:
    """What a process is, by its command line: Ray names those of actors and tasks."""
    for word in ("coordinator", "Recorder"):
        if process.startswith(f"ray::{word}") or f"ray::regrow-{word}" in process:
            return word
    return "driver" if "-m regrow" in process else Path(process.split(maxsplit=1)[0]).name
