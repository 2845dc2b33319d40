"""`serve:` of an experiment or schedule: checked, and recorded for the station that keeps the
server running.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regrow.apps.serving.checks import check
from regrow.infra.prefect import home
from regrow.infra.state import served
from regrow.infra.state.places import Places
from regrow.infra.state.served import Served
from regrow.search.errors import SpecError
from regrow.search.spec import Spec


def checked(spec: Spec, places: Places) -> list[str]:
    """Return warnings about its `serve` for people, a line each. Raises SpecError and UserCodeError
    if it cannot be served.
    """
    if spec.serve is None:
        return []
    if spec.serve.port is not None:
        for other in served.names(places):
            known = served.read(places, other)
            if (
                known is not None
                and other != spec.name
                and known.serve.get("port") == spec.serve.port
            ):
                hint = "write another one, or leave it out for a free one"
                raise SpecError(
                    "serve.port",
                    spec.serve.port,
                    f"is the port of {other}, which is served as well",
                    hint,
                )
    return check(spec, places)


def of_experiment(places: Places, spec: Spec) -> list[str]:
    """Record `serve:` of an experiment that is started: it is served as specified from now on, or
    no longer.

    Returns instructions for people. If a schedule of that name exists, only the schedule decides.
    """
    there = served.read(places, spec.name)
    if there is not None and there.schedule:
        return []
    return list(_written(places, spec, spec.name, schedule=False, series=False))


def of_schedule(places: Places, spec: Spec, name: str) -> list[str]:
    """Record `serve:` of a schedule that is made, or one of whose runs begins; return instructions
    for people.
    """
    return list(
        _written(
            places, spec, name, schedule=True, series=spec.when is None or spec.when.each == "new"
        )
    )


def _written(
    places: Places, spec: Spec, name: str, *, schedule: bool, series: bool
) -> Iterator[str]:
    before = served.read(places, name)
    if spec.serve is None:
        if before is not None:
            served.remove(places, name)
            yield f"serve: {name} is served no more, as it was left out"
        return
    code = str(Path(spec.working_dir or ".").resolve())
    now = Served(
        name=name, folder=code, serve=spec.serve.to_json(), schedule=schedule, series=series
    )
    if now != before:
        served.write(places, now)
    what = f"the newest experiment of {name}" if series else name
    if home.stays(places.prefect_home):
        yield f"serve: the station serves {what}; `{places.command('status', '')}` says where"
    else:
        yield f"serve: with `{places.command('up', '')}`, a station serves {what}"
    yield (
        f"serve: its token is in {served.token_file(places)}, unless the station was started with"
        " REGROW_SERVE_TOKEN"
    )
