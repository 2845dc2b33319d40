"""Words that docstrings and comments of the product do without: CONTRIBUTING.md says what to write
instead.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AVOIDED = re.compile(
    r"\b(somebody|is told|says so|goes on|of (?:the user's|one's) own|that is there|who wants)\b"
)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module, each with its line."""
    statement = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and statement):
            yield token.start[0], " ".join(token.string.split())
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def test_docstrings_and_comments_are_in_plain_words() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {match[0]}"
        for folder in ("search", "tasks", "infra", "flows", "regrow")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in texts(file.read_text())
        for match in AVOIDED.finditer(text)
    ]
    assert found == []


def test_a_text_that_is_no_docstring_is_not_looked_at() -> None:
    source = '"""One."""\n\nx = "somebody"  # two\n\n\ndef f():\n    """Three."""\n'
    assert [line for line, _ in texts(source)] == [1, 3, 7]
