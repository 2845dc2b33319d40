"""`trial`: shows one trial; drops, keeps, stops and repeats trials."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, NoReturn

import typer
from rich.cells import cell_len
from rich.text import Text

from regrow.cli import options, tables
from regrow.cli.console import agreed, opened, plain_console
from regrow.cli.options import option
from regrow.flows.housekeeping.trial_orders import order
from regrow.flows.recording.catch_up import write_notes
from regrow.infra.state.places import Places
from regrow.infra.state.yaml_file import set_values
from regrow.search.durations import duration
from regrow.search.history import Attempt, History, TrialRecord
from regrow.search.history.orders import TrialOrder, is_carried_out
from regrow.search.history.selection import selected
from regrow.search.numbers import columned, readable
from regrow.search.options import chosen
from regrow.show.live import text
from regrow.show.live.grid import signs_of, spark
from regrow.show.live.terminal import echo
from regrow.show.views import machine_use, media, summaries
from regrow.show.views.names import LONGEST, shortened
from regrow.show.views.trial_logs import TrialLogs
from regrow.tasks.errors import UserError
from regrow.tasks.media.items import Item
from regrow.tasks.output.traces import one_line, printable
from regrow.tasks.process.disk import size as in_words

LINES = 10
"""Last lines of its output that are shown."""
SHORTEST = 4
"""Fewest characters that name a version of the code."""
CURVE = 60
"""Positions of its curve."""


def trial(
    name: options.Name,
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", min=0, help="The trial's number", show_default=False),
    ] = None,
    drop: Annotated[
        bool,
        option(
            "Drop it: it ranks no more, and nothing learns from it; it must have ended", "--drop"
        ),
    ] = False,
    keep: Annotated[bool, option("Keep a dropped trial after all", "--keep")] = False,
    stop: Annotated[
        bool, option("Stop it: it leaves at its next report, and its slot is free", "--stop")
    ] = False,
    again: Annotated[
        bool,
        option("Run its configuration again, now, in an experiment of its own", "--again"),
    ] = False,
    seeds: Annotated[
        int | None, option("With --again: as many runs, each with a seed of its own", min=1)
    ] = None,
    seed: Annotated[int | None, option("With --again: the seed", min=0)] = None,
    max_steps: Annotated[int | None, option("With --again: most steps", min=1)] = None,
    changes: options.Set = None,
    where: Annotated[
        str | None,
        option(
            "In place of N: all trials that meet a condition, 'lr > 0.1 and state == failed'",
            metavar="CONDITION",
        ),
    ] = None,
    code: Annotated[
        str | None,
        option(
            "In place of N: all trials that ran with this version of the code, the first"
            " characters of its commit or hash",
            metavar="VERSION",
        ),
    ] = None,
    state: options.State = None,
    as_json: options.Json = False,
    yes: options.Yes = False,
) -> None:
    """Show one trial: configuration, curve, attempts, why it ended, checkpoints, code, output.

    With --drop, --keep or --stop it asks first. They can be used while the experiment runs, and are
    in its log, so that `verify` and `resume` follow them. Without them, --where and --code list
    trials.
    """
    if drop + keep + stop + again > 1:
        raise UserError("--drop, --keep, --stop and --again exclude each other")
    if as_json and (drop or keep or stop):
        raise UserError("--json shows trials; give --drop, --keep or --stop without it")
    if not again and (changes or {seed, seeds, max_steps} != {None}):
        raise UserError("--seed, --seeds, --max-steps and --set go with --again")
    if (number is None) is (where is None and code is None):
        raise UserError("name one trial by its number, or several by --where or --code")
    if again:
        given = {"seed": seed, "repeats": seeds or 1, "trials": seeds or 1, "max_steps": max_steps}
        given = {key: value for key, value in given.items() if value is not None}
        given |= set_values(changes or ())
        _again(Places.at(state), name, number, given, as_json=as_json)
    what: TrialOrder | None = "drop" if drop else "keep" if keep else "stop" if stop else None
    with opened(name, state) as experiment:
        history, places = experiment.history, experiment.places
        if what is not None or number is None:
            found_all = _selected(history, number, where, code)
            if what is not None:
                _order(places, history, found_all, what, yes=yes)
            elif as_json:
                for one in found_all:
                    print(json.dumps(summaries.trial_view(history, one)))
            else:
                plain_console().print(tables.trials(history, plain_console(), only=found_all))
            return
        _show(history, summaries.trial(history, number), places, as_json=as_json)


def _again(
    places: Places, name: str, number: int | None, given: dict[str, Any], *, as_json: bool
) -> NoReturn:
    """Run it in this terminal, to its end. `given`: keys of the specification or parameters of the
    space, as --set has them. Raises UserError and SpecError for what cannot run.
    """
    if number is None:
        raise UserError("--again runs one trial: name it by its number")
    from regrow.cli.run import run_session
    from regrow.flows.housekeeping.copying import specification_again

    new, taken = f"{name}-trial{number}", set(places.experiments())
    names = (new, *(f"{new}-{n}" for n in range(2, len(taken) + 3)))
    free = next(one for one in names if one not in taken)
    spec = specification_again(places, name, number, free, given)
    if not as_json:
        times = "once" if spec.total == 1 else f"{spec.total} times"
        echo(f"{spec.name}: the configuration of trial {number} of {name}, {times}")
    run_session(places, spec.name, spec=spec, as_json=as_json)


def _show(history: History, found: TrialRecord, places: Places, *, as_json: bool) -> None:
    name, store = history.spec.name, places.store(history.spec.name)
    logs = [line for _, line in TrialLogs(store, found.number).new(None)][-LINES:]
    logged = media.of_trial(store, found)
    if as_json:
        repeats, best = history.spec.repeats, found.best
        view = {
            **summaries.trial_view(history, found),
            "why": found.attempts[-1].reason if found.attempts else "",
            "repeat_of": None if repeats == 1 else found.number // repeats,
            "best_step": None if best is None else best[1],
            "metrics": found.curve.shown(best[1]) if best else {},
            "proposed": history.spec.space.nest(found.proposed),
            "checkpoints": {
                step: places.address(name, saved.manifest)
                for step, saved in found.checkpoints.items()
            },
            "code": _code(history, found),
            "media": [media.view(item, places.address(name, item.key)) for item in logged],
        }
        print(json.dumps(view))
        return
    for line in _head(history, found, places):
        echo(line)
    if len(values := list(found.values)) > 1:
        between = f"{readable(min(values))} to {readable(max(values))}"
        echo(f"\n{one_line(history.objective.name)}, steps 1 to {len(values)}, {between}:")
        echo(f"  {spark(values, CURVE, signs_of(plain_console()))}")
    if found.attempts:
        echo("attempts:")
        table = tables.plain_table("attempt", "steps", "node", "began", "took")
        table.add_column("ended", overflow="fold")
        for one in found.attempts:
            table.add_row(*map(Text, _attempt(one)))
        plain_console().print(table)
    begun = [one for one in found.attempts if one.t_began is not None]
    used = [f"attempt {one.number}: {machine_use.of_attempt(one)}" for one in begun]
    used += machine_use.sentences(history, [found])
    for title, lines in (
        ("machine use:", [f"  {line}" for line in used]),
        ("logged:", _media(places, name, logged)),
        (f"its last {len(logs)} lines:", [f"  {one_line(line.text)}" for line in logs]),
        ("", _commands(history, found, places)),
    ):
        if lines:
            echo(title)
        for line in lines:
            echo(line)


def _selected(
    history: History, number: int | None, where: str | None, code: str | None
) -> list[TrialRecord]:
    """Return the trials to list or to act on. Raises UserError if there is none."""
    if number is not None:
        return [summaries.trial(history, number)]
    found = history.trials if where is None else selected(history, where)
    if code is not None:
        if len(code) < SHORTEST:
            raise UserError(f"--code {code!r}: write at least {SHORTEST} characters of it")
        found = [trial for trial in found if summaries.ran_with(history, trial, code)]
    if not found:
        wanted = [f"--where {where!r}"] * (where is not None) + [f"--code {code}"] * bool(code)
        raise UserError(f"no trial of {history.spec.name!r} meets {' and '.join(wanted)}")
    return found


_DONE: Mapping[TrialOrder, str] = {"drop": "dropped", "keep": "kept", "stop": "stopped"}


def _order(
    places: Places, history: History, found: list[TrialRecord], what: TrialOrder, *, yes: bool
) -> None:
    name, done = history.spec.name, _DONE[what]
    left = [trial for trial in found if not is_carried_out(trial, what)]
    if not left:
        so = "over, or about to be" if what == "stop" else f"{done} already"
        echo(f"nothing to do: {'it is' if len(found) == 1 else 'they are all'} {so}")
        return
    plain_console().print(tables.trials(history, plain_console(), only=left))
    these = "this trial" if len(left) == 1 else f"these {len(left)} trials"
    alone = f"nothing was {done}: there is no terminal to ask at; say it with --yes"
    if not agreed(f"{what.capitalize()} {these} of {name}?", yes=yes, alone=alone):
        echo(f"nothing was {done}")
        return
    numbers = [trial.number for trial in left]
    now = order(places, name, numbers, what)
    which = f"trial{text.ends(len(numbers))} {', '.join(map(str, numbers))} of {name}"
    echo(f"{which}: {done}")
    if what == "stop":
        return
    if (view := summaries.best(now)) is not None:
        metric = now.objective.name
        echo(f"the best is trial {view['trial']}: {metric} {summaries.reached(view)}")
    if (trouble := write_notes(places, name)) is not None:
        echo(trouble)


def _head(history: History, found: TrialRecord, places: Places) -> Iterator[str]:
    spec, name = history.spec, one_line(history.spec.name)
    why = one_line(found.attempts[-1].reason) if found.attempts else ""
    reason = f": {why}" if why else ""
    stands = summaries.state_text(found)
    yield f"trial {found.number} of {name}: {stands} at step {found.step}{reason}"
    again = (
        f", seed {found.number % spec.repeats + 1} of {spec.repeats}" if spec.repeats > 1 else ""
    )
    yield f"parameters, proposed by {one_line(chosen(spec.search))}{again}:"
    config = spec.space.nest(summaries.reached_with(history, found))
    yield from _named(list(config), list(map(text.pasted, config.values())))
    best = found.curve.best if found.excluded else found.best
    if step := best[1] if best is not None else found.step:
        row = found.curve.shown(step)
        first = [metric.name for metric in spec.metrics if metric.name in row]
        metrics = {name: row[name] for name in (*first, *row)}
        yield f"metrics at step {step}{'' if best is None else ', its best'}:"
        yield from _named(list(metrics), columned(list(metrics.values())))
    for change in found.changes:
        source = "" if change.source is None else f", weights of trial {change.source}"
        changed = one_line(text.pasted(spec.space.nest(change.config)))
        yield f"  from step {change.step + 1}: {changed}{source}"
    for step, saved in found.checkpoints.items():
        yield f"checkpoint of step {step}: {places.address(spec.name, saved.manifest)}"
    if (code := _code(history, found)) is not None:
        yield f"code: {code}"
    if (price := summaries.trial_view(history, found)["cost"]) is not None:
        yield f"cost: {price:,.4f}"
    if failure := found.failure:
        yield from map(printable, failure.trace.rstrip().splitlines() if failure.trace else ())


def _named(names: Sequence[str], values: Sequence[str]) -> Iterator[str]:
    """Yield a line for each value; names are cut in their middle where the terminal is narrow."""
    width = plain_console().width
    most = [max(LONGEST, width - cell_len(f"  : {value}")) for value in values]
    for name, value in zip(shortened(list(map(one_line, names)), most), values, strict=True):
        yield f"  {name}: {value}"


def _code(history: History, found: TrialRecord) -> str | None:
    """Return the code that its first attempt ran with; None if that is not known."""
    began = found.attempts[0].t_started if found.attempts else None
    opened = [one for one in history.openings if one.environment and one.t <= (began or 0.0)]
    if not opened:
        return None
    environment = opened[-1].environment
    code, git = environment.get("code", {}), environment.get("git", {})
    parts = [one_line(str(code.get("file", ""))), str(code.get("sha256", ""))[:12]]
    if commit := git.get("commit"):
        parts.append(f"(commit {commit[:7]}{', dirty' if git.get('dirty') else ''})")
    return " ".join(part for part in parts if part) or None


def _attempt(one: Attempt) -> Sequence[str]:
    began = one.t_began
    steps = f"{one.from_step + 1}-{one.to_step}" if one.to_step > one.from_step else "none"
    when = "" if began is None else f"{datetime.fromtimestamp(began):%Y-%m-%d %H:%M:%S}"  # noqa: DTZ006 - local
    took = "" if began is None else duration((one.t_ended or time.time()) - began)
    reason = one_line(one.reason or one.cause)
    ended = f"{one.outcome or 'runs'}{f': {reason}' if reason else ''}"
    return str(one.number), steps, one_line(one.seat or ""), when, took, ended


def _media(places: Places, name: str, items: list[Item]) -> list[str]:
    """Return a line for each name, with the newest item."""
    lines = []
    for title, found in media.by_name(items).items():
        last = found[-1]
        earlier = f", and of {len(found) - 1} earlier" if len(found) > 1 else ""
        about = f"{last.kind}, {in_words(last.size)}, of step {last.step}{earlier}"
        lines.append(f"  {one_line(title)}: {about}: {places.address(name, last.key)}")
    return lines


def _commands(history: History, found: TrialRecord, places: Places) -> list[str]:
    name, number = history.spec.name, str(found.number)
    verb, what = "--stop", "stop it"
    if found.excluded:
        verb, what = "--keep", "keep it after all"
    elif found.state.final:
        verb, what = "--drop", "rank and learn without it"
    return [
        f"all of its output: {places.command('logs', name, number)}",
        f"again, with three seeds: {places.command('trial', name, f'{number} --again --seeds 3')}",
        f"{what}: {places.command('trial', name, f'{number} {verb}')}",
    ]
