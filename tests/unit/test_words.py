"""Words that docstrings, comments, messages, names and pages do without: CONTRIBUTING.md says what to
write instead.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AVOIDED = re.compile(
    r"\b(somebody|is told|are told|says so|tells so|goes on|of (?:the user's|one's) own|that is there"
    r"|who wants|hears (?:of|that)|is said)\b"
)
NAME = re.compile(r"[A-Z]\w+")
RAISES = re.compile(
    r"\bRaises? ([A-Z]\w+\b(?!')(?:(?:, and |, or |, | or | and )[A-Z]\w+\b(?!'))*)"
)
_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
"""What is shown as code on a page."""
STORED = {
    ("regrow/apps/station/auto_restart.py", "goes on"),
    ("search/planning/widths.py", "goes on"),
    ("search/schedulers/resource_changing.py", "goes on"),
}
"""Texts by which existing stations know their automations, and reasons that `verify` compares."""
NAMED = ("regrow", "search", "tasks", "infra", "flows")
"""Folders whose names are looked at; without the links to the others in `regrow`."""
NAMES = {
    prefix + name for name in ("go_on", "hear", "said", "standing", "told") for prefix in ("", "_")
}
PUBLIC = {("tasks/trial/trial.py", "told")}
"""Names that users know."""
SHARED = {"Objective", "Report", "Result", "State", "Suggested", "Trainable", "Trial"}
"""Classes of several modules: what the API calls so for each framework, or for another library; and
those that a stored experiment names, which is pickled with an Objective or a Suggested in it.
"""


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts and comments of a module, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], " ".join(token.string.split())


def named(source: str) -> Iterator[tuple[int, str]]:
    """Yield the names that a module gives to variables, arguments, attributes, functions, classes
    and imports, each with its line.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.alias(name=_, asname=str(name)) | ast.alias(name=name):
                yield node.lineno, name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case _:
                pass


def sources_of_names() -> Iterator[tuple[str, str]]:
    """Yield the modules whose names are looked at, each with its source."""
    for folder in NAMED:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.resolve() == file:
                yield file.relative_to(ROOT).as_posix(), file.read_text()


def test_docstrings_comments_and_messages_are_in_plain_words() -> None:
    found = [
        f"{path}:{line}: {match[0]}"
        for path, source in sources_of_names()
        for line, text in texts(source)
        for match in AVOIDED.finditer(text)
        if (path, match[0]) not in STORED
    ]
    assert found == []


def test_errors_that_docstrings_name_exist() -> None:
    known = set(dir(builtins))
    raised: list[tuple[str, str]] = []
    for path, source in sources_of_names():
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NAME:
                known.add(token.string)
            elif token.type == tokenize.STRING:
                text = " ".join(token.string.split())
                raised += [
                    (path, name) for one in RAISES.findall(text) for name in NAME.findall(one)
                ]
    assert [(path, name) for path, name in raised if name not in known] == []


def test_pages_are_in_plain_words() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks/README.md"]
    found = [
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in sorted(pages)
        for match in AVOIDED.finditer(" ".join(_CODE.sub("", page.read_text()).split()))
    ]
    assert found == []


def test_names_say_what_something_is() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path, source in sources_of_names()
        for line, name in named(source)
        if name in NAMES and (path, name) not in PUBLIC
    ]
    assert found == []


def test_a_class_has_its_name_alone() -> None:
    classes = Counter(
        node.name
        for _, source in sources_of_names()
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in classes.items() if count > 1} <= SHARED


def test_each_kind_of_name_is_found() -> None:
    source = (
        "import a as told\n\n\ndef told(told): ...\n\n\nclass told: ...\n\n\n"
        "self.told = [told for told in ()]\n"
    )
    assert [name for _, name in named(source)].count("told") == 6
