"""W&B's package in a trial: it works as usual, and what is logged and saved with it is also
reported and kept here.

Each attempt is a separate W&B run, in a group with the experiment's name.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from regrow.integrations.wandb.config import Config
from regrow.integrations.wandb.run import Run, swept

_STANDIN = Path(__file__).resolve().parent / "standin"


def make_way() -> None:
    """Replace our `wandb` by W&B's, here and in children. Raises ModuleNotFoundError without it."""
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != _STANDIN]
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        place for place in places if place and Path(place).resolve() != _STANDIN
    )
    del sys.modules["wandb"]
    try:
        real = importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        hint = "pip install wandb, or leave REGROW_WANDB=real out"
        raise ModuleNotFoundError(
            f"No module named 'wandb', W&B's own; {hint}", name="wandb"
        ) from None
    patch(real)


def patch(real: Any) -> None:
    """Patch W&B's run: logs, saves and ends go to ours first; restores use what was saved here."""
    ours: list[Run] = []
    """The run of this trial, once there is one."""
    theirs, begin = real.Run, real.init
    restore, restore_before = theirs.restore, real.restore

    @functools.wraps(begin)
    def init(*args: Any, **given: Any) -> Any:
        if not ours:
            ours.append(Run(Config(swept()), {"resume": given.get("resume")}))
            atexit.register(ours[0].finish)
        given.pop("resume", None)  # each attempt is a separate W&B run
        attempt = os.environ.get("REGROW_ATTEMPT", "1")
        name = ours[0].id if attempt == "1" else f"{ours[0].id}, attempt {attempt}"
        run = begin(*args, **{"group": ours[0].project, "name": name, **given})
        if ours[0].over:  # W&B has ended the previous run, too
            ours[0].begin_again(given)
        run.config.update(swept(), allow_val_change=True)
        return run

    def restored(run: Any, name: str, *args: Any, **more: Any) -> Any:
        with suppress(ValueError):
            return ours[0].restore(name, root=run.dir)
        return restore(run, name, *args, **more)

    def both(name: str) -> Callable[..., Any]:
        method = getattr(theirs, name)

        @functools.wraps(method)
        def called(run: Any, *args: Any, **more: Any) -> Any:
            if ours:
                getattr(ours[0], name)(*args, **more)
            return method(run, *args, **more)

        return called

    real.init = init
    theirs.log, theirs.save, theirs.finish = both("log"), both("save"), both("finish")
    theirs.restore = restored
    # Before `init`, W&B's own, which takes the path of a run.
    real.restore = lambda name, *args, **more: (
        restored(real.run, name, *args, **more)
        if real.run is not None and ours
        else restore_before(name, *args, **more)
    )
    theirs.resumed = property(lambda _run: bool(ours) and ours[0].resumed)
