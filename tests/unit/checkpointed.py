"""Folders to save as checkpoints, and stores to put them into. No test lives here."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import strategies as st

from regrow.tasks.checkpoint.saving import SavedCheckpoint, save
from tests.memory_store import MemoryStore

Tree = dict[str, tuple[bytes, bool] | None]
"""Path to content and execute bit; None for an empty folder."""


def plant(folder: Path, tree: Tree) -> Path:
    folder.mkdir(parents=True)
    for path, entry in tree.items():
        target = folder / path
        if entry is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(entry[0])
        target.chmod(0o755 if entry[1] else 0o644)
    return folder


def tree_of(folder: Path) -> Tree:
    tree: Tree = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            tree[name] = (
                path.read_bytes(),
                os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100),
            )
        elif not any(path.iterdir()):
            tree[name] = None
    return tree


def put(
    store: MemoryStore, tmp: Path, tree: Tree, *, trial: int = 1, attempt: int = 1, step: int = 1
) -> SavedCheckpoint:
    folder = plant(tmp / f"saved-{trial}-{attempt}-{step}", tree)
    return save(store, folder, trial=trial, attempt=attempt, step=step)


def text(content: str) -> tuple[bytes, bool]:
    return content.encode(), False


names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=20,
).filter(lambda name: name not in {".", ".."} and name[1:2] != ":")
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
entries = st.none() | st.tuples(st.binary(max_size=200), st.booleans())


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree: Tree = {}
    for path, entry in draw(st.dictionaries(paths, entries, max_size=8)).items():
        in_the_way = any(
            p == path or p.startswith(path + "/") or path.startswith(p + "/") for p in tree
        )
        if not in_the_way:
            tree[path] = entry
    return tree


def three(store: MemoryStore, tmp: Path) -> list[str]:
    """Manifests of three checkpoints, newest first."""
    return [
        put(
            store, tmp, {"w": text(f"weights {i}"), "sub/o": text(f"optimizer {i}")}, step=i
        ).manifest
        for i in (3, 2, 1)
    ]
