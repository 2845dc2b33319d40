"""Translates the resources of a Ray Tune trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from regrow.integrations.tune.private import asked_for
from regrow.search.errors import SpecError


def resources(
    trainable: Any, config: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the `resources` of a specification: the first bundle is the trial's; the others, which
    must be equal, are for its tasks and actors.

    `config`: passed to a class, or a function of a configuration, that computes its resources.
    Raises SpecError.
    """
    requested = asked_for(trainable)
    if requested is None and hasattr(trainable, "default_resource_request"):
        requested = _answer(trainable.default_resource_request, config, "default_resource_request")
    if callable(requested) and not hasattr(requested, "bundles"):
        requested = _answer(requested, config, "its function", f" for {dict(config)}")
        say(f"with_resources: every trial has what its function gives for {dict(config)}")
    if requested is None:
        return {}
    first, *others = requested.bundles if hasattr(requested, "bundles") else [requested]
    found = _bundle(first)
    if others:
        if any(one != others[0] for one in others):
            raise _wrong(f"the bundles {others} differ")
        found["children"] = {**_bundle(others[0]), "count": len(others)}
    return found


def bundle(given: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources of a trial by Ray's names, from those of a specification."""
    found = {"CPU": given.get("cpu", 1.0), "GPU": given.get("gpu", 0.0)} | given.get("custom", {})
    return {name: float(amount) for name, amount in found.items() if amount}


def _answer(
    ask: Callable[[dict[str, Any]], Any], config: Mapping[str, Any], who: str, about: str = ""
) -> Any:
    try:
        return ask(dict(config))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        raise _wrong(f"{who} raised {error!r}{about}") from None


def _bundle(given: Mapping[str, float]) -> dict[str, Any]:
    amounts = {
        name.lower() if name in ("CPU", "GPU") else name: amount
        for name, amount in given.items()
        if amount
    }
    known = {name: float(amounts.pop(name, 0)) for name in ("cpu", "gpu")}
    if memory := amounts.pop("memory", 0):
        known["memory"] = int(memory)
    return {**known, **({"custom": amounts} if amounts else {})}


def _wrong(problem: str) -> SpecError:
    hint = "give one map, such as {'cpu': 2}"
    return SpecError("with_resources", "resources", f"cannot be taken over: {problem}", hint)
