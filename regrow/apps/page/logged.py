"""What a trial logged beside metrics: the part of its page, and single items, with types that no
browser runs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from regrow.search.history import TrialRecord
from regrow.show.views import media
from regrow.tasks.media.items import Item, parsed, prefix
from regrow.tasks.ports.store import Missing, Store, StoreError

MOST_NAMES = 60
"""Names that a page shows."""
MOST_EARLIER = 50
"""Earlier steps that are linked."""
KEPT = 256
"""Number of cached texts and tables, of some kB each."""
POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"


class LoggedMedia:
    """Makes the part of a trial's page. Items never change, so texts and tables are read once."""

    def __init__(self) -> None:
        self._read: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def shown(self, name: str, experiment: str, trial: TrialRecord, store: Store) -> dict[str, Any]:
        """Return the newest item of each name, with links to earlier ones.

        `experiment`: its ID, which stands in the addresses, as an item of another experiment of the
        same name may have the same key.
        """
        try:
            groups = media.by_name(media.of_trial(store, trial))
        except StoreError as error:
            return {"cards": [], "plots": [], "more": 0, "trouble": str(error)}
        base = f"/e/{quote(name, safe='')}/t/{trial.number}/media"

        def link(item: Item) -> str:
            return f"{base}/{item.attempt}/{quote(item.file)}?v={experiment[:12]}"

        cards = []
        for title, items in list(groups.items())[:MOST_NAMES]:
            last = items[-1]
            earlier = items[-1 - MOST_EARLIER : -1]
            card = media.Card(
                name=title,
                about=media.about(last),
                link=link(last),
                picture=link(last) if media.is_picture(last) else None,
                small=last.size < media.SMALL,
                plot=f"{last.attempt}/{last.file}" if media.is_plotly(last) else None,
                earlier=[(item.step, link(item)) for item in reversed(earlier)],
                opens=_opens(last),
                **self._preview(experiment, last, store),
            )
            cards.append(card)
        return {
            "cards": [card for card in cards if card.plot is None],
            "plots": [card for card in cards if card.plot is not None],
            "more": max(0, len(groups) - MOST_NAMES),
            "trouble": "",
        }

    def _preview(self, experiment: str, item: Item, store: Store) -> dict[str, Any]:
        if not media.is_previewed(item):
            return {}
        with self._lock:
            known = self._read.get((experiment, item.key))
        if known is None:
            try:
                known = media.preview(item, store.read(item.key))
            except StoreError:  # removed meanwhile, or out of reach
                return {}
            with self._lock:
                self._read[experiment, item.key] = known
                while len(self._read) > KEPT:
                    self._read.popitem(last=False)
        return known


def item_of(trial: int, attempt: int, file: str) -> Item | None:
    """Return the item of an address; None if it is none of an item."""
    return parsed(f"{prefix(trial)}{attempt}/{file}")


def content(store: Store, item: Item) -> bytes | None:
    """Return the content of an item; None if there is no such one."""
    try:
        return store.read(item.key)
    except Missing:
        return None


def served(item: Item, data: bytes) -> Response:
    """Return an item for a browser, which shows images and texts, and saves anything else."""
    kind = "application/octet-stream"
    if media.is_picture(item):
        kind = media.TYPES[item.suffix]
    elif item.kind == "text":
        kind = "text/plain; charset=utf-8"
    how = "inline" if _opens(item) else "attachment"
    headers = {
        "Content-Disposition": f'{how}; filename="{media.file_name(item)}"',
        "Content-Security-Policy": POLICY,
    }
    return Response(data, headers=headers, media_type=kind)


def _opens(item: Item) -> bool:
    """Return whether a browser shows the item. Others may hold scripts."""
    return media.is_picture(item) or item.kind == "text"
