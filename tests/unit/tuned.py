"""Ray Tune's experiments in this process: a coordinator without Ray, attempts run one by one, and
the results as a script gets them. No test lives here.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ray import cloudpickle, tune

import regrow as rg
from regrow.infra.state.places import Places
from regrow.integrations.tune.results import ResultGrid
from regrow.integrations.tune.translation import Translation, TuneArguments, translated
from regrow.search.spec import Spec
from tests.unit.attempting import run as run_attempt
from tests.unit.office import offices


def translate(
    trainable: Any, space: dict[str, Any] | None = None, *, run: Any = None, **config: Any
) -> Translation:
    """What a Tuner with these arguments becomes."""
    settings = {"metric": "score", "mode": "max", **config}
    return translated(
        TuneArguments(
            trainable=trainable,
            param_space=space or {},
            tune=tune.TuneConfig(**settings),
            run=run or tune.RunConfig(name="tuned"),
        ),
        "script",
    )


class Tuned:
    """Runs experiments. `found`: the last one's translation; `log`: its result."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self._patch = root, monkeypatch
        self.root = str(root)
        self.found: Translation
        self.log: rg.Result

    def __call__(
        self,
        trainable: Any,
        space: dict[str, Any] | None = None,
        *,
        killed: bool = False,
        **how: Any,
    ) -> ResultGrid:
        """`killed`: each trial is in a session of its own, before which the driver was killed."""
        found = translate(trainable, space, **how)
        runs = replace(found.trainable, root=self.root)
        self.found = found = replace(found, trainable=runs)
        module = ModuleType("tuned_trainable")
        module.__spec__ = ModuleSpec("tuned_trainable", None)
        module.__dict__["train"] = found.trainable
        self._patch.setitem(sys.modules, "tuned_trainable", module)
        options = {"trainable": "tuned_trainable:train", "schedule": "fifo", **found.options}
        spec = Spec.parse(options).to_json()
        places = Places.at(str(self._root))
        with offices() as make:
            pickled = cloudpickle.dumps(found.trainable)  # type: ignore[no-untyped-call]  # of Ray
            office = make(
                store=places.store(spec["name"]),
                given=lambda: cloudpickle.loads(pickled),
                **{"max_steps": None, **spec},
            )
            while submit := office.instructions().submit:
                for assignment in submit:
                    run_attempt(office, assignment, store=office.store)
                    if killed:
                        office.open(f"driver-{assignment.trial}-{assignment.attempt}")
        self.log = rg.open(spec["name"], places.root)
        return ResultGrid(self.log, found)


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuned:
    """Runs Ray Tune's experiments below a folder of the test's own."""
    return Tuned(tmp_path / "state", monkeypatch)
