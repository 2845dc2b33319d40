"""Events that were set aside and start nothing, with the reason, a file each; and the problems that
block triggers now.

The events are in `<services>/station/triggers/aside/`, each complete; the current problems are in
`troubles.json`, written by the watcher.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regrow.apps.station.triggers.inbox import folder_of
from regrow.apps.station.triggers.tries import Trouble
from regrow.infra.machine import private_files
from regrow.infra.state.places import Places
from regrow.show.live.text import age
from regrow.tasks.output.traces import one_line

MOST_KEPT = 100
KEPT_SECONDS = 7 * 24 * 3600.0
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideEvent:
    """An event set aside at `time`, seconds since the epoch. `schedule`: "" if unknown."""

    schedule: str
    what: str
    reason: str
    time: float


def set_aside(places: Places, schedule: str, what: str, reason: str, event: Any = None) -> None:
    """Keep an event that is not tried again; the same event is kept once. Raises OSError."""
    folder = _folder(places)
    folder.mkdir(parents=True, exist_ok=True)
    one = asdict(
        SetAsideEvent(
            schedule=one_line(schedule),
            what=one_line(what),
            reason=one_line(reason),
            time=time.time(),
        )
    )
    try:
        content = json.dumps({**one, "event": event})
    except (TypeError, ValueError, RecursionError):  # the event's content may be the reason
        content = json.dumps(one)
    mark = hashlib.sha256(json.dumps([schedule, what]).encode()).hexdigest()[:32]
    private_files.replace(folder / f"{mark}.json", content)
    files = sorted(folder.glob("*.json"), key=_age)
    for file in files[:-MOST_KEPT]:
        file.unlink(missing_ok=True)


def found(places: Places) -> list[SetAsideEvent]:
    """Return the events that were set aside in the last `KEPT_SECONDS`, the newest first."""
    read = []
    for file in _folder(places).glob("*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError):  # removed meanwhile, or damaged
            known = json.loads(file.read_bytes())
            read.append(
                SetAsideEvent(
                    **{key: known[key] for key in ("schedule", "what", "reason")},
                    time=float(known["time"]),
                )
            )
    recent = [one for one in read if abs(time.time() - one.time) < KEPT_SECONDS]
    return sorted(recent, key=lambda one: one.time, reverse=True)


def write_troubles(places: Places, troubles: Iterable[Trouble]) -> None:
    """Replace the recorded problems by the current ones. Raises OSError."""
    private_files.replace(_troubles(places), json.dumps([asdict(one) for one in troubles]))


def troubles(places: Places) -> list[Trouble]:
    """Return the problems that the watcher last recorded."""
    with suppress(OSError, ValueError, TypeError):
        return [Trouble(**one) for one in json.loads(_troubles(places).read_bytes())]
    return []


def lines(places: Places, schedules: Iterable[str] | None = None) -> Iterator[str]:
    """Yield problems and set-aside events for people, a line each. `schedules`: only those of these
    schedules and of none; None: all.
    """
    wanted = None if schedules is None else {*schedules, ""}
    for one in troubles(places):
        if wanted is None or one.schedule in wanted:
            times = "" if one.tries == 1 else f" ({one.tries} tries)"
            yield f"{_of(one.schedule)}{one.what}: {one.reason}{times}; it is tried again"
    kept = [one for one in found(places) if wanted is None or one.schedule in wanted]
    for late in kept[:_SHOWN]:
        yield (
            f"{_of(late.schedule)}set aside {age(time.time() - late.time)} ago: {late.what}:"
            f" {late.reason}"
        )
    if len(kept) > _SHOWN:
        yield f"{len(kept) - _SHOWN} more are set aside in {_folder(places)}"


def _of(schedule: str) -> str:
    return f"{schedule}: " if schedule else ""


def _age(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def _folder(places: Places) -> Path:
    return folder_of(places) / "aside"


def _troubles(places: Places) -> Path:
    return folder_of(places) / "troubles.json"
