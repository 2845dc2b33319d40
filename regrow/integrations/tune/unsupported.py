"""Detects unsupported features of Ray Tune in a script's source before it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from regrow.tasks.errors import UserError

_REPLAY = "write schedule: {pbt_replay: ...} in a file of ours"
_TRAINER = "Ray Train's trainers are no trials here; give the training function"
NAMES = {
    "ray.tune.run_experiments": "give each Experiment to a Tuner of its own",
    "ray.tune.Experiment": "give its arguments to a Tuner",
    "ray.tune.schedulers.PopulationBasedTrainingReplay": _REPLAY,
    "ray.tune.schedulers.pbt.PopulationBasedTrainingReplay": _REPLAY,
    "ray.train.torch.TorchTrainer": (
        "trials of several workers are written with regrow's own `resources: {workers: N}`"
    ),
    "ray.train.tensorflow.TensorflowTrainer": _TRAINER,
    "ray.train.xgboost.XGBoostTrainer": _TRAINER,
    "ray.train.lightgbm.LightGBMTrainer": _TRAINER,
    "ray.train.huggingface.TransformersTrainer": _TRAINER,
    "ray.train.lightning.LightningTrainer": _TRAINER,
}
"""Unsupported names in full, with what to do instead."""


def refuse(name: str) -> None:
    """Raise UserError for an unsupported name in full."""
    if name in NAMES:
        raise UserError(f"{name.rpartition('.')[2]} is not supported; {NAMES[name]}")


def unsupported_calls(script: Path) -> list[str]:
    """Return a line for each use of an unsupported name. UserError for what is not Python, and for
    a file that cannot be read.
    """
    try:
        tree = ast.parse(script.read_bytes(), str(script))
    except OSError as error:
        raise UserError(f"{script} cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"{script}, line {getattr(error, 'lineno', None) or '?'}: {error}"
        ) from None
    found = dict.fromkeys((line, name) for name, line in _used(tree) if name in NAMES)
    return [
        f"{script}, line {line}: {name.rpartition('.')[2]} is not supported; {NAMES[name]}"
        for line, name in sorted(found)
    ]


def _used(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield full names of what a module imports and uses of its imports, with their lines."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                known[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}", node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            if first in known:
                yield f"{known[first]}.{rest}", node.lineno
