"""Removing an experiment permanently: its state, its runs in MLflow, its flow run in Prefect; and
renaming one.

A tombstone is written first and deleted last, so that an interrupted removal is recognized, and a
second one finishes it. The tombstone lists what belongs to the experiment elsewhere, which the log
cannot tell once it is deleted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import msgspec

from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import replay, survey
from regrow.infra.log.segments import PREFIX
from regrow.infra.machine import locks
from regrow.infra.mlflow.removal import forget_runs, rename_experiment
from regrow.infra.prefect import home as homes
from regrow.infra.prefect import server as prefect_server
from regrow.infra.prefect.home import read_record
from regrow.infra.prefect.server import CLIENT_ENVIRONMENT
from regrow.infra.prefect.settings import own_home
from regrow.infra.state import served
from regrow.infra.state.driver_lock import await_final_reports, driving, runs
from regrow.infra.state.places import TOMBSTONE, Places
from regrow.infra.stores.local import sync_folder
from regrow.search.events import Closed
from regrow.search.history import History
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.ports.store import Exists, Missing
from regrow.tasks.process.variables import within

BATCH = 1000
"""Objects that are deleted between two progress messages."""


class OutsideResources(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to an experiment outside of its folder. Texts are empty if unknown because the
    log is damaged.

    Attributes:
        id: ID of the experiment.
        recorded_as: its name in MLflow.
        flow_run: ID of its Prefect flow run.

    """

    id: str = ""
    recorded_as: str = ""
    flow_run: str = ""


def history_of(places: Places, name: str) -> History | None:
    """Return the history; None if the log is damaged, or partly deleted already."""
    try:
        return replay(places.store(name), name)
    except (CorruptLog, ValueError):
        return None


def refuse_running(places: Places, name: str, what: str) -> None:
    """Raise UserError for an experiment that runs, on this machine or elsewhere."""
    await_final_reports(places, name, lambda: isinstance(survey(places.store(name)).last, Closed))
    if runs(places, name):
        hint = f"end it first: {places.command('stop', name)}"
        raise UserError(f"experiment {name!r} is running, so it cannot be {what}; {hint}")


def remove(places: Places, name: str, *, say: Callable[[str], None] = lambda _: None) -> None:
    """Remove an experiment, or what is left of it. Raises UserError for one that runs, Unavailable
    if the store fails.

    `say` is called with progress of long removals, and with what could not be reached.
    """
    folder = None if places.folder is None else places.folder / name
    if folder is not None and folder.is_symlink():
        hint = "remove the link itself, and what it leads to where that is"
        raise UserError(
            f"{folder} is a symbolic link, to {folder.resolve()}, so it cannot be removed; {hint}"
        )
    refuse_running(places, name, "removed")
    served.forget(places, name, schedule=False)
    with driving(places, name):
        store = places.store(name)
        outside = _marked_removed(places, name)
        keys = [key for key in store.list("") if key != TOMBSTONE]
        # the log last: `ls` can describe the experiment as long as the log is complete
        keys.sort(key=lambda key: key.startswith(PREFIX))
        for place in range(0, len(keys), BATCH):
            store.delete(keys[place : place + BATCH], ordered=False)
            if len(keys) > BATCH:
                say(f"{name}: {min(place + BATCH, len(keys)):,} of {len(keys):,} objects deleted")
        if outside.id:
            try:
                forget_runs(places, outside.recorded_as, outside.id)
            except RegrowError as error:
                say(f"its runs stay in MLflow: {error}")
            with suppress(Exception):  # Prefect only shows the removed experiment
                _forget_in_prefect(places, name, outside.flow_run)
        store.delete([TOMBSTONE])
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # empty folders
        with suppress(OSError):
            (places.services / "unfinished" / name).unlink()


def _marked_removed(places: Places, name: str) -> OutsideResources:
    """Write the tombstone, unless it exists; return its content."""
    store = places.store(name)
    history = history_of(places, name)
    outside = OutsideResources()
    if history is not None and history.created is not None:
        flow_run = history.opened.flow_run if history.opened is not None else None
        spec = history.spec.model_copy(update={"name": name})  # may have been renamed
        outside = OutsideResources(
            id=history.id, recorded_as=spec.recorded_as, flow_run=flow_run or ""
        )
    try:
        store.create(TOMBSTONE, msgspec.json.encode(outside))
    except Exists:
        with suppress(Missing, msgspec.DecodeError):
            outside = msgspec.json.decode(store.read(TOMBSTONE), type=OutsideResources)
    return outside


def _forget_in_prefect(places: Places, name: str, flow_run: str) -> None:
    """Delete the flow run and the notifications, if a Prefect server is running."""
    home, url = own_home(places), prefect_server.configured_api_url()
    # else the record is that of a server that has ended
    if url is None and locks.is_held(places.prefect_home / "server.lock"):
        url = read_record(places.prefect_home).get("api_url")
    if not flow_run or not url or not prefect_server.answers(url, 0.0):
        return
    auth = homes.auth(places.prefect_home) if home else None
    key = {} if auth is None else {"PREFECT_API_AUTH_STRING": auth}
    with within({**CLIENT_ENVIRONMENT, **home, "PREFECT_API_URL": url, **key}):
        from prefect import get_client

        from regrow.infra.prefect import notifications

        with get_client(sync_client=True) as client:
            client.delete_flow_run(UUID(flow_run))
            notifications.forget(client, name)


def rename(places: Places, name: str, new: str) -> str | None:
    """Rename atomically; return what failed in MLflow, None if nothing did.

    Raises UserError for an experiment that runs or is in a bucket, and for a name that is taken;
    SpecError for an invalid name.
    """
    if (root := places.folder) is None:
        why = "a bucket's objects cannot be renamed, each would have to be copied and deleted"
        raise UserError(
            f"{name!r} cannot be renamed: {why}; `{places.command('cp', name)}` writes a"
            " specification to begin another"
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
        return f"in MLflow it was not renamed, and is recorded again with its next session: {error}"
    return None
