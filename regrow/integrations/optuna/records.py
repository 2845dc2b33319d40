"""What a study has beside its trials, in its state: user attributes, and what Optuna's code notes.

One small object, `study/<number>`: the newest counts, and the ones before it are deleted. The log
has the rest.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Exists, Missing, Store

_PREFIX = "study/"
MOST_BYTES = 1 << 20
"""Bytes of a study's attributes at most."""
_TRIES = 100


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a study has beside its trials.

    Attributes:
        attributes: user attributes, in the forms of `objects.py`.
        system: what Optuna's code notes, such as artifacts and the names of its values.

    """

    attributes: dict[str, Any] = {}
    system: dict[str, Any] = {}


def read(store: Store) -> About:
    """Return what the study has. What cannot be decoded counts as nothing."""
    for key in reversed(store.list(_PREFIX)):
        with suppress(Missing, msgspec.MsgspecError):
            return msgspec.json.decode(store.read(key), type=About)
    return About()


def change(
    store: Store, *, attributes: dict[str, Any] | None = None, system: dict[str, Any] | None = None
) -> None:
    """Add attributes. Raises UserError if there are more than MOST_BYTES then, or other processes
    keep changing them.
    """
    for _ in range(_TRIES):
        keys = store.list(_PREFIX)
        before = read(store)
        after = About(
            attributes={**before.attributes, **(attributes or {})},
            system={**before.system, **(system or {})},
        )
        data = msgspec.json.encode(after)
        if len(data) > MOST_BYTES:
            raise UserError(
                f"the attributes of the study would have {len(data):,} bytes, and {MOST_BYTES:,}"
                " are the most; set what is large as an attribute of a trial"
            )
        number = int(keys[-1].removeprefix(_PREFIX)) + 1 if keys else 1
        with suppress(Exists):  # another process was first
            store.create(f"{_PREFIX}{number:09d}", data)
            store.delete(keys)
            return
    raise UserError("other processes keep changing the attributes of the study; try again")
