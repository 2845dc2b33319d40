"""The command line as a whole: where a command is found, what a start loads, and what the exit
codes mean.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from regrow.cli.app import COMMANDS
from regrow.cli.exit_codes import ExitCode, of_experiment
from regrow.search.events import AnyEvent, Closed, Status
from tests.unit.fresh import printed
from tests.unit.simulated import created, opened
from tests.unit.told import folded

ROOT = Path(__file__).resolve().parents[2]
SHARED = {
    "__init__",
    "app",
    "cluster",
    "console",
    "exit_codes",
    "help",
    "options",
    "spec_file",
    "tables",
}


def test_each_module_has_a_command_or_is_shared_by_several() -> None:
    modules = {command.__module__ for commands in COMMANDS.values() for command in commands}
    assert {file.stem for file in (ROOT / "regrow" / "cli").glob("*.py")} == {
        m.rpartition(".")[2] for m in modules
    } | SHARED


def test_the_list_of_commands_loads_no_service_and_nothing_of_an_experiments_run() -> None:
    """It is what a shell's completion would wait for: Ray takes a second, Prefect one and a half,
    MLflow four.
    """
    code = (
        "import sys; sys.argv = ['regrow', '--help']\n"
        "from regrow.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print('loaded:', *({m.partition('.')[0] for m in sys.modules} & {'ray', 'prefect', 'mlflow', 'optuna', 'numpy'}),"
        " *(m for m in ('regrow.flows.launch', 'regrow.flows.run', 'regrow.result') if m in sys.modules))"
    )
    assert printed(code).splitlines()[-1] == "loaded:"


def test_the_exit_code_is_that_of_the_experiments_end() -> None:
    def after(*events: AnyEvent) -> ExitCode:
        history = folded([created(trials=1), opened(0.0, trials=1), *events])
        return of_experiment(history)

    assert after() is ExitCode.INTERRUPTED, "nobody closed its log"
    found = {status: after(Closed(t=1.0, status=status)) for status in get_args(Status)}
    assert found == {"finished": 0, "failed": 1, "interrupted": 3, "stopped": 3}


def test_the_reference_has_every_exit_code() -> None:
    page = (
        (ROOT / "docs" / "reference" / "command-line.md")
        .read_text()
        .split("## Exit codes")[1]
        .split("\n## ")[0]
    )
    assert [int(code) for code in re.findall(r"^\| (\d) \|", page, re.MULTILINE)] == list(ExitCode)
