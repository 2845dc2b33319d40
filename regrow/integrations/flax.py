"""Flax (nnx) with Orbax: `state = State(model=model, optimizer=optimizer)`, then `trial.report(...,
checkpoint=state.save)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regrow.integrations.installed import need

need("flax", "flax", "orbax")

from flax import nnx  # noqa: E402 - after the check that it is installed
from orbax import checkpoint as orbax  # noqa: E402 - after the check that it is installed

from regrow.tasks.errors import UserError  # noqa: E402 - after the check of the packages

_FOLDER = "state"


class State:
    """Parts of a training by names of the user's: nnx modules, optimizers, metrics, `nnx.Rngs`."""

    def __init__(self, **parts: Any) -> None:
        if not parts:
            raise UserError(
                "regrow.integrations.flax.State: name what to save, such as State(model=model,"
                " optimizer=optimizer)"
            )
        for name, part in parts.items():
            if not nnx.graph.is_graph_node(part):
                kind = f"a {type(part).__name__}, not an object of nnx; save it beside, with Orbax"
                raise UserError(f"regrow.integrations.flax.State: {name!r} is {kind}")
        self._parts = parts

    def save(self, folder: Path) -> None:
        """Write the parts in Orbax's format: `trial.report(..., checkpoint=state.save)`."""
        # The checkpointer's exit waits until everything is written.
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder.absolute() / _FOLDER, nnx.state(self._parts))

    def load(self, folder: Path) -> None:
        """Restore the parts, if `trial.restored`. Raises ValueError if the parts differ."""
        with orbax.StandardCheckpointer() as checkpointer:
            nnx.update(
                self._parts,
                checkpointer.restore(folder.absolute() / _FOLDER, nnx.state(self._parts)),
            )
