"""`schedules`: lists the schedules, their next runs, and how the last runs ended."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from regrow.cli.options import JsonOption, StateOption, option
from regrow.infra.state.places import Places
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from datetime import datetime

    from rich.table import Table

    from regrow.infra.prefect.deployments import Ran, Scheduled

_SHOWN = 3
"""Maximum runs of a schedule in the table."""


def schedules(
    pause: Annotated[str | None, option("Start no run of it", metavar="NAME")] = None,
    resume: Annotated[str | None, option("Continue with it", metavar="NAME")] = None,
    delete: Annotated[str | None, option("Remove it; its experiments stay", metavar="NAME")] = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the schedules of the state root: when they run, the next run, how the last
    runs ended.
    """
    from regrow.infra.prefect import deployments
    from regrow.infra.state import hooks, served

    if len([name for name in (pause, resume, delete) if name is not None]) > 1:
        raise UserError("--pause, --resume and --delete are one at a time; keep one of them")
    places = Places.at(state)
    with deployments.connected(places) as client:
        if pause is not None:
            deployments.pause(client, pause)
            tell(f"{pause} is paused; {places.command('schedules', '', f'--resume {pause}')}")
        elif resume is not None:
            deployments.resume(client, resume)
            tell(f"{resume} runs again")
        elif delete is not None:
            from regrow.infra.prefect import notifications

            deployments.delete(client, delete)
            notifications.forget(client, delete)
            served.forget(places, delete, schedule=True)
            hooks.forget(places, delete)
            tell(f"{delete} is deleted; its experiments stay")
        else:
            _list(deployments.listed(client, places.root), places, as_json=as_json)


def _list(found: list[Scheduled], places: Places, *, as_json: bool) -> None:
    from regrow.apps.station.triggers import aside
    from regrow.cli.console import plain_console

    if as_json:
        late, troubles = aside.found(places), aside.troubles(places)
        for one in found:
            events = {"set_aside": [asdict(event) for event in late if event.schedule == one.name]}
            print(
                json.dumps(
                    {
                        **_plain(one),
                        **events,
                        "troubles": [asdict(it) for it in troubles if it.schedule == one.name],
                    }
                )
            )
    elif found:
        plain_console().print(_table(found))
        for line in aside.lines(places, [one.name for one in found]):
            tell(line)
    else:
        tell(f"no schedules in {places.root}; make one with `regrow schedule FILE`")


def _plain(one: Scheduled) -> dict[str, Any]:
    parameters = one.parameters
    return {
        "name": one.name,
        "id": str(one.id),
        "words": one.words,
        "paused": one.paused,
        "spec": parameters.get("spec"),
        "state": parameters.get("state"),
        "when": parameters.get("when"),
        "next": [at.isoformat() for at in one.coming],
        "runs": [
            {
                "id": str(ran.id),
                "experiment": ran.experiment or None,
                "state": ran.state,
                "message": ran.message or None,
                "due": _iso(ran.due),
                "began": _iso(ran.began),
                "ended": _iso(ran.ended),
            }
            for ran in one.runs
        ],
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _table(found: list[Scheduled]) -> Table:
    """Make the table: a line for each schedule with its last run; further runs below it."""
    from rich.text import Text

    from regrow.cli.tables import plain_table

    table = plain_table("name", "when", "next", "last runs", "outcome")
    for one in found:
        following = (
            "paused" if one.paused else f"{one.coming[0]:%Y-%m-%d %H:%M %Z}" if one.coming else ""
        )
        first, *others = [_outcome(one, ran) for ran in one.runs[:_SHOWN]] or [("", "")]
        table.add_row(*map(Text, (one.name, one.words, following, *first)))
        for other in others:
            table.add_row(*map(Text, ("", "", "", *other)))
    return table


def _outcome(one: Scheduled, ran: Ran) -> tuple[str, str]:
    """Return a run's experiment, or when it was due; and its state."""
    due = "" if ran.due is None else f"{ran.due:%Y-%m-%d %H:%M:%S}"
    who = ran.experiment if ran.experiment not in ("", one.name) else due
    return who, f"{ran.state}: {ran.message}" if ran.message else ran.state
