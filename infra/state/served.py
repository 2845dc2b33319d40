"""What a station is to serve, and the status of its servers: one file per name; they remain while
no station runs.

`<services>/station/serve/NAME.json` describes what to serve; the server itself writes
`serving/NAME.json`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.machine import private_files
from regrow.infra.state.places import Places
from regrow.search.spec.station import Serve


class ServeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve under one name.

    Attributes:
        name: the name of a schedule or an experiment.
        folder: folder of the user's code.
        serve: the `serve` section of the specification.
        schedule: whether `name` is a schedule's; else it is an experiment's.
        series: whether the newest of the schedule's experiments is followed; else the experiment
            called `name`.

    """

    name: str
    folder: str
    serve: dict[str, Any]
    schedule: bool = False
    series: bool = False

    @property
    def parsed(self) -> Serve:
        """The parsed `serve` section. Raises ValueError for the form of another version."""
        return Serve.model_validate(self.serve)


def read(places: Places, name: str) -> ServeRecord | None:
    """Return what to serve under the name; None if there is nothing, or its file is damaged."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(_place(places, name).read_bytes(), type=ServeRecord)
    return None


def written_at(places: Places, name: str) -> int:
    """Return when the description was last written, in ns; 0 if there is none."""
    with suppress(OSError):
        return _place(places, name).stat().st_mtime_ns
    return 0


def write(places: Places, served: ServeRecord) -> None:
    """Write the description, which makes the station serve it."""
    for file in (_place(places, served.name), status_file(places, served.name)):
        private_files.folder(file.parent)
    private_files.replace(_place(places, served.name), msgspec.json.encode(served))


def remove(places: Places, name: str) -> None:
    """Remove the description: nothing is served under the name."""
    _place(places, name).unlink(missing_ok=True)


def forget(places: Places, name: str, *, schedule: bool) -> None:
    """Stop serving a schedule that was deleted, or an experiment that was removed."""
    existing = read(places, name)
    if existing is not None and existing.schedule == schedule:
        remove(places, name)


def rename(places: Places, name: str, new: str) -> None:
    """Serve a renamed experiment under its new name."""
    existing = read(places, name)
    if existing is not None and not existing.schedule:
        write(places, msgspec.structs.replace(existing, name=new))
        remove(places, name)


def names(places: Places) -> list[str]:
    """Return the names under which something is to be served."""
    return sorted(
        file.name.removesuffix(".json") for file in _place(places, "x").parent.glob("*.json")
    )


def status_file(places: Places, name: str) -> Path:
    """Return the file in which the server writes its status."""
    return places.services / "station" / "serving" / f"{name}.json"


def token_file(places: Places) -> Path:
    """Return the file of the token that servers use which were started without one."""
    return places.services / "station" / "serve-token"


def _place(places: Places, name: str) -> Path:
    return places.services / "station" / "serve" / f"{name}.json"
