"""What commands print tables on, how they ask, and how they open an experiment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer
from rich.console import Console

from regrow.cli.exit_codes import ExitCode
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import replayed
from regrow.infra.log.rows import LogRows
from regrow.infra.state import driver_lock
from regrow.infra.state.notes import Notes
from regrow.infra.state.notes import read as read_notes
from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.show.live.terminal import PlainConsole, echo
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store


def plain_console() -> Console:
    """Return a console as wide as the terminal; for a file or a pipe, lines may have any length."""
    return PlainConsole() if sys.stdout.isatty() else PlainConsole(width=10_000)


def agreed(question: str, *, yes: bool, alone: str, error: bool = False) -> bool:
    """Ask, unless `yes`; return the answer. `error`: on standard error.

    Raises UserError with the text `alone` if standard input is no terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError(alone)
    return typer.confirm(question, err=error)


def say(line: str) -> None:
    """Print a message on standard error: standard output is the experiment's."""
    echo(line, error=True, flush=True)


def confirm(lines: list[str], *, yes: bool, question: str = "start it?") -> None:
    """Show what will be done, and ask. Exits on a no; raises UserError without a terminal."""
    for line in lines:
        say(line)
    alone = "there is no terminal to confirm this at; give --yes"
    if not agreed(question, yes=yes, alone=alone, error=True):
        sys.exit(ExitCode.DONE)


@dataclass(frozen=True, slots=True)
class OpenedExperiment:
    """An experiment, as its log has it."""

    name: str
    places: Places
    store: Store
    rows: LogRows

    @property
    def history(self) -> History:
        return self.rows.history

    @property
    def alive(self) -> bool:
        """Whether a driver runs it now."""
        return driver_lock.runs(self.places, self.name)

    @property
    def notes(self) -> Notes:
        return read_notes(self.store)


@contextmanager
def opened(name: str, state: str | None) -> Iterator[OpenedExperiment]:
    """Open the experiment of a state root within the block. Raises UserError if there is none, and
    as `damage_raised_last` does.
    """
    places = Places.at(state)
    store = places.known(name)
    with damage_raised_last() as noted:
        yield OpenedExperiment(name, places, store, replayed(store, name, on_damage=noted))


@contextmanager
def damage_raised_last() -> Iterator[Callable[[CorruptLog], None]]:
    """Show what can be read of a damaged experiment: collect damage of a log within the block (pass
    it to readers as `on_damage`); at the end, raise the first, which is exit code 4.
    """
    met: list[CorruptLog] = []
    yield met.append
    if met:
        raise met[0]
