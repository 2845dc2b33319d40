"""The references: parts of pages that are made of docstrings, of the specification's schema, of
the command line and of the events.

A part stands in its page between two marks, so that the page can be read where the repository is:

    <!-- generated: events -->
    ...
    <!-- /generated -->

`python -m docs.site.reference` writes all of them anew; a test compares. The site makes its own,
while it is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from docs.site import command_line, events, python_api, specification

ROOT = Path(__file__).resolve().parents[2]
GENERATED: dict[str, Callable[[], str]] = {
    "specification": specification.page,
    "command line": command_line.page,
    "domains": specification.domains,
    "events": events.page,
    "prefect events": events.of_prefect,
}
PYTHON = "python "
"""Begins the mark of a name of the Python API."""
_PART = re.compile(
    r"^<!-- generated: (?P<said>[^\n]+) -->\n.*?^<!-- /generated -->$", re.MULTILINE | re.DOTALL
)


def pages() -> list[Path]:
    """The pages that have such a part."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in found if _PART.search(page.read_text())]


def anew(markdown: str) -> str:
    """A page with its parts as they are to stand there. Raises KeyError for one that is unknown."""

    def part(mark: re.Match[str]) -> str:
        made = _made(mark["said"]).strip("\n")
        return f"<!-- generated: {mark['said']} -->\n\n{made}\n\n<!-- /generated -->"

    return _PART.sub(part, markdown)


def for_the_site(markdown: str) -> str:
    """A page with its parts as the site shows them: those of Python are left to mkdocstrings."""

    def part(mark: re.Match[str]) -> str:
        said = mark["said"]
        if said.startswith(PYTHON):
            return python_api.directive(said.removeprefix(PYTHON))
        return _made(said)

    return _PART.sub(part, markdown)


def _made(said: str) -> str:
    if said.startswith(PYTHON):
        return python_api.page(said.removeprefix(PYTHON))
    return GENERATED[said]()


if __name__ == "__main__":
    for one in pages():
        one.write_text(anew(one.read_text()))
