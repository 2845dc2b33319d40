"""`regrow export`: an experiment for other tools. Tables are `regrow trials --csv` and `--parquet`."""

from __future__ import annotations

from typing import Annotated

import typer

from regrow.cli.options import NameArgument, StateOption
from regrow.infra.log.reading import replayed
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError


def export(
    name: NameArgument,
    optuna: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Database for a study that optuna-dashboard opens, such as sqlite:///x.db", show_default=False
        ),
    ] = None,
    study_name: Annotated[
        str | None, typer.Option(help="Name of that study [default: the experiment's]", show_default=False)
    ] = None,
    tensorboard: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for TensorBoard's files; an earlier export is replaced", show_default=False),
    ] = None,
    state: StateOption = None,
) -> None:
    """Write an experiment, as it stands now, in a form that another tool opens."""
    if optuna is None and tensorboard is None:
        raise UserError("say what to write: --optuna sqlite:///x.db or --tensorboard DIR; tables: regrow trials NAME --csv")
    if study_name is not None and optuna is None:
        raise UserError("--study-name goes with --optuna")
    places = Places.at(state)
    rows = replayed(places.known(name), name)
    history = rows.history
    if optuna is not None:
        from regrow.infra.exports.optuna_database import shown_url
        from regrow.infra.exports.optuna_study import study

        made = study(history, storage=optuna, name=study_name, places=places)
        where = shown_url(optuna)
        print(f"{where}: study {made.study_name!r}, {len(history.trials)} trials; open it: optuna-dashboard {where}")
        for note in made.user_attrs.get("regrow.notes", ()):
            print(f"  note: {note}")
    if tensorboard is not None:
        from regrow.infra.exports.tensorboard import write

        count = write(rows, tensorboard)
        print(f"{tensorboard}: {count} trials; open it: tensorboard --logdir {tensorboard}")
