"""Replays a schedule of configurations, found by population based training, with one trial.

Jaderberg et al., 2017, arXiv:1711.09846; Ray Tune's PopulationBasedTrainingReplay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.schedulers.base import Candidate, Scheduler, Verdict
from regrow.search.space.domains import Json
from regrow.search.space.setting import Setting


class PbtReplay(Scheduler):
    """At each step of `policy` a trial continues from its own checkpoint with that configuration.

    `policy`: [[step, {parameter: value}], ...] with rising steps; parameters (by dotted name) that
    are not named keep their values. The first configuration is the trial's own, so the first one of
    the schedule must be proposed as the trial. Raises SpecError for a policy of another form, or a
    parameter or value that the space doesn't have.
    """

    needs_max_steps = False
    changes_configurations = True

    def __init__(self, setting: Setting, *, policy: list[Any] | None = None) -> None:
        super().__init__(setting)
        if setting.trials not in (None, 1):
            problem = "is not 1, and a schedule is followed by one trial"
            raise SpecError("trials", setting.trials, problem, "write trials: 1")
        self._policy = dict(_steps(policy, setting))
        self._configs: dict[int, dict[str, Json]] = {}

    def added(self, candidate: Candidate) -> None:
        """Store the configuration with which the trial starts."""
        self._configs[candidate.trial] = dict(candidate.config)

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Store the configuration with which the trial continues."""
        if verdict.config is not None:
            self._configs[trial] = dict(verdict.config)

    def first(self, trial: int, after: int) -> int | None:
        """Return the next step of the policy."""
        return next((step for step in self._policy if step > after), None)

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Restart the trial with the configuration of this step."""
        step = len(values)
        config = {**self._configs[trial], **self._policy[step]}
        return Verdict(action="restart", why=f"the policy changes at step {step}", config=config)


def _steps(policy: Any, setting: Setting) -> list[tuple[int, dict[str, Json]]]:
    key = "policy"
    hint = "write policy: [[10, {lr: 0.1}], [20, {lr: 0.01}]]"
    if not isinstance(policy, (list, tuple)) or not policy:
        problem = "is missing" if policy is None else "is not a list of [step, configuration]"
        raise SpecError(key, policy, problem, hint)
    found: list[tuple[int, dict[str, Json]]] = []
    domains = {p.name: p.domain for p in setting.space.flat}
    for entry in policy:
        if (
            not isinstance(entry, (list, tuple))
            or len(entry) != 2
            or not isinstance(entry[1], Mapping)
        ):
            raise SpecError(key, entry, "is not [step, configuration]", hint)
        step, config = entry
        if (
            isinstance(step, bool)
            or not isinstance(step, int)
            or step <= (found[-1][0] if found else 0)
        ):
            raise SpecError(key, step, "is not a step after the one before", hint)
        if setting.max_steps is not None and step >= setting.max_steps:
            raise SpecError(
                key, step, f"is not below max_steps ({setting.max_steps})", "leave it out"
            )
        for name, value in config.items():
            if name not in domains:
                raise SpecError(
                    f"{key}.{name}", value, "is not a parameter", nearest(name, domains)
                )
            if not domains[name].contains(value):
                problem, form = "is not a value of the parameter", f"{domains[name].to_json()}"
                raise SpecError(f"{key}.{name}", value, problem, form)
        found.append((step, {name: domains[name].own(value) for name, value in config.items()}))
    return found
