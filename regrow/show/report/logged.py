"""What the best trial logged, within the report: small items inline, others by name."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.show.views import media
from regrow.tasks.media.items import Item
from regrow.tasks.ports.store import Store, StoreError

MOST_NAMES = 30
"""Names that are shown."""
MOST_BYTES, MOST_ALL = 400_000, 4_000_000
"""Bytes of an image or a figure in the file, and of all of them."""


@dataclass(slots=True)
class LoggedSection:
    """The section about `trial`, None for none, with the figures that the page's script draws."""

    trial: int | None = None
    cards: list[media.Card] = field(default_factory=list)
    plots: list[media.Card] = field(default_factory=list)
    more: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    _left: int = MOST_ALL

    def add(self, title: str, items: list[Item], store: Store) -> None:
        """Add the newest item of a name. Raises StoreError."""
        last = items[-1]
        earlier = f", {len(items) - 1} earlier" if len(items) > 1 else ""
        shown: dict[str, Any] = {}
        about = f"{media.about(last)}{earlier}"
        if media.is_previewed(last):
            shown = media.preview(last, store.read(last.key))
        elif media.is_picture(last) or media.is_plotly(last):
            if last.size > min(MOST_BYTES, self._left):
                about += "; too large for this file"
            else:
                self._left -= last.size
                shown = self._drawn(last, store.read(last.key))
        card = media.Card(name=title, about=about, **shown)
        (self.cards if card.plot is None else self.plots).append(card)

    def _drawn(self, item: Item, data: bytes) -> dict[str, Any]:
        if media.is_picture(item):
            encoded = base64.b64encode(data).decode()
            picture = f"data:{media.TYPES[item.suffix]};base64,{encoded}"
            return {"picture": picture, "small": item.size < media.SMALL}
        found = media.plotted(data)
        if found is None:
            return {}
        plot = f"logged-{len(self.figures)}"
        self.figures[plot] = found["figure"]
        return {"plot": plot, "height": found["height"]}


def section(history: History, places: Places) -> LoggedSection:
    """Make the section; an empty one if the best trial logged nothing, or it cannot be read."""
    made = LoggedSection()
    if history.best is None:
        return made
    name, trial = history.spec.name, history.trials[history.best]
    store = places.store(name)
    try:
        groups = media.by_name(media.of_trial(store, trial))
        for title, items in list(groups.items())[:MOST_NAMES]:
            made.add(title, items, store)
    except StoreError:
        return LoggedSection()
    if groups:
        made.trial, made.more = trial.number, max(0, len(groups) - MOST_NAMES)
        made.command = places.command("trial", name, str(trial.number))
    return made
