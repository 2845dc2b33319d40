"""`show`: shows the state of one experiment."""

from __future__ import annotations

import json
import time

from rich.text import Text

from regrow.cli import tables
from regrow.cli.console import damage_told_last, plain_console
from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra.log.reading import read
from regrow.infra.state import notes, unhealed
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.show.live import text
from regrow.show.live.terminal import tell
from regrow.show.views import summaries


def show(name: NameArgument, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show the state of an experiment."""
    from regrow.show.live.board import Board
    from regrow.show.live.grid import signs_of
    from regrow.show.live.sections import report

    places = Places.at(state)
    store, board = places.known(name), Board(name)
    with damage_told_last() as noted:
        read(store, board.apply, board.history, noted)
        history, alive, now = board.history, runs(places, name), time.time()
        notes_of, stuck = notes.read(store), None if alive else unhealed.told(places).get(name)
        if as_json:
            found = summaries.show(history, alive=alive, now=now, notes=notes_of)
            print(json.dumps(found if stuck is None else {**found, "unhealed": stuck.why}))
            return
        console = plain_console()
        told = [] if stuck is None else [unhealed.line(places, name, stuck)]
        for line in (
            *text.summary(history, places, alive=alive, now=now),
            *told,
            *text.noted(notes_of),
        ):
            tell(line)
        for part in report(board, now, signs_of(console), console.width, alive=alive):
            console.print(Text("\n").join([Text(), *part]), soft_wrap=True)
        console.print()
        console.print(tables.trials(history, console, most=20))
