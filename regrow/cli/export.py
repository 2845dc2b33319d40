"""`regrow export`: writes an experiment for other tools. Tables are written by `regrow trials
--csv` and `--parquet`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regrow.cli.damage import damage_told_last
from regrow.cli.options import NameArgument, StateOption
from regrow.infra.log.reading import replayed
from regrow.infra.log.rows import Rows
from regrow.infra.state.places import Places
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError


def export(
    name: NameArgument,
    optuna: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database for a study that optuna-dashboard opens, such as sqlite:///x.db",
            show_default=False,
        ),
    ] = None,
    study_name: Annotated[
        str | None,
        typer.Option(help="Name of that study [default: the experiment's]", show_default=False),
    ] = None,
    tensorboard: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder for TensorBoard's files; an earlier export is replaced",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder with what a container needs to serve the best checkpoint, by --model",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:CLASS",
            help="The class that answers, as for `regrow serve`",
            show_default=False,
        ),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(min=0, help="With --image: the trial [default: the best]", show_default=False),
    ] = None,
    state: StateOption = None,
) -> None:
    """Write an experiment, in its current state, in a form that another tool opens."""
    if optuna is None and tensorboard is None and image is None:
        raise UserError(
            "say what to write: --optuna sqlite:///x.db, --tensorboard DIR or --image DIR; tables:"
            " regrow trials NAME --csv"
        )
    if image is None and (model is not None or trial is not None):
        raise UserError(f"--{'model' if model is not None else 'trial'} goes with --image")
    if image is not None and model is None:
        raise UserError(
            "--image goes with --model, the class that answers, such as serve.py:Digits"
        )
    if study_name is not None and optuna is None:
        raise UserError("--study-name goes with --optuna")
    places = Places.at(state)
    with damage_told_last() as noted:
        rows = replayed(places.known(name), name, on_damage=noted)
        _write(rows, places, name, optuna, study_name, tensorboard, image, model, trial)


def _write(
    rows: Rows,
    places: Places,
    name: str,
    optuna: str | None,
    study_name: str | None,
    tensorboard: str | None,
    image: str | None,
    model: str | None,
    trial: int | None,
) -> None:
    history = rows.history
    if optuna is not None:
        from regrow.show.exports.optuna_database import shown_url
        from regrow.show.exports.optuna_study import study

        made = study(history, storage=optuna, name=study_name, places=places)
        where = shown_url(optuna)
        tell(
            f"{where}: study {made.study_name!r}, {len(history.trials)} trials; open it:"
            f" optuna-dashboard {where}"
        )
        for note in made.user_attrs.get("regrow.notes", ()):
            tell(f"  note: {note}")
    if tensorboard is not None:
        from regrow.show.exports.tensorboard import write

        count = write(rows, tensorboard)
        tell(f"{tensorboard}: {count} trials; open it: tensorboard --logdir {tensorboard}")
    if image is not None and model is not None:
        from regrow.apps.serving.image import write as write_image

        chosen = write_image(places, name, model=model, trial=trial, folder=Path(image))
        tell(
            f"{image}: trial {chosen.trial}, step {chosen.step}, {chosen.metric} {chosen.value:.6g}"
        )
        tell(f"  docker build -t {name.lower()} {image}")
        tell(f"  without docker: python -m regrow.apps.serving.image_server {image}")
