"""Notes and tags that people give an experiment, at any time and from anywhere, also while it runs.

They are no events: nothing is decided by them, and the log has one writer. Each is an object of its own, `notes/<n>.json`,
created on the condition that its number is free: nothing is locked, nothing is overwritten, none gets lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from regrow.tasks.errors import UserError
from regrow.tasks.ports import Exists, Missing, Store

PREFIX = "notes/"
MOST_TAG, MOST_TEXT = 100, 8000
"""Characters of a tag and of a note; so much of a note MLflow shows."""


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was noted at `t` (seconds since the epoch): a text, which may be empty, and tags that came and went."""

    t: float
    text: str = ""
    tags: tuple[str, ...] = ()
    untags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """All that was noted, oldest first. `count`: how many objects that are."""

    texts: tuple[Note, ...] = ()
    """Those with a text."""
    tags: tuple[str, ...] = ()
    """Tags that it has now, in the order in which they came."""
    ever: tuple[str, ...] = ()
    """All that it ever had."""
    count: int = 0

    def view(self) -> dict[str, object]:
        """As `--json` prints them."""
        return {"tags": list(self.tags), "notes": [{"t": note.t, "text": note.text} for note in self.texts]}


NONE = Notes()


def read(store: Store) -> Notes:
    """The notes of an experiment. Raises Unavailable."""
    found: list[Note] = []
    keys = store.list(PREFIX)
    for key in keys:
        try:
            found.append(msgspec.json.decode(store.read(key), type=Note))
        except (Missing, msgspec.DecodeError):  # removed meanwhile; cut short where a file system has no links
            continue
    tags: dict[str, None] = {}
    ever: dict[str, None] = {}
    for note in found:
        tags |= dict.fromkeys(note.tags)
        ever |= dict.fromkeys(note.tags)
        for tag in note.untags:
            tags.pop(tag, None)
    return Notes(texts=tuple(note for note in found if note.text), tags=tuple(tags), ever=tuple(ever), count=len(keys))


def add(store: Store, text: str, *, tags: Iterable[str] = (), untags: Iterable[str] = ()) -> None:
    """Adds a note for good. Raises UserError for a tag that is none, or for nothing to note."""
    note = Note(t=time.time(), text=text.strip(), tags=tuple(map(_tag, tags)), untags=tuple(map(_tag, untags)))
    if not (note.text or note.tags or note.untags):
        raise UserError('nothing to note; write a text ("..."), --tag TAG or --untag TAG')
    if len(note.text) > MOST_TEXT:
        raise UserError(f"the note has {len(note.text):,} characters, at most {MOST_TEXT:,} are possible; link to the rest")
    data = msgspec.json.encode(note)
    number = max((int(key.removeprefix(PREFIX).partition(".")[0]) for key in store.list(PREFIX)), default=0)
    while True:
        number += 1
        key = f"{PREFIX}{number:06d}.json"
        try:
            store.create(key, data)
        except Exists:
            if store.read(key) != data:  # somebody else's; ours where the answer to an earlier try was lost
                continue
        return


def _tag(tag: str) -> str:
    tag = tag.strip()
    if not tag or len(tag) > MOST_TAG or "," in tag or not tag.isprintable():
        raise UserError(f"the tag {tag!r} is none; write up to {MOST_TAG} printable characters without a comma")
    if tag.startswith(("mlflow.", "regrow.")):
        raise UserError(f"the tag {tag!r} would replace one of MLflow's or regrow's own there; write another one")
    return tag
