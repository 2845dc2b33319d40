"""What a station is to serve: a file for each name, which stays while no station is up, also over a reboot.

`regrow schedule`, each run of a schedule, and whoever runs an experiment write here what their `serve:` says; the supervisor has
a process for each file (`server`), which ends by itself when its file is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.machine import private_files
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.search.spec.serve import Serve
from regrow.serving.checks import check
from regrow.station import record


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served by a name: `serve` as the file has it, `folder` of the user's code.

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


def place(folder: Path, name: str) -> Path:
    """The file in the folder of a station."""
    return folder / "serve" / f"{name}.json"


def standing(folder: Path, name: str) -> Path:
    """The file in which the server says how it stands."""
    return folder / "serving" / f"{name}.json"


def read(folder: Path, name: str) -> Served | None:
    """What is to be served by that name; None for nothing, and where its file is damaged."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(place(folder, name).read_bytes(), type=Served)
    return None


def names(folder: Path) -> list[str]:
    """The names by which something is to be served."""
    return sorted(file.stem for file in (folder / "serve").glob("*.json"))


def checked(spec: Spec, places: Places) -> list[str]:
    """What people should know of its `serve`, a line each. Raises SpecError and UserCodeError for what cannot be served."""
    if spec.serve is None:
        return []
    if spec.serve.port is not None:
        folder = record.folder_of(places)
        for other in names(folder):
            known = read(folder, other)
            if known is not None and other != spec.name and known.serve.get("port") == spec.serve.port:
                hint = "write another one, or leave it out for a free one"
                raise SpecError("serve.port", spec.serve.port, f"is the port of {other}, which is served as well", hint)
    return check(spec, places)


def of_experiment(places: Places, spec: Spec, announce: Callable[[str], None]) -> None:
    """An experiment that somebody starts: from now on it is served as its specification says, or no more.

    What a schedule of that name has served is the schedule's to say. Raises what `checked` does.
    """
    there = read(record.folder_of(places), spec.name)
    if there is not None and there.schedule:
        return
    for line in (*checked(spec, places), *_written(places, spec, spec.name, schedule=False, series=False)):
        announce(line)


def of_schedule(places: Places, spec: Spec, name: str) -> list[str]:
    """A schedule that is made, or one of whose runs begins; returns what people are told."""
    return list(_written(places, spec, name, schedule=True, series=spec.when is None or spec.when.each == "new"))


def forget(places: Places, name: str, *, schedule: bool) -> None:
    """A schedule was deleted, or an experiment removed: it is served no more."""
    folder = record.folder_of(places)
    there = read(folder, name)
    if there is not None and there.schedule == schedule:
        place(folder, name).unlink(missing_ok=True)


def _written(places: Places, spec: Spec, name: str, *, schedule: bool, series: bool) -> Iterator[str]:
    folder = record.folder_of(places)
    file, before = place(folder, name), read(folder, name)
    if spec.serve is None:
        if before is not None:
            file.unlink(missing_ok=True)
            yield f"{name} is served no more, as `serve` was left out"
        return
    code = str(Path(spec.working_dir or ".").resolve())
    now = Served(name=name, folder=code, serve=spec.serve.to_json(), schedule=schedule, series=series)
    if now != before:
        for each in (file, standing(folder, name)):
            each.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        private_files.replace(file, msgspec.json.encode(now))
    what = f"the newest experiment of {name}" if series else name
    if record.find(places) is None:
        yield f"serve: with `{places.command('up', '')}`, a station serves {what}"
    else:
        yield f"serve: the station serves {what}; `{places.command('status', '')}` says where"
    if spec.serve.host is not None:
        yield f"serve: the token is in {token_file(folder)}, unless the station was started with REGROW_SERVE_TOKEN"


def token_file(folder: Path) -> Path:
    """Where a station keeps the token that it asks for where servers listen beyond the loopback."""
    return folder / "serve-token"
