"""`note`: notes on an experiment, and tags to find it by."""

from __future__ import annotations

from typing import Annotated

import typer

from regrow.cli.options import NameArgument, StateOption, option
from regrow.flows.recording.catch_up import tell_notes
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.show.live import text
from regrow.show.live.terminal import tell


def note(
    name: NameArgument,
    words: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="The note, in quotes", show_default=False)
    ] = "",
    tag: Annotated[list[str] | None, option("Give it this tag; may be repeated")] = None,
    untag: Annotated[list[str] | None, option("Take this tag away; may be repeated")] = None,
    state: StateOption = None,
) -> None:
    """Add a note or tags to an experiment, also while it runs; without either, print its notes.

    Notes are kept permanently in the state, and shown wherever the experiment is: ls, show, watch,
    compare, report, MLflow.
    """
    places = Places.at(state)
    store = places.known(name)
    if changes := bool(words or tag or untag):
        notes.add(store, words, tags=tag or (), untags=untag or ())
    found = notes.read(store)
    for line in text.noted(found):
        tell(line)
    if not (found.texts or found.tags):
        tell(f"nothing is noted of {name}")
    if changes and (trouble := tell_notes(places, name)) is not None:
        tell(trouble)
