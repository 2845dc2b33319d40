"""Experiments from Python: the same specification, the same session, and its Result."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regrow.infra.log.reading import replay
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.result import Result
from regrow.search.history import History
from regrow.search.spec import COMMAND, Spec
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Exists, Store
from regrow.tasks.trial import Trial


class Experiment:
    """A trainable and the specification around it.

    `trainable` is a function of a Trial, a class with setup and step, or text such as "file.py:function"; functions and
    classes are pickled by value into the experiment's state. None: `command=[...]` is given in its place. `mode` None: each of
    several metrics has its own, `[{"name": "loss", "mode": "min"}, ...]`. The other arguments are the keys of the YAML form.
    Raises SpecError for what is wrong with them.
    """

    def __init__(
        self, trainable: Callable[[Trial], object] | type | str | None = None, *, space: Mapping[str, Any],
        metric: str | Sequence[Mapping[str, str]], mode: str | None = None, name: str | None = None, **options: Any,
    ) -> None:
        self._object = None if isinstance(trainable, str) else trainable
        path = trainable if isinstance(trainable, str) else COMMAND if trainable is None else "pickled"
        chosen = name or getattr(trainable, "__name__", "experiment").replace("<lambda>", "experiment")
        given = {"name": chosen, "trainable": path, "space": dict(space), "metric": metric, "mode": mode, **options}
        given.setdefault("working_dir", str(script_folder()))
        self.spec = Spec.parse(given)

    def run(self, *, trials: int | None = None, quiet: bool = False, retry_failed: bool = False) -> Result:
        """Runs the experiment, or goes on with it if its state root has it; returns when the session has ended.

        `trials`: a new total, None: as specified. `retry_failed`: trials that have failed by now are tried again, from their
        last checkpoints; without any it changes nothing. In a notebook one table in the cell shows how it stands, and
        interrupting the kernel is Ctrl-C: running attempts save a checkpoint, and running the cell again goes on.
        Raises UserError for an environment in which it cannot run.
        """
        from regrow.launch import launch, settings_read_again
        from regrow.live import Live
        from regrow.live.output import Terminal
        from regrow.notebook import NotebookViewer, in_notebook

        places = Places.at(self.spec.state).writable()
        code = None if self._object is None else store_trainable(places.store(self.spec.name), self._object)
        cell = NotebookViewer(quiet=quiet) if in_notebook() else None
        store = places.store(self.spec.name)
        live = Live(Terminal(highlight=False), quiet=quiet, notes=lambda: notes.read(store), viewer=cell)
        try:
            launch(
                self.spec.name, spec=self.spec, places=places, trials=trials, code=code, retry_failed=retry_failed,
                watch=live.watch, announce=live.announce, given=self._object,
            )
        finally:
            settings_read_again()
        if cell is not None:
            live.finish(store)
            cell.end(_last_lines(replay(store, self.spec.name), places))
        return Result(places, self.spec.name)


def _last_lines(history: History, places: Places) -> Iterator[str]:
    """How it ended, and how to go on from a notebook."""
    from regrow.live.text import ending

    yield from ending(history, places)
    if history.closed is not None and history.closed.status in ("interrupted", "stopped"):
        yield "or run this cell again"


def store_trainable(store: Store, trainable: object) -> str:
    """Pickles a trainable into the store; returns its SHA-256, under which it is found and by which it is verified."""
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
    """The folder of the user's script, from which its own modules are imported; the current one in a notebook."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else Path.cwd()
