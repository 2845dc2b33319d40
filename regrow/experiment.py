"""Experiments defined in Python: the same specification, session and Result as from a YAML file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.infra.log.reading import replay
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.result import Result
from regrow.search.history import History
from regrow.search.spec import COMMAND, Spec
from regrow.tasks.attempt.trainable import adapt
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Exists, Store
from regrow.tasks.trial.trial import Trial

if TYPE_CHECKING:
    from regrow.show.live.terminal import Events

StationOf = Callable[[Places, Callable[[str], None]], Callable[..., bool] | None]
"""Returns what runs a session on the station of a state root and whether it did; None without."""


class Experiment:
    """A trainable and the specification around it.

    Args:
        trainable: a function of a Trial, a class with `setup` and `step`, or text such as
            "file.py:function". Functions and classes are pickled by value into the experiment's
            state. None: pass `command=[...]` instead.
        mode: "min" or "max"; None: each of several metrics has its own, `[{"name": "loss", "mode":
            "min"}, ...]`.
        options: the other keys of the YAML form.

    Raises SpecError for invalid arguments.

    """

    def __init__(
        self,
        trainable: Callable[[Trial], object] | type | str | None = None,
        *,
        space: Mapping[str, Any],
        metric: str | Sequence[Mapping[str, str]],
        mode: str | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self._object = None if isinstance(trainable, str) else trainable
        path = COMMAND if trainable is None else "pickled"
        own = getattr(trainable, "__name__", "experiment").replace("<lambda>", "experiment")
        if self._object is not None:
            adapt(self._object, own)
        given = {
            "name": name or own,
            "trainable": trainable if isinstance(trainable, str) else path,
            "space": space,
            "metric": metric,
            "mode": mode,
            **options,
        }
        given.setdefault("working_dir", str(script_folder()))
        self.spec = Spec.parse(given)

    def run(
        self,
        *,
        trials: int | None = None,
        quiet: bool = False,
        retry_failed: bool = False,
        events: Events | None = None,
        station_of: StationOf | None = None,
    ) -> Result:
        """Run the experiment, or resume it if the state root has it; return when the session has
        ended.

        Args:
            trials: new total number of trials; None: as specified.
            quiet: print no progress.
            retry_failed: retry failed trials from their last checkpoints; without failed trials it
                changes nothing.
            events: takes the log's events as they come; messages then go to standard error. None:
                nothing takes them.
            station_of: finds the station that runs the session; None: it runs in this process.

        In a notebook, one table in the cell shows the progress, and interrupting the kernel acts
        like Ctrl-C: running attempts save a checkpoint, and running the cell again resumes. Raises
        UserError if the environment cannot run the experiment.

        """
        from regrow.notebook import NotebookViewer, in_notebook
        from regrow.show.live import Live
        from regrow.show.live.terminal import Terminal

        places = Places.at(self.spec.state).writable()
        store = places.store(self.spec.name)
        code = None if self._object is None else store_trainable(store, self._object)
        cell = NotebookViewer(quiet=quiet) if in_notebook() else None
        live = Live(
            Terminal(stderr=events is not None),
            quiet=quiet,
            events=events,
            notes=lambda: notes.read(store),
            viewer=cell,
        )
        on_station = None if station_of is None else station_of(places, live.announce)
        session: dict[str, Any] = {
            "spec": self.spec,
            "places": places,
            "trials": trials,
            "code": code,
            "retry_failed": retry_failed,
            "announce": live.announce,
        }
        if on_station is None or not on_station(self.spec.name, viewer=live.viewer, **session):
            run_session(name=self.spec.name, watch=live.watch, given=self._object, **session)
        live.finish(store)
        if cell is not None:
            cell.end(_last_lines(replay(store, self.spec.name), places))
        return Result(places, self.spec.name)


def run_session(**request: Any) -> None:
    """Launch a session and return when it has ended; arguments as those of Session."""
    from regrow.flows.launch import launch, settings_read_again
    from regrow.flows.session import Session

    try:
        launch(Session(**request))
    finally:
        settings_read_again()


def _last_lines(history: History, places: Places) -> Iterator[str]:
    """Yield how the session ended, and how to resume it from a notebook."""
    from regrow.show.live.text import ending

    yield from ending(history, places)
    if history.closed is not None and history.closed.status in ("interrupted", "stopped"):
        yield "or run this cell again"


def store_trainable(store: Store, trainable: object) -> str:
    """Pickle a trainable into the store and return its SHA-256, which names and verifies it."""
    from ray import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(trainable)  # type: ignore[no-untyped-call]  # ray's copy is untyped
    except Exception as error:
        hint = "write it in a file, as 'file.py:function'"
        raise UserError(f"the trainable cannot be sent to workers ({error}); {hint}") from error
    digest = hashlib.sha256(data).hexdigest()
    with suppress(Exists):
        store.create(f"code/{digest}", data)
    return digest


def script_folder() -> Path:
    """Return the folder of the user's script, from which it imports; in a notebook, the current."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else Path.cwd()
