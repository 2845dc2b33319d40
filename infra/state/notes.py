"""Notes and tags that people give an experiment, at any time and from any machine, also while it
runs.

They are not events: no decision depends on them, and the log has only one writer. Each is its own
object, `notes/<n>.json`, created only if its number is free: nothing is locked, overwritten or
lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Missing, Store, created

PREFIX = "notes/"
MOST_TAG, MOST_TEXT = 100, 8000
"""Most characters of a tag and of a note. MLflow shows no more of a note."""


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry made at `t`, seconds since the epoch: a text, may be empty, and changed tags."""

    t: float
    text: str = ""
    tags: tuple[str, ...] = ()
    """Tags that were added."""
    untags: tuple[str, ...] = ()
    """Tags that were removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """All notes of an experiment, oldest first. `count`: number of their objects."""

    texts: tuple[Note, ...] = ()
    """Notes that have a text."""
    tags: tuple[str, ...] = ()
    """Current tags, in the order in which they were added."""
    ever: tuple[str, ...] = ()
    """All tags that the experiment ever had."""
    count: int = 0

    def view(self) -> dict[str, object]:
        """Return the notes as `--json` prints them."""
        return {
            "tags": list(self.tags),
            "notes": [{"t": note.t, "text": note.text} for note in self.texts],
        }


NONE = Notes()


def read(store: Store) -> Notes:
    """Return the notes of an experiment. Raises Unavailable."""
    found: list[Note] = []
    keys = store.list(PREFIX)
    for key in keys:
        try:
            found.append(msgspec.json.decode(store.read(key), type=Note))
        # Removed meanwhile, or truncated, which is possible on a file system without hard links.
        except (Missing, msgspec.DecodeError):
            continue
    tags: dict[str, None] = {}
    ever: dict[str, None] = {}
    for note in found:
        tags |= dict.fromkeys(note.tags)
        ever |= dict.fromkeys(note.tags)
        for tag in note.untags:
            tags.pop(tag, None)
    return Notes(
        texts=tuple(note for note in found if note.text),
        tags=tuple(tags),
        ever=tuple(ever),
        count=len(keys),
    )


def add(store: Store, text: str, *, tags: Iterable[str] = (), untags: Iterable[str] = ()) -> None:
    """Add a note permanently. Raises UserError for an invalid tag, or nothing to note."""
    note = Note(
        t=time.time(),
        text=text.strip(),
        tags=tuple(map(_tag, tags)),
        untags=tuple(map(_tag, untags)),
    )
    if not (note.text or note.tags or note.untags):
        raise UserError('nothing to note; write a text ("..."), --tag TAG or --untag TAG')
    if len(note.text) > MOST_TEXT:
        raise UserError(
            f"the note has {len(note.text):,} characters, at most {MOST_TEXT:,} are possible; link"
            " to the rest"
        )
    try:
        data = msgspec.json.encode(note)
    except UnicodeEncodeError:
        raise UserError(
            "the note has bytes that are not UTF-8; write it in a terminal whose encoding is UTF-8"
        ) from None
    numbers = (key.removeprefix(PREFIX).partition(".")[0] for key in store.list(PREFIX))
    # foreign files, as a file manager leaves them, have none
    number = max((int(one) for one in numbers if one.isdecimal()), default=0) + 1
    while not created(store, f"{PREFIX}{number:06d}.json", data):  # another writer's
        number += 1


def _tag(tag: str) -> str:
    tag = tag.strip()
    if not tag or len(tag) > MOST_TAG or "," in tag or not tag.isprintable():
        raise UserError(
            f"the tag {tag!r} is none; write up to {MOST_TAG} printable characters without a comma"
        )
    if tag.startswith(("mlflow.", "regrow.")):
        raise UserError(
            f"the tag {tag!r} would replace one of MLflow's or regrow's own there; write"
            " another one"
        )
    return tag
