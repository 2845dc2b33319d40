"""`show`, `best` and `agents`: the state of one experiment, its best configuration, its agents."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from regrow.cli import options, tables
from regrow.cli.console import damage_raised_last, opened, plain_console
from regrow.cli.options import option
from regrow.infra.log.reading import read
from regrow.infra.state import notes, resume_failures
from regrow.infra.state.agents import living
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.show.live import text
from regrow.show.live.terminal import echo
from regrow.show.views import agents as views
from regrow.show.views import summaries
from regrow.tasks.errors import UserError

STATE_DICTS = "state_dicts.pt"
"""File for `torch.load`, beside the files of the checkpoint."""
_MOST = 8
"""Trials of an agent that are named."""


def show(name: options.Name, state: options.State = None, as_json: options.Json = False) -> None:
    """Show the state of an experiment."""
    from regrow.show.live.board import Board
    from regrow.show.live.grid import signs_of
    from regrow.show.live.sections import report

    places = Places.at(state)
    store, board = places.known(name), Board(name)
    with damage_raised_last() as noted:
        read(store, board.apply, board.history, noted)
        history, alive, now = board.history, runs(places, name), time.time()
        notes_of = notes.read(store)
        stuck = None if alive else resume_failures.read(places).get(name)
        if as_json:
            found = summaries.show(history, alive=alive, now=now, notes=notes_of)
            print(json.dumps(found if stuck is None else {**found, "unhealed": stuck.why}))
            return
        console = plain_console()
        failure_lines = [] if stuck is None else [resume_failures.describe(places, name, stuck)]
        for line in (
            *text.summary(history, places, alive=alive, now=now),
            *failure_lines,
            *text.noted(notes_of),
        ):
            echo(line)
        for part in report(board, now, signs_of(console), console.width, alive=alive):
            console.print(Text("\n").join([Text(), *part]), soft_wrap=True)
        console.print()
        console.print(tables.trials(history, console, most=20))


def best(
    name: options.Name,
    state: options.State = None,
    as_json: options.Json = False,
    save: Annotated[
        Path | None, option("Write its checkpoint's files into this new folder")
    ] = None,
    schedule: Annotated[
        bool,
        option(
            "Print the schedule of configurations that led to it, to be replayed by one trial",
            "--schedule",
        ),
    ] = False,
) -> None:
    """Print the best configuration, ready to paste."""
    with opened(name, state) as found:
        history = found.history
        view = summaries.best(history)
        if save is not None:
            if view is None or view["checkpoint"] is None:
                raise UserError(
                    f"--save: the best trial of {name!r} has no checkpoint; report with"
                    " checkpoint=... in the trainable"
                )
            _save_checkpoint(found.places, name, view["checkpoint"], save)
        if schedule and view is not None:
            view = summaries.schedule(history, view["trial"], view["step"])
        if as_json:
            print(json.dumps(view))
        elif view is None:
            echo(f"no trial of {name} has reported anything yet")
        elif schedule:
            for key, written in view.items():
                echo(f"{key}: {text.pasted(written)}")
        else:
            for line in text.best(history, found.places):
                echo(line)


def _save_checkpoint(places: Places, name: str, manifest: str, folder: Path) -> None:
    from regrow.tasks.checkpoint.saving import restore_one

    if folder.exists():
        raise UserError(f"--save: {folder} exists already; name a folder that is to be made")
    restore_one(places.known(name), manifest, folder)
    file = folder / STATE_DICTS
    if file.exists() or not (folder / ".metadata").exists():  # not as rg.torch.State saves
        return
    try:
        from regrow import torch  # takes 2 s

        parts = torch.export(folder, file)
    except UserError as error:  # PyTorch is not installed, or another program wrote the checkpoint
        echo(f"{STATE_DICTS} is not written: {error}", error=True)
    else:
        echo(f"for torch.load: {file} ({', '.join(parts)})", error=True)


def agents(name: options.Name, state: options.State = None, as_json: options.Json = False) -> None:
    """Show the agents of an experiment: since when they are there, what they run, which one leads,
    who left and why.
    """
    with opened(name, state) as found:
        history, alive = found.history, found.alive
        listed = views.view(history, alive=alive)
        listed += [
            views.joining(one) for one in living(found.store) if one.id not in history.agents
        ]
        if as_json:
            print(json.dumps(listed))
        elif not listed:
            joins = found.places.command("join", name)
            echo(f"{name} has no agents; `{joins}` makes this machine one")
        else:
            for line in views.line(history, alive=alive):
                echo(line)
            rows = [_agent(one, time.time()) for one in listed]
            shown = [title for title in rows[0] if any(row[title] for row in rows)]
            table = tables.plain_table(*shown, right=("cpus", "gpus"), wraps=True)
            for row in rows:
                table.add_row(*(row[title] for title in shown))
            plain_console().print(table)


def _agent(one: dict[str, Any], now: float) -> dict[str, str]:
    trials = one["trials"]
    more = f" and {len(trials) - _MOST} more" if len(trials) > _MOST else ""
    numbers = f"{', '.join(map(str, trials[:_MOST]))}{more}"
    return {
        "agent": one["agent"],
        "host": one["host"],
        "state": one["state"],
        "since": f"{text.age(now - one['since'])} ago",
        "cpus": f"{one['cpus']:g}",
        "gpus": f"{one['gpus']:g}" if one["gpus"] else "",
        "market": one["market"],
        "ends": text.ending_in(one, now),
        "runs": f"trial{text.ends(len(trials))} {numbers}" if trials else "",
        "why it left": one["why"],
    }
