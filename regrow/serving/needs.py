"""`python -m regrow.serving.needs FOLDER CODE FILE`: what answering with a folder's checkpoint imports.

The class is loaded from the folder CODE and answers its example, in this process, so that also what is imported late is seen.
FILE gets the names and versions of the distributions, and the files below CODE.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path

import msgspec

from regrow.serving.fixed import kept
from regrow.serving.users_class import Computing, example_of, found


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """`distributions` by name, with their versions; `files` relative to the folder of the user's code."""

    distributions: dict[str, str]
    files: list[str]


def needs(code: Path) -> Needs:
    """Of all that is imported by now. What belongs to an environment within `code` is no code of the user's."""
    files, tops = set(), set()
    for name, module in list(sys.modules.items()):
        tops.add(name.partition(".")[0])
        file = getattr(module, "__file__", None)
        if file is not None and (path := Path(file).resolve()).is_relative_to(code) and "site-packages" not in path.parts:
            files.add(str(path.relative_to(code)))
    known = metadata.packages_distributions()
    names = {one for top in tops for one in known.get(top, ())} - {"regrow"}
    return Needs(distributions={name: metadata.version(name) for name in sorted(names, key=str.lower)}, files=sorted(files))


def main() -> None:
    """See the top."""
    folder, code, target = (Path(one).resolve() for one in sys.argv[1:])
    importlib.import_module("regrow.serving.replica")
    what = kept(folder)
    kind = found(what.model, str(code))
    Computing(kind, Path(what.chosen.folder), what.chosen.config, example_of(kind, None))
    target.write_bytes(msgspec.json.encode(needs(code)))


if __name__ == "__main__":
    main()
