"""Translates keys and names of other tools' files into ours. Shown in errors, with the user's own
values.

Nothing is translated silently: a term may differ in more than its name (for example whether trials
are added on a resume, or what a rung waits for).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from regrow.search import samplers, schedulers
from regrow.search.errors import SpecError
from regrow.search.space.foreign import flow, meant, meant_by_text
from regrow.search.space.scalars import check_letters

_SHOWN = 300  # characters of a translated value: a space may have hundreds of parameters

_MODES = {
    word: word[:3]
    for word in ("min", "max", "minimize", "minimise", "minimum", "maximize", "maximise", "maximum")
}


def algorithm(key: str, name: object) -> str | None:
    """Return our name of a sampler or scheduler under `key`, None for an unknown name."""
    registries = (samplers.REGISTRY, schedulers.REGISTRY)
    return next((one.named(name) for one in registries if one.key == key), None)


def as_mode(word: object) -> str | None:
    """Return `min` or `max` for a word that means it, else None."""
    return _MODES.get(str(word).lower())


def check_keys(data: Mapping[Any, Any], own: Collection[str]) -> None:
    """Raise SpecError for errors that concern a specification's keys as a whole, before each key is
    checked.

    These are keys of other tools (all of them in one message), parameters beside an empty `space:`,
    other tools' forms of a metric, a sampler or a scheduler, and text that cannot be stored. `own`:
    the keys that a specification has.
    """
    check_letters("", data)
    wrong = _foreign(data, own) or _beside(data, own)
    wrong = wrong or named("search", data.get("search")) or named("schedule", data.get("schedule"))
    if wrong is None and (metric := _metric(_map(data.get("metric")))):
        wrong = SpecError("metric", data["metric"], "is a map", f"write {metric}")
    if wrong is not None:
        raise wrong


def _beside(data: Mapping[Any, Any], own: Collection[str]) -> SpecError | None:
    """Return the error for parameters that are not indented below `space:`, else None."""
    stray = [key for key in data if key not in own]
    if "space" not in data or data["space"] is not None or not stray:
        return None
    what = f"{', '.join(map(str, stray))} {'stands' if len(stray) == 1 else 'stand'} beside it"
    hint = "indent what belongs to it by two spaces"
    return SpecError("space", None, f"is empty: {what} instead of below", hint)


def _foreign(data: Mapping[Any, Any], own: Collection[str]) -> SpecError | None:
    found = [
        (key, *answer)
        for key, value in data.items()
        if key not in own and (answer := _answer(key, value)) is not None
    ]
    if not found:
        return None
    if metric := _metric(_map(data.get("metric"))):
        found.append(("metric", found[0][1], metric))
    first, tool, text = found[0]
    rest = "".join(f"; `{key}`: {text}" for key, _, text in found[1:])
    more = ""
    if rest and tool in _PAGES:
        more = f"; the documentation has both side by side, under Coming from {tool}"
    return SpecError(first, data[first], f"is a key of {tool}", f"here it is {text}{rest}{more}")


def named(key: str, choice: Any) -> SpecError | None:
    """Return the error for an algorithm named among its options, `{name: asha, ...}`; else None."""
    if not isinstance(choice, Mapping):
        return None
    word = next((n for n in ("name", "type", "_target_") if isinstance(choice.get(n), str)), None)
    if word is None:
        return None
    name = algorithm(key, choice[word]) or choice[word]
    options = {n: v for n, v in choice.items() if n != word}
    hint = f"write {key}: {flow({name: options} if options else name)}"
    return SpecError(key, dict(choice), "has its name among its options", hint)


def _answer(key: object, value: Any) -> tuple[str, str] | None:
    """Return the tool that has the key, and what to write instead; None for an unknown key."""
    if not isinstance(key, str) or key not in _KEYS:
        return None
    tool, say = _KEYS[key]
    return tool, say.format(_short(value)) if isinstance(say, str) else say(value)


def _short(value: Any) -> str:
    text = flow(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _map(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _named(key: str) -> Callable[[Any], str]:
    """Return a function that names our sampler or scheduler for a value."""

    def say(value: Any) -> str:
        word = value
        if isinstance(value, Mapping):
            word = next((value[n] for n in _NAMING if n in value), None)
        name = str(word).partition("(")[0]
        return f"`{key}: {algorithm(key, name) or (name if name.islower() else 'NAME')}`"

    return say


def _mode(value: Any) -> str:
    return f"`mode: {as_mode(value) or value}`"


def _metric(value: Mapping[Any, Any]) -> str | None:
    if "name" not in value:
        return None
    direction = value.get("goal", value.get("mode", value.get("direction")))
    mode = f"`mode: {as_mode(direction) or direction or 'min'}`{'' if direction else ' (or max)'}"
    return f"`metric: {_short(value['name'])}` and {mode}"


def _hours(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"`stop: {{hours: {f'{value / 3600:.4g}' if number else '...'}}}`"


def _space(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "`space:`, a map of parameters"
    return f"`space: {_short({name: _translated(one) for name, one in value.items()})}`"


def _translated(value: Any) -> Any:
    """Return another tool's parameter, or group, in our form as far as its terms are known."""
    if isinstance(value, str):
        return meant_by_text(value) or value
    if not isinstance(value, Mapping):
        return value
    form = meant(value)
    if form is not None:
        return form.get("constant", form)
    if [*value] == ["parameters"]:  # W&B's nested parameters
        return _translated(value["parameters"])
    return {name: _translated(one) for name, one in value.items()}


def _resources(value: Any) -> str:
    lower = {str(k): str(k).lower() for k in _map(value)}
    ours = {lower[k] if lower[k] in ("cpu", "gpu") else k: value[k] for k in lower}
    return f"`resources: {_short(ours or {'cpu': 1})}`"


def _early(value: Any) -> str:
    given = {"min_iter": 1, "eta": 3, **_map(value)}
    asha = f"{{grace_period: {given['min_iter']}, reduction_factor: {given['eta']}}}"
    steps = f"and `max_steps: {given['max_iter']}`" if "max_iter" in given else "with `max_steps:`"
    return f"`schedule: {{asha: {asha}}}` {steps}"


def _jobs(value: Any) -> str:
    some = isinstance(value, int) and value > 0
    return f"`concurrency: {value}`" if some else "`concurrency:`; without it, as many as fit"


def _parts(value: Any, *keep: str) -> list[str]:
    """Return what to write for a map's entries that we know, or that are `keep`."""
    found = []
    for key, inner in _map(value).items():
        if key in keep:
            found.append(f"`{key}: {_short(inner)}`")
        elif answer := _answer(key, inner):
            found.append(answer[1])
    return found


def _inner(*keep: str) -> Callable[[Any], str]:
    """Return a function for a map whose keys are top-level keys here."""

    def say(value: Any) -> str:
        parts = _parts(value, *keep)
        if not parts:
            return "no key; its entries stand at the top"
        return f"no key; at the top: {', '.join(parts)}"

    return say


def _searcher(value: Any) -> str:
    if not isinstance(value, Mapping):
        return _named("search")(value)
    parts = [_named("schedule")(value)] if algorithm("schedule", value.get("name")) else []
    parts += _parts({k: v for k, v in value.items() if k != "name"}, "metric")
    return ", ".join(parts) if parts else "`search:` and `schedule:`"


def _length(value: Any) -> str:
    return f"`max_steps: {next(iter(value.values()), '...') if _map(value) else value}`"


_NAMING = ("type", "name", "_target_")
_NOTHING = "nothing: leave it out"
_WANDB, _TUNE, _OPTUNA, _HYDRA = "W&B sweeps", "Ray Tune", "Optuna", "Hydra"
_DETERMINED, _SYNE, _MANY = "Determined", "Syne Tune", "many tools"
_PAGES = (_WANDB, _TUNE, _OPTUNA, _HYDRA)
"""Tools that have a page in the documentation."""
_KEYS: Mapping[str, tuple[str, str | Callable[[Any], str]]] = {
    "program": (
        _WANDB,
        lambda value: f"`trainable: {value if str(value).endswith('.py') else 'file.py'}:FUNCTION`",
    ),
    "method": (_WANDB, _named("search")),
    "parameters": (_WANDB, _space),
    "early_terminate": (_WANDB, _early),
    "project": (_WANDB, "`mlflow: {{experiment: {}}}`"),
    "entity": (_WANDB, _NOTHING),
    "run_cap": (_WANDB, "`trials: {}`"),
    "goal": (_WANDB, _mode),
    "num_samples": (_TUNE, "`trials: {}`"),
    "param_space": (_TUNE, _space),
    "tune_config": (_TUNE, _inner("metric", "mode")),
    "run_config": (_TUNE, _inner("name", "stop")),
    "scaling_config": (_TUNE, "`resources:`, of one trial"),
    "max_concurrent_trials": (_TUNE, "`concurrency: {}`"),
    "max_concurrent": (_TUNE, "`concurrency: {}`"),
    "time_budget_s": (_TUNE, _hours),
    "resources_per_trial": (_TUNE, _resources),
    "scheduler": (_TUNE, _named("schedule")),
    "search_alg": (_TUNE, _named("search")),
    "storage_path": (_TUNE, "`state: {}`"),
    "local_dir": (_TUNE, "`state: {}`"),
    "max_failures": (
        _TUNE,
        lambda value: f"`retries: {{error: {'unlimited' if value == -1 else _short(value)}}}`",
    ),
    "checkpoint_freq": (_TUNE, "`checkpoint: {{every_steps: {}}}`"),
    "keep_checkpoints_num": (_TUNE, "`checkpoint: {{keep_last: {}}}`"),
    "n_trials": (_OPTUNA, "`trials: {}`"),
    "direction": (_OPTUNA, _mode),
    "directions": (_OPTUNA, "`metric: [{{name: ..., mode: min}}, ...]`"),
    "sampler": (_OPTUNA, _named("search")),
    "pruner": (_OPTUNA, _named("schedule")),
    "n_jobs": (_OPTUNA, _jobs),
    "timeout": (_OPTUNA, _hours),
    "storage": (_OPTUNA, "`state:`, a folder or a bucket"),
    "study_name": (_OPTUNA, "`name: {}`"),
    "load_if_exists": (
        _OPTUNA,
        "nothing: a run always continues an existing experiment",
    ),
    "n_startup_trials": (_OPTUNA, "`search: {{tpe: {{n_startup_trials: {}}}}}`"),
    "defaults": (_HYDRA, "nothing: one file is the whole specification"),
    "hydra": (_HYDRA, lambda value: _inner()(_map(value).get("sweeper"))),
    "sweeper": (_HYDRA, _inner()),
    "params": (_HYDRA, _space),
    "searcher": (_DETERMINED, _searcher),
    "hyperparameters": (_DETERMINED, _space),
    "entrypoint": (
        _DETERMINED,
        lambda value: f"`trainable: {_short(value) if ':' in str(value) else 'file.py:FUNCTION'}`",
    ),
    "max_length": (_DETERMINED, _length),
    "max_trials": (_DETERMINED, "`trials: {}`"),
    "smaller_is_better": (_DETERMINED, lambda value: f"`mode: {'min' if value else 'max'}`"),
    "config_space": (_SYNE, _space),
    "n_workers": (_SYNE, "`concurrency: {}`"),
    "max_wallclock_time": (_SYNE, _hours),
    "max_t": (_SYNE, "`max_steps: {}`"),
    "epochs": (_MANY, "`max_steps: {}`"),
    "max_epochs": (_MANY, "`max_steps: {}`"),
}
"""By key of another tool: the tool, and our form, with the user's value."""
