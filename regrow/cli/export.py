"""`regrow export`: writes an experiment for other tools; `regrow trials` writes tables."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from regrow.cli import options
from regrow.cli.console import opened
from regrow.cli.options import option
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError


def export(
    name: options.Name,
    optuna: Annotated[
        str | None,
        option(
            "Database for a study that optuna-dashboard opens, such as sqlite:///x.db",
            metavar="URL",
        ),
    ] = None,
    study_name: Annotated[
        str | None, option("Name of that study [default: the experiment's]")
    ] = None,
    tensorboard: Annotated[
        str | None,
        option("Folder for TensorBoard's files; an earlier export is replaced", metavar="DIR"),
    ] = None,
    image: Annotated[
        str | None,
        option(
            "Folder with what a container needs to serve the best checkpoint, by --model",
            metavar="DIR",
        ),
    ] = None,
    model: Annotated[
        str | None, option("The class that answers, as for `regrow serve`", metavar="FILE:CLASS")
    ] = None,
    trial: Annotated[
        int | None, option("With --image: the trial [default: the best]", min=0)
    ] = None,
    state: options.State = None,
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
    with opened(name, state) as found:
        history = found.history
        if optuna is not None:
            from regrow.show.exports.optuna_database import shown_url
            from regrow.show.exports.optuna_study import study

            made = study(history, storage=optuna, name=study_name, places=found.places)
            where = shown_url(optuna)
            echo(
                f"{where}: study {made.study_name!r}, {len(history.trials)} trials; open it:"
                f" optuna-dashboard {where}"
            )
            for note in made.user_attrs.get("regrow.notes", ()):
                echo(f"  note: {note}")
        if tensorboard is not None:
            from regrow.show.exports.tensorboard import write

            count = write(found.rows, tensorboard)
            folder = shlex.quote(tensorboard)
            echo(f"{tensorboard}: {count} trials; open it: tensorboard --logdir {folder}")
        if image is not None and model is not None:
            from regrow.apps.serving.image import write as write_image

            chosen = write_image(found.places, name, model=model, trial=trial, folder=Path(image))
            echo(f"{image}: {chosen.text}")
            folder = shlex.quote(image)
            echo(f"  docker build -t {name.lower()} {folder}")
            echo(f"  without docker: python -m regrow.apps.serving.image_server {folder}")
