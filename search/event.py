"""What the types of all events have in common.

The events themselves are in `session_events.py` and `trial_events.py`; `events.py` has their union.
"""

from __future__ import annotations

import msgspec

from regrow.search.measured import Time


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    """Base of all events. `t` is when it was written: wall-clock time of the writer, seconds since
    the epoch.

    Bounds on values are part of the fields' types, so code that folds events need not check them.
    """

    t: Time
