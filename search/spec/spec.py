"""The specification of an experiment: one frozen, validated form, from YAML and from Python alike.

Its keys are in `search/spec/keys.py`, the wording of errors in `search/spec/errors.py`; files are
read in `infra/state/spec_file.py`.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from regrow.search import samplers, schedulers
from regrow.search.errors import SpecError
from regrow.search.options import AUTO
from regrow.search.space.scalars import check_depth, plain
from regrow.search.spec import parts
from regrow.search.spec.checks import check
from regrow.search.spec.errors import explain
from regrow.search.spec.foreign import check_keys
from regrow.search.spec.keys import Keys, RegisterField, is_recorded
from regrow.search.spec.rllib import RLlib
from regrow.search.spec.schema import complete
from regrow.search.spec.station import Notify, Serve, When


class Spec(Keys):
    """An experiment. Raises SpecError (through `parse`) naming key, value and what to do."""

    model_config = ConfigDict(
        defer_build=False,
        json_schema_extra={
            "oneOf": [{"required": [one]} for one in ("trainable", "command", "rllib")]
        },
    )

    register: RegisterField = None
    # again: a class that inherits it would have for a default what ABCMeta has of that name

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        check(self, recorded=is_recorded(info))
        # the model is frozen, and this validator must return the same object
        if not is_recorded(info):
            object.__setattr__(
                self,
                "points",
                tuple(point.within(self.space, n) for n, point in enumerate(self.points)),
            )
        return self

    def check_imports(self) -> None:
        """Make the user's sampler and scheduler, which reading a log does not. Raises SpecError."""
        whole = self.resolved
        samplers.check_installed(whole.search)
        samplers.make(whole.search, self.setting)
        schedulers.make(whole.schedule, self.setting)

    @classmethod
    def parse(cls, data: dict[str, Any], *, where: str = "") -> Spec:
        """Return a specification from plain data of the file `where`. Raises SpecError."""
        return cls._made(data, where, recorded=False)

    @classmethod
    def recorded(cls, data: dict[str, Any], *, where: str = "") -> Spec:
        """Return a specification from a log, which may predate some of the checks in `parse`. One
        that this process knows already is the same object. Raises SpecError.
        """
        text = msgspec.json.encode(data)
        return _known.get(text) or _remember(text, cls._made(data, where, recorded=True))

    def record(self) -> dict[str, Any]:
        """Return what a log keeps of the specification, from which `recorded` returns it."""
        data = self.model_dump(mode="json")
        _remember(msgspec.json.encode(data), self)
        return data

    @classmethod
    def _made(cls, data: dict[str, Any], where: str, *, recorded: bool) -> Spec:
        try:
            if not recorded:
                check_depth(data)
                data = plain(data)
                check_keys(data, cls.model_fields)
                if data.get("search", AUTO) != AUTO:
                    data = {"schedule": schedulers.DEFAULT, **data}
            else:
                data = {**_BEFORE_AUTO, **data}
            return cls.model_validate(data, context={"recorded": recorded})
        except SpecError as error:
            raise error.at(where) from None
        except ValidationError as error:
            raise explain(error, data, cls, _PARTS).at(where) from None

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the published schema, with the forms of a space and all options."""
        return complete(super().model_json_schema(*args, **options))


_known: dict[bytes, Spec] = {}
"""Specifications by what logs keep of them: a process folds its log several times."""
_MOST_KNOWN = 8


def _remember(text: bytes, spec: Spec) -> Spec:
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[text] = spec
    return spec


_BEFORE_AUTO = {"search": "tpe", "schedule": schedulers.DEFAULT}
"""Values for a log that names none, of a version that left out these defaults."""
_PARTS: dict[str, type[BaseModel]] = {
    "metric": parts.Metric,
    "resources": parts.Resources,
    "resources.children": parts.Children,
    "retries": parts.Retries,
    "market": parts.Market,
    "checkpoint": parts.Checkpointing,
    "budget": parts.Training,
    "stop": parts.Stop,
    "mlflow": parts.Recording,
    "report": parts.Reports,
    "notify": Notify,
    "when": When,
    "rllib": RLlib,
    "step_metric": parts.StepCount,
    "serve": Serve,
}
