"""`schedule` and `schedules`: start an experiment by the clock or on events; list what is due."""

from __future__ import annotations

import glob
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.text import Text

from regrow.cli import options
from regrow.cli.console import plain_console
from regrow.cli.options import option
from regrow.cli.tables import plain_table
from regrow.infra.machine.given_files import expanded
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.show.live.terminal import echo
from regrow.tasks.errors import RegrowError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table

    from regrow.infra.prefect.deployments import Scheduled, ScheduleRun
    from regrow.search.spec import Spec, When

_TIMES = ("cron", "every", "rrule")
_OPTIONS = {"files": "on-files", "event": "on-event", "cluster": "on"}
"""Keys of `when` whose option has another name."""


def schedule(
    file: options.File,
    cron: Annotated[
        str | None, option('At these times: "0 2 * * *" is every night at two', metavar="LINE")
    ] = None,
    every: Annotated[
        str | None, option("At this distance, whatever the clocks do: 6h, 10min", metavar="SPAN")
    ] = None,
    rrule: Annotated[
        str | None, option('By a rule of RFC 5545: "FREQ=WEEKLY;BYDAY=MO"', metavar="RULE")
    ] = None,
    timezone: Annotated[
        str | None, option("In which times are meant: Europe/Zurich [default: UTC]", metavar="ZONE")
    ] = None,
    on_files: Annotated[
        str | None,
        option("On new files: 'data/*.parquet', 's3://BUCKET/PREFIX/*.parquet'", metavar="PATTERN"),
    ] = None,
    settle: Annotated[
        str | None,
        option(
            "How long no further file may have come before that [default: 1min]", metavar="SPAN"
        ),
    ] = None,
    after: Annotated[str | None, option("On the end of another experiment", metavar="NAME")] = None,
    on_event: Annotated[
        str | None, option("On a Prefect event of this name", metavar="NAME")
    ] = None,
    hook: Annotated[
        bool | None, option("On a request to the station, with a secret", "--hook/--no-hook")
    ] = None,
    each: Annotated[
        Literal["new", "continue"] | None,
        option("Each run a new experiment that learns from the last, or the same with more trials"),
    ] = None,
    overlap: Annotated[
        Literal["skip", "queue", "replace"] | None,
        option("A run that is due while one runs: left out, after it, or in its place"),
    ] = None,
    on: Annotated[
        str | None,
        option(
            "A cluster's YAML file: each run brings it up, runs there, and ends it",
            metavar="CLUSTER",
        ),
    ] = None,
    keep: Annotated[
        int | None, option("How many of the schedule's experiments are kept [default: all]", min=1)
    ] = None,
    name: options.OtherName = None,
    state: options.State = None,
) -> None:
    """Schedule the experiment that FILE describes: by the clock or on events. Options take
    precedence over its `when`.
    """
    from regrow.cli.spec_file import located_in, read

    given = {
        "cron": cron,
        "every": _span(every),
        "rrule": rrule,
        "timezone": timezone,
        "files": _absolute(on_files, glob.escape(os.getcwd())),
        "settle": _span(settle),
        "after": after,
        "event": on_event,
        "hook": hook,
        "each": each,
        "overlap": overlap,
        "keep": keep,
        "cluster": _absolute(on, os.getcwd()),
    }
    given = {key: value for key, value in given.items() if value is not None}
    try:
        with located_in(file):
            spec = read(file)
            spec = _scheduled(spec, name or spec.name, given, file)
            _make(spec, Places.at(state or spec.state), file)
    except SpecError as error:
        key = error.key.removeprefix("when.")
        if error.key == key or key not in given:
            raise
        flag = f"--{_OPTIONS.get(key, key)}"
        raise SpecError(flag, error.value, error.problem, error.hint) from None


def _scheduled(spec: Spec, name: str, given: dict[str, Any], file: Path) -> Spec:
    """Return the specification with the options in `when`. Raises UserError without a trigger."""
    own = spec.when.to_json() if spec.when is not None else {}
    if set(given) & set(_TIMES):
        own = {key: value for key, value in own.items() if key not in _TIMES}
    folder = str(file.absolute().parent)
    own["files"] = _absolute(own.get("files"), glob.escape(folder))
    own["cluster"] = _absolute(own.get("cluster"), folder)
    when = {key: value for key, value in {**own, **given}.items() if value is not None}
    spec = type(spec).parse({**spec.to_json(), "name": name, "when": when})
    if spec.when is None or not spec.when.starts:
        raise UserError(
            f"{file} does not say when: give --cron, --every, --rrule, --on-files, --after,"
            " --on-event or --hook, or write `when:` into the file"
        )
    return spec


def _make(spec: Spec, places: Places, file: Path) -> None:
    from regrow.apps.serving import station_registration
    from regrow.infra.prefect import deployments
    from regrow.infra.prefect.clocks import clock
    from regrow.infra.state import hooks

    assert spec.when is not None
    when = spec.when
    _check(spec, places)
    notices = station_registration.checked(spec, places)
    costs = _check_cluster(when.cluster, places)
    awaited = _check_files(when.files)
    with deployments.at_home(places):
        times = clock(when)
    parameters = {
        "name": spec.name,
        "spec": str(file.resolve()),
        "state": places.root,
        "when": when.model_dump(mode="json", exclude_none=True, exclude=set(_TIMES)),
    }
    with deployments.connected(places.writable()) as client:
        from regrow.flows.run import run

        if when.after is not None:
            _check_circle(spec.name, when.after, deployments.listed(client, places.root))
        secret = hooks.make(places, spec.name) if when.hook else None
        form = run.parameters.model_dump_for_openapi()
        words = (
            f"`regrow schedule` made it of `{file.resolve()}`. Each run: {_runs(when, spec)}.\n\n"
            "Run, Custom run starts it now; `trials` there is for that run alone."
        )
        replaced = deployments.make(
            client, spec.name, clock=times, parameters=parameters, form=form, description=words
        )
        made = next(one for one in deployments.listed(client) if one.name == spec.name)
    notices += station_registration.of_schedule(places, spec, spec.name)
    echo(f"{spec.name}: {made.words}{'; in place of its schedule until now' if replaced else ''}")
    echo("\n".join([f"each run: {_runs(when, spec)}", *costs]))
    if made.coming:
        echo(
            f"next: {', '.join(f'{at:%Y-%m-%d %H:%M:%S}' for at in made.coming)}"
            f" ({when.timezone or 'UTC'})"
        )
    if awaited:
        echo(awaited)
    if secret is not None:
        echo(f"hook: POST /hooks/{spec.name} of the station; its secret is in {secret}")
    for line in notices:
        echo(line)
    if made.paused:
        echo(f"it is paused; {places.command('schedules', '', f'--resume {spec.name}')}")
    if missing := _who_runs(places):
        echo(missing)


def _check(spec: Spec, places: Places) -> None:
    """Check what `regrow run` checks first. Raises SpecError, UserError, UserCodeError."""
    from regrow.flows.checks import check_search, precheck
    from regrow.infra.ray.joining import check_room, environment
    from regrow.infra.state.driver_lock import runs_here
    from regrow.infra.state.experiments import prepare

    continued = spec.when is not None and spec.when.each == "continue"
    if not runs_here(places, spec.name) and (continued or spec.name not in places.experiments()):
        prepare(places, spec.name, spec, trials=None, code=None)
    precheck(spec)
    check_search(spec)
    environment(spec)
    if spec.when is None or spec.when.cluster is None:
        check_room(spec)


def _check_circle(name: str, after: str, known: Sequence[Scheduled]) -> None:
    """Raise SpecError if a schedule that starts `after` another one would start itself."""
    starts = {one.name: (one.parameters.get("when") or {}).get("after") for one in known}
    starts[name], way = after, [name]
    while (before := starts.get(way[-1])) is not None and before not in way[1:]:
        way.append(before)
        if before == name:
            problem = f"starts itself: {' after '.join(way)}"
            hint = "name an experiment that does not wait for this one"
            raise SpecError("when.after", after, problem, hint)


def _check_cluster(file: str | None, places: Places) -> list[str]:
    """Return what each run starts and costs on the cluster. Raises UserError and SpecError."""
    from regrow.flows.agents import check_state, engine
    from regrow.infra.clusters.cluster_file import read_cluster

    if file is None:
        return []
    cluster = read_cluster(Path(file))
    check_state(places, cluster, "state")
    started = engine(cluster)
    if not started.sends:  # a run's own file is there for its time alone
        raise UserError(
            f"on: {cluster.on}: its agents read the experiment's file here whenever they come back,"
            " and that of a scheduled run does not stay; submit it by hand, or choose another"
            " cluster"
        )
    started.check()
    return [f"on {cluster.name}, {cluster.on}: agents on {started.place}"]


def _check_files(pattern: str | None) -> str:
    """Return a warning about the files, "" for none. Raises SpecError if they are not listed."""
    from regrow.apps.station.triggers.files import fault, listed

    if pattern is None:
        return ""
    if (wrong := fault(pattern)) is not None:
        raise SpecError("when.files", pattern, *wrong)
    try:
        matches = listed(pattern)
    except (RegrowError, OSError) as error:
        hint = "make what is missing, or correct the address or the credentials"
        raise SpecError("when.files", pattern, f"cannot be listed: {error}", hint) from None
    return f"nothing is at {pattern} yet; what comes there starts it" if matches is None else ""


def _runs(when: When, spec: Spec) -> str:
    if when.each == "continue":
        from regrow.show.live.text import ends

        return f"continues with {spec.name}, {spec.trials} trial{ends(spec.trials or 0)} more"
    kept = "" if when.keep is None else f"; {when.keep} are kept"
    return f"an experiment of its own, {spec.name}-DATE, that learns from the one before{kept}"


def _who_runs(places: Places) -> str:
    """Return what is missing for it to run, "" if nothing."""
    from regrow.infra.prefect import home, server

    if server.configured_api_url() is not None:
        return (
            "your Prefect server has it; a worker of the pool regrow runs it: prefect worker start"
            " --pool regrow"
        )
    if home.has_station(places.prefect_home):
        return ""
    return f"no station is up: nothing runs until `{places.command('up', '')}`"


def _span(text: str | None) -> float | str | None:
    """Parse a time span: a plain number is seconds, other texts are returned unchanged."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _absolute(pattern: Any, folder: str) -> Any:
    """Return a pattern as an absolute path, as the station runs elsewhere; "" and URLs are kept."""
    if not isinstance(pattern, str) or "://" in pattern or not pattern:
        return pattern
    return os.path.join(folder, expanded(pattern))


def schedules(
    pause: Annotated[str | None, option("Start no run of it", metavar="NAME")] = None,
    resume: Annotated[str | None, option("Continue with it", metavar="NAME")] = None,
    delete: Annotated[str | None, option("Remove it; its experiments stay", metavar="NAME")] = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """List the schedules of the state root: when they run, the next run, how the last
    runs ended.
    """
    from regrow.infra.prefect import deployments
    from regrow.infra.state import hooks, served

    changed = [name for name in (pause, resume, delete) if name is not None]
    if len(changed) > 1:
        raise UserError("--pause, --resume and --delete are one at a time; keep one of them")
    if as_json and changed:
        raise UserError("--json lists schedules; give --pause, --resume or --delete without it")
    places = Places.at(state)
    with deployments.connected(places) as client:
        if pause is not None:
            deployments.pause(client, pause)
            echo(f"{pause} is paused; {places.command('schedules', '', f'--resume {pause}')}")
        elif resume is not None:
            deployments.resume(client, resume)
            echo(f"{resume} runs again")
        elif delete is not None:
            from regrow.infra.prefect import notifications

            deployments.delete(client, delete)
            notifications.forget(client, delete)
            served.forget(places, delete, schedule=True)
            hooks.forget(places, delete)
            echo(f"{delete} is deleted; its experiments stay")
        else:
            _list(deployments.listed(client, places.root), places, as_json=as_json)


def _list(found: list[Scheduled], places: Places, *, as_json: bool) -> None:
    from regrow.apps.station.triggers import aside

    if as_json:
        late, troubles = aside.found(places), aside.troubles(places)
        for one in found:
            view = {
                "name": one.name,
                "id": str(one.id),
                "words": one.words,
                "paused": one.paused,
                "spec": one.parameters.get("spec"),
                "state": one.parameters.get("state"),
                "when": one.parameters.get("when"),
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
                "set_aside": [asdict(event) for event in late if event.schedule == one.name],
                "troubles": [asdict(it) for it in troubles if it.schedule == one.name],
            }
            print(json.dumps(view))
    elif found:
        plain_console().print(_table(found))
        for line in aside.lines(places, [one.name for one in found]):
            echo(line)
    else:
        echo(f"no schedules in {places.root}; make one with `regrow schedule FILE`")


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _table(found: list[Scheduled]) -> Table:
    """Make the table: a line for each schedule with its last run; further runs below it."""
    table = plain_table("name", "when", "next", "last runs", "outcome")
    for one in found:
        following = (
            "paused" if one.paused else f"{one.coming[0]:%Y-%m-%d %H:%M %Z}" if one.coming else ""
        )
        first, *others = [_outcome(one, ran) for ran in one.runs[:3]] or [("", "")]
        table.add_row(*map(Text, (one.name, one.words, following, *first)))
        for other in others:
            table.add_row(*map(Text, ("", "", "", *other)))
    return table


def _outcome(one: Scheduled, ran: ScheduleRun) -> tuple[str, str]:
    due = "" if ran.due is None else f"{ran.due:%Y-%m-%d %H:%M:%S}"
    who = ran.experiment if ran.experiment not in ("", one.name) else due
    return who, f"{ran.state}: {ran.message}" if ran.message else ran.state
