"""Resources that an RLlib trial needs: its process, and the actors that RLlib starts from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regrow.integrations.rllib import reading
from regrow.search.errors import SpecError
from regrow.search.needs import Bundle
from regrow.search.spec import Spec
from regrow.search.spec.parts import Children, Resources

_OURS = {"CPU": "cpu", "GPU": "gpu", "memory": "memory"}


def needed(config: Any) -> tuple[Bundle, ...]:
    """Return what RLlib needs for a configuration, by Ray's names: its process, then each actor."""
    bundles = config.algo_class.default_resource_request(config.copy(copy_frozen=False)).bundles
    found = [
        {name: float(amount) for name, amount in bundle.items() if amount} for bundle in bundles
    ]
    if config.is_offline:
        found.append({"CPU": reading.cpus(config)})
    return tuple(found)


def resources(spec: Spec, bundles: Sequence[Bundle]) -> Resources:
    """Return the specification's resources with RLlib's needs. Raises SpecError for too few."""
    main, actors = bundles[0], [bundle for bundle in bundles[1:] if bundle]
    given = spec.resources
    if "resources" not in spec.model_fields_set:
        given = Resources(**_written(main))
    if given.children is not None:
        _check_room(given.children, actors)
        return given
    if not actors:
        return given
    if any(bundle != actors[0] for bundle in actors):
        amounts = (
            ", ".join(f"{amount:g} {name}" for name, amount in bundle.items()) for bundle in actors
        )
        listed = "; ".join(sorted({*amounts}))
        problem = (
            f"RLlib's processes need different amounts ({listed}), and all children have the same"
        )
        hint = (
            "with rllib: {learners: 0} a trial learns in its own process; or write children: {cpu:"
            " ..., gpu: ..., count: ...}"
        )
        raise SpecError("resources.children", None, problem, hint)
    children = Children(**_written(actors[0]), count=len(actors))
    return Resources.model_validate({**given.model_dump(), "children": children})


def _written(bundle: Bundle) -> dict[str, Any]:
    """Convert a bundle to the names of a specification."""
    own: dict[str, Any] = {"cpu": 0.0}
    own |= {_OURS[name]: amount for name, amount in bundle.items() if name in _OURS}
    custom = {name: amount for name, amount in bundle.items() if name not in _OURS}
    return own | ({"custom": custom} if custom else {})


def _check_room(children: Children, actors: Sequence[Bundle]) -> None:
    """Raise SpecError unless the actors fit into the bundles of the trial's children."""
    left: list[dict[str, float]] = [dict(children.bundle) for _ in range(children.count)]
    for actor in actors:
        free = next((bundle for bundle in left if _has(bundle, actor)), None)
        if free is None:
            value = children.model_dump(mode="json", exclude_defaults=True)
            problem = (
                f"is too little: RLlib starts processes that need {len(actors)} times this or other"
                " amounts, and would wait"
            )
            raise SpecError(
                "resources.children", value, problem, "leave children out: RLlib says what it needs"
            )
        for name, amount in actor.items():
            free[name] -= amount


def _has(bundle: Mapping[str, float], actor: Mapping[str, float]) -> bool:
    return all(bundle.get(name, 0.0) >= amount - 1e-9 for name, amount in actor.items())
