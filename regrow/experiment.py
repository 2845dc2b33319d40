"""Experiments from Python: the same specification, the same sitting, and its Result."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from regrow.infra.places import Places
from regrow.result import Result
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Exists, Store
from regrow.tasks.trial import Trial


class Experiment:
    """A trainable and the specification around it.

    `trainable` is a function of a Trial, a class with setup and step, or text such as "file.py:function"; functions and
    classes are pickled by value into the experiment's state. The other arguments are the keys of the YAML form.
    Raises SpecError for what is wrong with them.
    """

    def __init__(
        self, trainable: Callable[[Trial], object] | type | str, *, space: Mapping[str, Any], metric: str, mode: str,
        name: str | None = None, **options: Any,
    ) -> None:
        self._object = None if isinstance(trainable, str) else trainable
        path = trainable if isinstance(trainable, str) else "pickled"
        chosen = name or getattr(trainable, "__name__", "experiment").replace("<lambda>", "experiment")
        given = {"name": chosen, "trainable": path, "space": dict(space), "metric": metric, "mode": mode, **options}
        given.setdefault("working_dir", str(_folder()))
        self.spec = Spec.parse(given)

    def run(self, *, trials: int | None = None, quiet: bool = False) -> Result:
        """Runs the experiment, or goes on with it if its state root has it; returns when the sitting has ended.

        `trials`: a new total, None: as specified. Raises UserError for an environment in which it cannot run.
        """
        from rich.console import Console

        from regrow.cli.live import Live
        from regrow.launch import launch

        places = Places.at(self.spec.state).writable()
        code = None if self._object is None else _store(places.store(self.spec.name), self._object)
        live = Live(Console(highlight=False), quiet=quiet)
        launch(
            self.spec.name, spec=self.spec, places=places, trials=trials, code=code, watch=live.watch, announce=live.announce
        )
        return Result(places, self.spec.name)


def _store(store: Store, trainable: object) -> str:
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


def _folder() -> Path:
    """The folder of the user's script, from which its own modules are imported; the current one in a notebook."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else Path.cwd()
