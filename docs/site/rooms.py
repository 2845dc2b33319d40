"""The picture of imports between the folders of the code, for docs/architecture.md.

A room is a folder with an `__init__`; a folder below it that has one, too, is a room by itself. An
arrow says that a module of one room imports from another room, wherever in the module the import
stands. An arrow is left out where others lead from the same room to the same room, so the picture
changes with the structure of the code and not with each import. `__main__`, which nobody imports,
is in no room, nor are the names by which users import an integration.

`python docs/site/rooms.py` writes the diagram into the page; docs/site/diagrams.py then draws it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
LINKED = ("flows", "infra", "search", "tasks")
"""Folders beside the package that are links in it."""
NAMES = {"regrow.optuna", "regrow.torch", "regrow.tune"}
"""Modules that are another module under a shorter name."""
_IN_PAGE = re.compile(r"(?<=^<!-- rooms -->\n).*?(?=^<!-- /rooms -->$)", re.DOTALL | re.MULTILINE)

Arrow = tuple[str, str]
"""The room that imports, and the room that it imports from, both as packages."""


def sources(root: Path = ROOT) -> dict[str, str]:
    """The source of each module of the package below `root`, by the module's name; an `__init__`
    ends in `.__init__`.
    """
    package = root / "regrow"
    folders = (package, *(package / name for name in LINKED))  # rglob itself does not follow links
    files = {file for folder in folders for file in folder.rglob("*.py")}
    return {
        ".".join(file.relative_to(root).with_suffix("").parts): file.read_text() for file in files
    }


def arrows(code: Mapping[str, str]) -> set[Arrow]:
    """Every pair of rooms of which the first imports from the second. `code` as `sources` returns
    it.
    """
    rooms = {name.removesuffix(".__init__"): _room(name, code) for name in code}
    found = {
        (_room(name, code), rooms[module])
        for name, source in code.items()
        if not name.endswith(".__main__") and name not in NAMES
        for module in imported(source, rooms)
    }
    return {(importer, imported) for importer, imported in found if importer != imported}


def _room(name: str, code: Collection[str]) -> str:
    """The innermost package around a module; a package's `__init__` is in that package."""
    folder = name.rpartition(".")[0]
    while f"{folder}.__init__" not in code:
        folder = folder.rpartition(".")[0]
    return folder


def imported(source: str, modules: Collection[str]) -> Iterator[str]:
    """Those of our modules that a source imports, or imports names from."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in modules)
            case ast.ImportFrom(module=str(module), names=names, level=0) if module in modules:
                below = (f"{module}.{alias.name}" for alias in names)
                yield from (name if name in modules else module for name in below)


def essential(found: Collection[Arrow]) -> list[Arrow]:
    """The arrows without which less would be reached, and all those of circles."""
    kept = set(found)
    for arrow in sorted(found):
        importer, imported = arrow
        if importer not in _reached(imported, found) and imported in _reached(
            importer, kept - {arrow}
        ):
            kept.discard(arrow)
    return sorted(kept)


def _reached(start: str, along: Collection[Arrow]) -> set[str]:
    """The rooms that arrows lead to, directly or through others."""
    reached: set[str] = set()
    border = {start}
    while border:
        border = {imported for importer, imported in along if importer in border} - reached
        reached |= border
    return reached


def mermaid(found: Collection[Arrow]) -> str:
    """The diagram: a box a room, a frame around rooms of one folder, thick arrows where rooms
    import one another in a circle.
    """
    return "\n".join(("flowchart TD", *(f"    {line}" for line in _lines(found))))


def _lines(found: Collection[Arrow]) -> Iterator[str]:
    rooms = sorted({room for arrow in found for room in arrow})
    for frame in sorted({_frame(room) for room in rooms}):
        inside = [room for room in rooms if _frame(room) == frame]
        boxes = [f'{_identifier(room)}["{_label(room)}"]' for room in inside]
        yield from (
            boxes
            if len(boxes) == 1
            else (f'subgraph {frame}_ ["{frame}/"]', *(f"    {box}" for box in boxes), "end")
        )
    drawn = essential(found)
    for importer, imported in drawn:
        circle = importer in _reached(imported, found)
        both = (imported, importer) in drawn
        if not both or importer < imported:
            shaft = f"{'<' if both else ''}=={'>'}" if circle else "-->"
            yield f"{_identifier(importer)} {shaft} {_identifier(imported)}"


def _frame(room: str) -> str:
    """The folder at the top of the repository that a room is in."""
    parts = room.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LINKED else parts[0]


def _label(room: str) -> str:
    """A room's folder as it is called in the repository."""
    path = room.replace(".", "/")
    return path.partition("/")[2] if _frame(room) in LINKED else path


def _identifier(room: str) -> str:
    return room.replace(".", "_")


def in_page(page: str, found: Collection[Arrow]) -> str:
    """The text of a page with the diagram between its marks. Raises ValueError if it has none."""
    written, places = _IN_PAGE.subn(f"```mermaid\n{mermaid(found)}\n```\n", page)
    if places != 1:
        raise ValueError(
            f"the page has {places} places for the picture, between <!-- rooms --> and <!--"
            " /rooms -->"
        )
    return written


if __name__ == "__main__":
    PAGE.write_text(in_page(PAGE.read_text(), arrows(sources())))
