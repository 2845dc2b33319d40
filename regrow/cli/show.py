"""`show`: how one experiment stands."""

from __future__ import annotations

import json
import time

from rich.text import Text

from regrow.cli import tables
from regrow.cli.console import plain_console
from regrow.cli.options import JsonOption, NameArgument, StateOption
from regrow.infra.log.reading import stream_events
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.infra.views import summaries
from regrow.live import text


def show(name: NameArgument, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show how an experiment stands."""
    from regrow.live.board import Board
    from regrow.live.grid import signs_of
    from regrow.live.sections import report

    places = Places.at(state)
    store, board = places.known(name), Board(name)
    for event in stream_events(store):
        board.apply(event)
    history, alive, now = board.history, runs(places, name), time.time()
    noted = notes.read(store)
    if as_json:
        print(json.dumps(summaries.show(history, alive=alive, now=now, notes=noted)))
        return
    console = plain_console()
    for line in (*text.summary(history, places, alive=alive, now=now), *text.noted(noted)):
        console.print(line, markup=False, soft_wrap=True)
    for part in report(board, now, signs_of(console), console.width, alive=alive):
        console.print(Text("\n").join([Text(), *part]), soft_wrap=True)
    console.print()
    console.print(tables.trials(history, console, most=20))
