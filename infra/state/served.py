"""What a station is to serve, and how its servers stand: a file each for a name, which stay while no station is up.

`<services>/station/serve/NAME.json` says what is to be served, `serving/NAME.json` is the server's own word.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.machine import private_files
from regrow.infra.state.places import Places
from regrow.search.spec.serve import Serve


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served by a name: `serve` as the specification has it, `folder` of the user's code.

    `schedule`: whose name it is, a schedule's or an experiment's; `series`: the newest of the schedule's experiments is followed,
    else the one of the name.
    """

    name: str
    folder: str
    serve: dict[str, Any]
    schedule: bool = False
    series: bool = False

    @property
    def parsed(self) -> Serve:
        """What it says. Raises ValueError for what another version wrote."""
        return Serve.model_validate(self.serve)


def read(places: Places, name: str) -> Served | None:
    """What is to be served by that name; None for nothing, and where its file is damaged."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(_place(places, name).read_bytes(), type=Served)
    return None


def written_at(places: Places, name: str) -> int:
    """When it was written last, in ns; 0 where there is none."""
    with suppress(OSError):
        return _place(places, name).stat().st_mtime_ns
    return 0


def write(places: Places, served: Served) -> None:
    """Has it be served."""
    for file in (_place(places, served.name), standing(places, served.name)):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    private_files.replace(_place(places, served.name), msgspec.json.encode(served))


def remove(places: Places, name: str) -> None:
    """Has nothing be served by that name."""
    _place(places, name).unlink(missing_ok=True)


def forget(places: Places, name: str, *, schedule: bool) -> None:
    """A schedule was deleted, or an experiment removed: it is served no more."""
    there = read(places, name)
    if there is not None and there.schedule == schedule:
        remove(places, name)


def rename(places: Places, name: str, new: str) -> None:
    """An experiment has another name, by which it is served from now on."""
    there = read(places, name)
    if there is not None and not there.schedule:
        write(places, msgspec.structs.replace(there, name=new))
        remove(places, name)


def names(places: Places) -> list[str]:
    """The names by which something is to be served."""
    return sorted(file.name.removesuffix(".json") for file in _place(places, "x").parent.glob("*.json"))


def standing(places: Places, name: str) -> Path:
    """The file in which the server says how it stands."""
    return places.services / "station" / "serving" / f"{name}.json"


def token_file(places: Places) -> Path:
    """Where a station keeps the token that it asks for where servers listen beyond the loopback."""
    return places.services / "station" / "serve-token"


def _place(places: Places, name: str) -> Path:
    return places.services / "station" / "serve" / f"{name}.json"
