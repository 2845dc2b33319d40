"""`python -m regrow.apps.serving.needs FOLDER CODE FILE`: finds what serving a folder's checkpoint
imports.

This process loads the class from the folder CODE and lets it answer its example, so that late
imports are found, too. It writes names and versions of the distributions, and the files below CODE,
to FILE.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path

import msgspec

from regrow.apps.serving.image_server import kept
from regrow.apps.serving.users_class import Computing, example_of, found


class ImageNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of the user's class. `distributions`: versions by name; `files`: relative to the
    folder of the user's code.
    """

    distributions: dict[str, str]
    files: list[str]


def needs(code: Path) -> ImageNeeds:
    """Collect the requirements of all imported modules. Files of a virtual environment within
    `code` are not the user's code.
    """
    files, tops = set(), set()
    for name, module in list(sys.modules.items()):
        tops.add(name.partition(".")[0])
        file = getattr(module, "__file__", None)
        if (
            file is not None
            and (path := Path(file).resolve()).is_relative_to(code)
            and "site-packages" not in path.parts
        ):
            files.add(str(path.relative_to(code)))
    known = metadata.packages_distributions()
    names = {one for top in tops for one in known.get(top, ())} - {"regrow"}
    return ImageNeeds(
        distributions={name: metadata.version(name) for name in sorted(names, key=str.lower)},
        files=sorted(files),
    )


def main() -> None:
    folder, code, target = (Path(one).resolve() for one in sys.argv[1:])
    importlib.import_module("regrow.apps.serving.replica")
    what = kept(folder)
    kind = found(what.model, str(code))
    Computing(kind, Path(what.chosen.folder), what.chosen.config, example_of(kind, None))
    target.write_bytes(msgspec.json.encode(needs(code)))


if __name__ == "__main__":
    main()
