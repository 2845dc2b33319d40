"""Lets RLlib check the ends of a space, the environment and the networks before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from regrow.integrations.rllib.bundles import needed, resources
from regrow.integrations.rllib.metrics import PLACES, may_be
from regrow.integrations.rllib.reading import frugal
from regrow.integrations.rllib.runners import play, runner_of
from regrow.integrations.rllib.settings import configured, quiet, refusal, require
from regrow.integrations.rllib.users_code import KEY, called, configures, own_trace
from regrow.search.errors import SpecError
from regrow.search.needs import Bundle
from regrow.search.options import nearest
from regrow.search.space import Choice, Condition, Constant, Float, Int, Json, Parameter, Space
from regrow.search.spec import Spec
from regrow.tasks.attempt.trainable import as_a_script
from regrow.tasks.errors import UserCodeError
from regrow.tasks.output.traces import in_a_line, user_trace

ENDS = (1e-6, 1 - 1e-6)
"""Quantiles of a parameter's prior that are checked: near its least and its greatest value."""
NETWORKS = ("model", "model_config")
"""Parameters from which the networks are built."""
_MOST = 50
"""Maximum values of one choice that are checked."""
Make = Callable[[dict[str, Any]], Any]


def checked(spec: Spec, found: Any = None) -> Spec:
    """Return the specification with RLlib's needs as resources, if it has none; unchanged if it
    does not use RLlib.

    `found`: its imported trainable, None if `rllib` is used instead. Raises SpecError for what
    RLlib refuses, UserError if it is not installed, UserCodeError for an exception of the user's
    function.
    """
    if spec.rllib is None and not configures(found):
        return spec
    for key, name in _metrics(spec):
        if not may_be(name):
            near = nearest(name, [*PLACES])
            hint = f"{near}; or the place of a number in RLlib's result, with slashes"
            raise SpecError(key, name, "is no metric of a trial of RLlib's", hint)
    require()
    with quiet(logging.CRITICAL), as_a_script(spec.trainable, spec.working_dir):
        return spec.model_copy(update={"resources": resources(spec, _Check(spec, found).bundles())})


def _metrics(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the specification's key of each metric, and the metric's name."""
    for place, metric in enumerate(spec.metrics):
        yield "metric" if isinstance(spec.metric, str) else f"metric.{place}.name", metric.name


class _Check:
    """One check of a specification's configurations."""

    def __init__(self, spec: Spec, found: Any) -> None:
        self._spec = spec
        called_with: Make = partial(self._called, found)
        self._make = called_with if spec.rllib is None else self._configured
        self._tried: dict[str, Any] = {}

    def _configured(self, parameters: dict[str, Any]) -> Any:
        assert self._spec.rllib is not None
        folder, gpus = self._spec.working_dir, self._spec.resources.bundle.get("GPU", 0.0)
        return configured(self._spec.rllib, parameters, folder=folder, gpus=gpus)

    def _called(self, found: Any, parameters: dict[str, Any]) -> Any:
        try:
            return called(found, parameters, self._spec.trainable)
        except (SpecError, KeyboardInterrupt):
            raise
        except BaseException as error:
            problem = f"raised {in_a_line(error)} for {parameters}"
            refused = SpecError("trainable", self._spec.trainable, problem)
            raise UserCodeError(str(refused), user_trace(error)) from error

    def bundles(self) -> tuple[Bundle, ...]:
        """Return what a trial needs. Raises SpecError for the first error."""
        space = self._spec.space
        whole = [(end, self._refused(_at(space, end))) for end in ENDS]
        if all(error is not None for _, error in whole):
            raise self._culprit(self._refused, _at(space, ENDS[0]), whole[0][1])
        for parameter in space.parameters:
            for value in _ends(parameter):
                errors = [self._refused(_at(space, end, {parameter.name: value})) for end in ENDS]
                # Refused whatever else is chosen; an incompatible combination only fails the
                # trials that choose it.
                if all(errors):
                    raise refusal(f"space.{parameter.name}", value, errors[0])
        good = next(end for end, error in whole if error is None)
        if (error := self._not_built(_at(space, good))) is not None:
            raise self._culprit(self._not_built, _at(space, good), error)
        for parameter in space.parameters:
            if parameter.name.partition(".")[0] in NETWORKS:
                for value in _ends(parameter):
                    error = self._not_built(_at(space, good, {parameter.name: value}))
                    if error is not None:
                        raise refusal(f"space.{parameter.name}", value, error)
        self._evaluates()
        found = [needed(made) for made in self._tried.values()]
        if any(bundles != found[0] for bundles in found):
            names = [one.name for one in self._spec.space.parameters if _ends(one)]
            problem = "RLlib needs more resources for some of their values than for others"
            hint = "give each setting that says how many processes there are one value"
            raise SpecError("space", names, problem, hint)
        return found[0]

    def _evaluates(self) -> None:
        """Raise SpecError for a metric of an evaluation if nothing is evaluated."""
        if any(made.evaluation_interval for made in self._tried.values()):
            return
        for key, name in _metrics(self._spec):
            if name.partition("/")[0] in ("evaluation", "evaluation_return", "evaluation_length"):
                hint = "write space: {evaluation_interval: 1}, or take 'return'"
                problem = "is never there: RLlib evaluates nothing by itself"
                raise SpecError(key, name, problem, hint)

    def _made(self, config: Mapping[str, Json]) -> Any:
        return frugal(self._make(self._spec.space.nest(config)))

    def _refused(self, config: Mapping[str, Json]) -> Exception | None:
        """Return RLlib's refusal of a configuration (flat); None if it accepts it."""
        made = self._made(config)
        try:
            made.validate()
        except Exception as error:  # noqa: BLE001 - RLlib raises ValueError and many others
            return error
        self._tried[str(sorted(config.items(), key=str))] = made
        return None

    def _not_built(self, config: Mapping[str, Json]) -> Exception | None:
        """Return why environment or networks cannot be made or used; None if they can."""
        made = self._made(config).env_runners(num_env_runners=0)
        made.learners(num_learners=0, num_gpus_per_learner=0)
        try:
            with runner_of(made) as runner:
                made.build_learner(spaces=runner.get_spaces())
                play(runner, 1)
        except Exception as error:  # noqa: BLE001 - RLlib and environments may raise anything
            return error
        return None

    def _culprit(
        self,
        wrong: Callable[[Mapping[str, Json]], Exception | None],
        config: Mapping[str, Json],
        error: Exception | None,
    ) -> SpecError:
        """Return the error for the one parameter that is wrong without the others; for the whole
        space if there is none.

        Raises UserCodeError for an exception of the user's environment.
        """
        part = self._spec.rllib
        if part is None:
            path = self._spec.trainable
            return self._theirs(refusal("trainable", path, error), error, path)
        with suppress(SpecError):
            settings = {n: v for n, v in config.items() if n.partition(".")[0] == "env_config"}
            if (bare := wrong(settings)) is not None:
                if wrong != self._not_built:
                    return refusal("rllib.algorithm", part.algorithm, bare)
                return self._theirs(refusal(KEY, part.env, bare), bare, part.env)
            for name, value in config.items():
                if (alone := wrong({**settings, name: value})) is not None:
                    return refusal(f"space.{name}", value, alone)
        return refusal("space", self._spec.space.to_json(), error)

    def _theirs(self, refused: SpecError, error: Exception | None, path: str) -> SpecError:
        """Return the error. Raises UserCodeError with a traceback if the user's code raised it."""
        if (trace := own_trace(error, path, self._spec.working_dir)) is not None:
            raise UserCodeError(str(refused), trace) from error
        return refused


def _at(space: Space, end: float, fixed: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """Return the flat configuration at one end of all priors, with what is `fixed` active."""
    by_name = {parameter.name: parameter for parameter in space.parameters}
    wanted: dict[str, Json] = dict(fixed or {})
    for name in list(wanted):
        for condition in _conditions(by_name, by_name[name]):
            wanted.setdefault(condition.parameter, condition.values[0])
    config: dict[str, Json] = {}
    for parameter in space.flat:
        if parameter.active(config):
            name = parameter.name
            config[name] = wanted[name] if name in wanted else parameter.domain.quantile(end)
    return config


def _conditions(by_name: Mapping[str, Parameter], parameter: Parameter) -> Iterator[Condition]:
    """Yield all conditions of a parameter, also indirect ones."""
    for condition in parameter.when:
        yield condition
        yield from _conditions(by_name, by_name[condition.parameter])


def _ends(parameter: Parameter) -> list[Json]:
    """Return the values of a parameter that are checked."""
    domain = parameter.domain
    if isinstance(domain, Constant):
        return []
    if isinstance(domain, Choice):
        return list(domain.values[:_MOST])
    if isinstance(domain, Float | Int):
        return [domain.low, domain.high]
    return [domain.quantile(end) for end in ENDS]
