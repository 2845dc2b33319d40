"""`verify`: recomputes every decision of an experiment from its log."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from regrow.cli import options
from regrow.cli.exit_codes import ExitCode
from regrow.infra.log.log import Log
from regrow.infra.log.reading import placed_events, survey
from regrow.infra.state.places import Places
from regrow.show.live.terminal import echo


def verify(name: options.Name, state: options.State = None) -> None:
    """Recompute every decision of an experiment from its log."""
    from regrow.infra.state.experiments import make_importable
    from regrow.search.events import AnyEvent, encode
    from regrow.search.history import specification
    from regrow.search.planning.verify import verify as check

    store = Places.at(state).known(name)
    found = survey(store)
    if found.created is not None:
        make_importable(specification(found.created, found.opened))
    at = 0, 0

    def events() -> Iterator[AnyEvent]:
        nonlocal at
        for segment, line, event in placed_events(store):
            at = segment, line
            yield event

    result = check(events())
    end = Log.proven(store)
    if result.difference is None:
        kinds = ", ".join(f"{n} {kind}" for kind, n in result.kinds.items())
        echo(f"{name}: {result.events} events fold without a contradiction ({kinds})")
        echo(f"{name}: {result.decisions} decisions recomputed, all as recorded")
        if result.history.closed is not None:
            unproved = (
                "the end of its log cannot be proved: an earlier version closed it, or its driver"
                " was killed right then"
            )
            proved = f"its log is whole up to segment {end}, with which it was closed"
            echo(f"{name}: {proved if end else unproved}")
        return
    wrong = result.difference
    echo(f"{name}: event {wrong.position} (segment {at[0]}, line {at[1]}) differs: {wrong.why}")
    echo(f"  found:    {encode(wrong.found).decode()}")
    echo(
        "  expected:"
        f" {encode(wrong.expected).decode() if wrong.expected is not None else 'nothing'}"
    )
    sys.exit(ExitCode.FAILED)
