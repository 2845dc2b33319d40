"""Keeps the media of one attempt: within the limits, through the thread that writes checkpoints.

An item is durable before the checkpoint of its step. What cannot be kept is left out, with one line
in the trial's log for each reason: no trial ends because of it.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from regrow.tasks.media.content import Content
from regrow.tasks.media.items import (
    MOST_BYTES,
    MOST_ITEMS,
    MOST_TRIAL_BYTES,
    Item,
    latest,
    listed,
)
from regrow.tasks.ports.store import Exists, Store, StoreError
from regrow.tasks.process.disk import size as in_words

_LOG = logging.getLogger("regrow.trial")


class Queue(Protocol):
    """Calls jobs in the background, in order; see CheckpointWriter.call."""

    def __call__(
        self, job: Callable[[], object], failed: Callable[[Exception], object], /
    ) -> bool: ...


class MediaWriter:
    """Media of the attempt that continues after step `restored`. Thread-safe.

    What earlier attempts logged beyond that step is superseded, as their metrics are, and deleted
    with the first item.
    """

    def __init__(
        self, store: Store, *, trial: int, attempt: int, restored: int, queue: Queue, folder: Path
    ) -> None:
        """`folder`: for files that are not in the store yet; its owner removes it."""
        self._store, self._trial, self._attempt = store, trial, attempt
        self._restored, self._queue, self._folder = restored, queue, folder
        self._kept: dict[tuple[str, int], Item] | None = None
        self._refused: set[str] = set()
        self._lock = threading.Lock()
        self.count = 0
        """Number of items that the attempt logged."""

    def keep(self, name: str, step: int, content: Content) -> None:
        """Keep an item. Returns soon: it is uploaded in the background."""
        with self._lock:
            kept = self._known()
            old = kept.get((name, step))
            try:
                size = content.size
            except OSError as error:
                self._refuse(name, "file", str(error))
                return
            others = sum(item.size for item in kept.values()) - (0 if old is None else old.size)
            if (limit := _broken(size, others, len(kept), new=old is None)) is not None:
                self._refuse(name, *limit)
                return
            item = Item(
                trial=self._trial,
                attempt=self._attempt,
                count=self.count + 1,
                step=step,
                kind=content.kind,
                size=size,
                name=name,
                suffix=content.suffix,
            )
            if self._put(item, content, old):
                self.count += 1
                kept[name, step] = item

    def _known(self) -> dict[tuple[str, int], Item]:
        """Return the items that count, by name and step; at the first call those of the attempts
        before.
        """
        if self._kept is None:
            self._kept = {}
            if self._attempt > 1:
                try:
                    before = listed(self._store, self._trial)
                except StoreError as error:  # then only this attempt's own count for the limits
                    self._refuse("of earlier attempts", "earlier", str(error))
                    return self._kept
                over = [item for item in before if item.step > self._restored]
                self._kept = latest(item for item in before if item.step <= self._restored)
                if over:
                    gone = partial(self._store.delete, [item.key for item in over], ordered=False)
                    self._queue(gone, partial(self._refuse, "of earlier attempts", "delete"))
        return self._kept

    def _put(self, item: Item, content: Content, old: Item | None) -> bool:
        """Copy the content and queue its upload; return whether that worked."""
        file = self._folder / f"{item.count}"
        try:
            self._folder.mkdir(exist_ok=True)
            if isinstance(content.data, bytes):
                file.write_bytes(content.data)
            else:
                shutil.copyfile(content.data, file)
            if file.stat().st_size != item.size:
                raise OSError(f"{content.data!s} was written to meanwhile")
        except OSError as error:
            file.unlink(missing_ok=True)
            self._refuse(item.name, "disk", str(error))
            return False

        def create() -> None:
            with suppress(Exists):  # by an earlier try, whose answer was lost
                self._store.create(item.key, file)
            if old is not None:
                self._store.delete([old.key])
            file.unlink()

        def failed(error: Exception) -> None:
            file.unlink(missing_ok=True)
            self._refuse(item.name, "store", str(error))

        if self._queue(create, failed):
            return True
        failed(TimeoutError("too many items wait for the store"))
        return False

    def _refuse(self, name: str, reason: str, why: object) -> None:
        if reason not in self._refused:
            self._refused.add(reason)
            _LOG.warning("trial %d: media %s not kept: %s", self._trial, name, why)


def _broken(size: int, others: int, count: int, *, new: bool) -> tuple[str, str] | None:
    """Return the limit that an item of `size` bytes breaks beside the trial's `count` items, and
    why; None for none. `others`: bytes of the items that stay. `new`: it replaces none.
    """
    if size > MOST_BYTES:
        return "size", f"it has {in_words(size)}, and {in_words(MOST_BYTES)} are the most"
    if new and count >= MOST_ITEMS:
        return "number", f"the trial has {MOST_ITEMS:,} items, which is the most"
    if others + size > MOST_TRIAL_BYTES:
        return "total", f"all of the trial would have more than {in_words(MOST_TRIAL_BYTES)}"
    return None
