"""What others wrote steers no terminal: it is shown as text in every table and line, and in JSON as
escapes.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Group
from rich.text import Text

from regrow.cli import app as command
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.search.events import decode, encode
from regrow.show.live.board import Board
from regrow.show.live.grid import Signs
from regrow.show.live.sections import compose
from regrow.show.live.terminal import LineTable, PlainConsole, echo
from tests.unit.paged import logged
from tests.unit.watched import simulated

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "\x1b]0;OWNED\x07\x1b[8m\x9b2J\u202egnp\u200b\u2066\r\nforged  done\x00[bold]\ud800"
"""C0 and C1, marks of direction, no width, lines, markup, half of a pair."""
OURS = re.compile(r"\x1b\[[\d;]*m")


def plain(printed: str) -> list[str]:
    """The lines, of which each is nothing but text."""
    lines = OURS.sub("", printed).split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    return lines


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(), max_size=15), min_size=1, max_size=4),
    colour=st.booleans(),
)
def test_any_text_is_shown_as_text_and_a_row_stays_one_line(texts: list[str], colour: bool) -> None:
    out = io.StringIO()
    console = PlainConsole(
        file=out, width=9999, force_terminal=colour, color_system="standard" if colour else None
    )
    table = LineTable()
    for text in texts:
        table.add_column(text)
    table.add_row(*texts)
    table.add_row(*(Text(text, style="bold") for text in texts))
    console.print(table)
    assert len(plain(out.getvalue())) == 4
    for text in texts:
        console.print(text)
        console.print(Group(Text(text, style="red"), text), soft_wrap=True)
    plain(out.getvalue().replace("\t", " "))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experiments in which all that a user can name is hostile."""
    root = tmp_path_factory.mktemp("state")
    text = json.dumps(HOSTILE[:-1]).encode()  # half of a pair is in no log
    lines = [encode(event) for event in simulated("asha", trials=6, most=None).events]
    for theirs in (b'"accuracy"', b'"lr"', b'"sgd"', b'"seconds"'):
        lines = [line.replace(theirs, text) for line in lines]
    lines = [
        re.sub(rb'"(message|node|where|why)":"[^"]*"', lambda m: b'"%s":%s' % (m[1], text), line)
        for line in lines
    ]
    for name in ("one", "two"):
        logged(root, name, [decode(line) for line in lines])
        notes.add(Places.at(str(root)).store(name), HOSTILE[:-1])
    return root


OTHERS = ("terminal.py", "__init__.py", "simulate.py")
"""The one that does it; one that prints a text of its own before anything is imported; one with a
table of another kind.
"""
COMMANDS = [
    "show one",
    "trials one",
    "trials one --history",
    "best one",
    "best one --schedule",
    "compare one two",
    "ls",
    "verify one",
    "watch one",
    "show one --json",
    "trials one --json",
    "trials one --json --history",
    "best one --json",
    "compare one two --json",
    "ls --json",
    "watch one --json",
]


@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_prints_what_steers_a_terminal(
    root: Path, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["regrow", *line.split(), "--state", str(root)])
    with pytest.raises(SystemExit):
        command.main()
    printed = capfd.readouterr()
    lines = plain(printed.out + printed.err)
    assert not any(line.startswith("forged") for line in lines)
    if "verify" not in line and "ls" not in line:
        assert re.search(r"\\(x1b|u001b)\]0;OWNED\\(x07|u0007)", printed.out)


def test_the_live_board_steers_no_terminal(root: Path) -> None:
    board = Board()
    for segment in sorted((root / "one" / "log").iterdir()):
        for event in segment.read_bytes().splitlines()[1:]:
            with suppress(ValueError):  # the end of a segment
                board.apply(decode(event))
    out = io.StringIO()
    console = PlainConsole(
        file=out, width=200, height=50, force_terminal=True, color_system="truecolor"
    )
    for line in compose(
        board, width=200, height=50, now=board.history.t_last, signs=Signs(), banner=HOSTILE
    ):
        console.print(line, no_wrap=True)
    assert r"\x1b]0;OWNED" in "\n".join(plain(out.getvalue()))


def test_a_line_that_is_told_steers_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    echo(HOSTILE)
    echo(HOSTILE, error=True)
    printed = capfd.readouterr()
    plain(printed.out + printed.err)


def test_nothing_of_the_command_line_is_printed_past_that() -> None:
    files = [
        *(ROOT / "regrow" / "cli").glob("*.py"),
        *(ROOT / "regrow" / "live").glob("*.py"),
        *(ROOT / "regrow").glob("*.py"),
    ]
    found = {
        f"{file.name}: {call}"
        for file in files
        if file.name not in OTHERS
        for call in past(ast.parse(file.read_text()))
    }
    assert found == set()


def past(tree: ast.AST) -> Iterator[str]:
    """Calls that print what is no JSON, or make a console or a table of another kind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            inner = ast.unparse(node.args[0]) if node.args else ""
            if node.func.id in ("Console", "Table", "Table.grid") or (
                node.func.id == "print" and not inner.startswith(("json.dumps(", "_json("))
            ):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and re.match(
            r"sys\.std(out|err)\.write", ast.unparse(node.func)
        ):
            yield ast.unparse(node)
