"""Renaming an experiment, and so its folder; its log says the name from the next session on."""

from __future__ import annotations

import os
from contextlib import suppress

from regrow.flows.housekeeping.removal import refuse_running
from regrow.infra.mlflow.removal import rename_experiment
from regrow.infra.state import served
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.places import Places
from regrow.infra.stores.local import sync_folder
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError


def rename(places: Places, name: str, new: str) -> str | None:
    """Rename atomically; return what failed in MLflow, None if nothing did.

    Raises UserError for an experiment that runs or is in a bucket, and for a name that is taken;
    SpecError for an invalid name.
    """
    if (root := places.folder) is None:
        why = "a bucket's objects cannot be renamed, each would have to be copied and deleted"
        raise UserError(
            f"{name!r} keeps its name: {why}; `{places.command('cp', name)}` writes a specification"
            " to begin another"
        )
    places.known(name)
    if name == new:
        raise UserError(f"{name!r} is its name already; give another one")
    refuse_running(places, name, "renamed")
    any_spec = {"trainable": "a.py:f", "metric": "m", "mode": "max", "trials": 1}
    Spec.parse({**any_spec, "name": new, "space": {"x": {"uniform": [0, 1]}}})
    with driving(places, name), driving(places, new):
        if (root / new).exists():
            raise UserError(
                f"there is something called {new!r} in {places.root} already; give another name"
            )
        os.rename(root / name, root / new)
        sync_folder(root)
        with suppress(OSError):
            (places.services / "unfinished" / name).rename(places.services / "unfinished" / new)
        served.rename(places, name, new)
    try:
        rename_experiment(places, name, new)
    except RegrowError as error:
        return f"in MLflow it keeps its name, and is recorded anew with its next session: {error}"
    return None
