"""Translates Optuna's pruners: the schedule, and how steps are counted. Nothing is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optuna import pruners

from regrow.integrations.optuna.private import options
from regrow.search.options import chosen
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

MOST = 1_000_000
"""A step that no trial reaches: of Optuna's pruners only Hyperband has a last step."""
_OURS = ("NopPruner", "SuccessiveHalvingPruner", "HyperbandPruner")
"""Pruners whose schedule decides before a trial reports on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunerSchedule:
    """A schedule of the specification. `first`: the step that counts as the first one; `max_steps`:
    the step at which a trial ends, None for none; `asked`: whether trials ask the pruner.
    """

    form: str | dict[str, Any]
    first: int = 0
    max_steps: int | None = None
    asks_pruner: bool = False


def schedule(pruner: pruners.BasePruner) -> PrunerSchedule:
    """Return the schedule that corresponds to a pruner. Raises UserError for an unsupported one."""
    name = type(pruner).__name__
    if type(pruner) is not getattr(pruners, name, None) or name not in _OURS:
        return PrunerSchedule(form="fifo", asks_pruner=True)
    if name == "NopPruner":
        return PrunerSchedule(form="fifo")
    given = {option: value for option, (_, value) in options(pruner).items()}
    if given["bootstrap_count"]:
        raise UserError(f"pruner: {name}(bootstrap_count=...) is not there; leave it out")
    factor = given["reduction_factor"]
    if name == "SuccessiveHalvingPruner":
        grace = (given["min_resource"] or 1) * factor ** given["min_early_stopping_rate"]
        form = {"asha": {"grace_period": grace, "reduction_factor": factor}}
        return PrunerSchedule(form=form, first=1, max_steps=MOST)
    most = given["max_resource"]
    if not isinstance(most, int):
        raise UserError(
            "pruner: HyperbandPruner has to know the last step: write max_resource=100, for 100"
            " steps"
        )
    halving = {"grace_period": given["min_resource"], "reduction_factor": factor}
    return PrunerSchedule(form={"async_hyperband": halving}, first=1, max_steps=most)


def keeps_schedule(spec: Spec, *, given: bool) -> bool:
    """Return whether an existing study keeps its schedule: one of a version in which ours stood for
    Optuna's median and percentile, and if no other pruner is `given`, any but "fifo". There the
    trials ask a pruner, which by default is Optuna's for the median, as there.
    """
    name = chosen(spec.schedule)
    return name in ("median", "percentile") or (not given and name != "fifo")


def stored_schedule(spec: Spec) -> PrunerSchedule:
    """Return the schedule of an existing study."""
    form: Any = spec.to_json()["schedule"]
    clock = spec.step_metric
    first = 0 if clock is None else clock.first
    return PrunerSchedule(form=form, first=first, max_steps=spec.max_steps)
