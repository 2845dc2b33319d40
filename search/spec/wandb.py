"""A sweep file of W&B's as a specification of ours. Pure data to data: nothing is run, read or printed here.

Every key is translated, named in a note, or refused; none is dropped silently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.options import nearest

METRIC = "REGROW_WANDB"
"""The variable that has trials see our `wandb`; its value is the metric's name. A user sets it to `real` for W&B's own."""
_DEFAULT = ["${env}", "${interpreter}", "${program}", "${args}"]
_ARGS = {
    "args": "{args:wandb}", "args_no_hyphens": "{args:no_hyphens}",
    "args_no_boolean_flags": "{args:no_boolean_flags}", "args_json": "{args:json}",
}
_IGNORED = {"entity": "there are no accounts here", "description": "it is not recorded"}
_KEYS = ("program", "command", "method", "parameters", "metric", "early_terminate", "name", "project", "run_cap", *_IGNORED)
_METHODS = {"grid": "grid", "random": "random", "bayes": "tpe"}
_ENDLESS = 1_000_000
"""Steps where only the program knows how many it has."""
_OURS = {"space": "parameters", "trials": "run_cap", "schedule": "early_terminate", "search": "method", "stop": "metric"}


def is_sweep(data: Mapping[str, Any]) -> bool:
    """Whether it is a sweep: it has W&B's `method` and `parameters`, and nothing that only ours has."""
    return "method" in data and "parameters" in data and not data.keys() & {"space", "trainable", "search", "rllib", "trials"}


def theirs(error: SpecError) -> SpecError:
    """An error of the translated specification, under the key that stands in the sweep file."""
    first, dot, rest = error.key.partition(".")
    return SpecError(_OURS.get(first, first) + dot + rest, error.value, error.problem, error.hint, error.where)


def translated(sweep: Mapping[str, Any], stem: str) -> tuple[dict[str, Any], list[str]]:
    """The specification, and a line for each thing that is only like what W&B does. `stem`: the file's name. Raises SpecError."""
    for key in sweep:
        if key not in _KEYS:
            raise SpecError(str(key), sweep[key], "is no key of a sweep that can be translated", nearest(key, _KEYS))
    notes = [f"{key}: ignored, {why}" for key, why in _IGNORED.items() if key in sweep]
    method = sweep["method"]
    if method not in _METHODS:
        raise SpecError("method", method, "is no method of a sweep", "write grid, random or bayes")
    if method == "bayes":
        notes.append("method: bayes is our `tpe`, not W&B's Gaussian process")
    if sweep.get("run_cap") is None and method != "grid":
        raise SpecError("run_cap", None, "is missing: without it the sweep never ends", "add `run_cap: 20`")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(sweep.get("name") or stem)).strip("-._")[:63]
    spec: dict[str, Any] = {"name": name, "command": _command(sweep), "search": _METHODS[method], **_metric(sweep.get("metric"))}
    if "name" in sweep and name != sweep["name"]:
        notes.append(f"name: it is called {name} here")
    spec["space"] = _group(sweep["parameters"], "parameters", method == "grid", notes)
    if sweep.get("run_cap") is not None:
        spec["trials"] = sweep["run_cap"]
    if sweep.get("project") is not None:
        spec["mlflow"] = {"experiment": sweep["project"]}
    if sweep.get("early_terminate") is not None:
        spec |= _early(sweep["early_terminate"], notes)
    return spec | {"env": {METRIC: spec["metric"]}}, notes


def _known(given: Any, key: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise SpecError(key, given, "is not a map", f"its keys are: {', '.join(keys)}")
    for word in given:
        if word not in keys:
            raise SpecError(f"{key}.{word}", given[word], "cannot be translated", f"its keys are: {', '.join(keys)}")
    return given


def _metric(metric: Any) -> dict[str, Any]:
    if metric is None:
        raise SpecError("metric", None, "is missing", "add `metric: {name: loss, goal: minimize}`")
    given = _known(metric, "metric", ("name", "goal", "target"))
    if not isinstance(given.get("name"), str):
        raise SpecError("metric.name", given.get("name"), "is no name of a metric", "write what the program logs, name: loss")
    goal = given.get("goal", "minimize")
    if goal not in ("minimize", "maximize"):
        raise SpecError("metric.goal", goal, "is no goal", "write minimize or maximize")
    stop = {"stop": {"target": given["target"]}} if given.get("target") is not None else {}
    return {"metric": given["name"], "mode": goal[:3], **stop}


def _command(sweep: Mapping[str, Any]) -> list[str]:
    command = sweep.get("command", _DEFAULT)
    if not isinstance(command, list) or not command:
        raise SpecError("command", command, "is not a list of arguments", "write one argument a line")
    return [text for place, one in enumerate(command) if (text := _argument(str(one), f"command.{place}", sweep))]


def _argument(text: str, key: str, sweep: Mapping[str, Any]) -> str:
    if (whole := re.fullmatch(r"\$\{(\w+)\}", text)) and whole[1] in _ARGS:
        return _ARGS[whole[1]]

    def said(macro: re.Match[str]) -> str:
        word = macro[1]
        if word == "program" and not isinstance(sweep.get("program"), str):
            raise SpecError("program", sweep.get("program"), "is no file", "add `program: train.py`")
        if word in ("env", "interpreter", "program"):
            return {"env": "", "interpreter": "python"}.get(word) or (_braced(sweep["program"]) if word == "program" else "")
        if word.startswith("envvar:"):
            raise SpecError(key, text, "would be stored in the log", "read the variable in the program")
        hint = "let it stand alone" if word in _ARGS else f"there are: ${{env}}, ${{interpreter}}, ${{program}}, {_listed()}"
        raise SpecError(key, text, f"${{{word}}} cannot be translated", hint)

    pieces = re.split(r"(\$\{[^}]*\})", text)
    return "".join(re.sub(r"\$\{([^}]*)\}", said, one) if one.startswith("${") else _braced(one) for one in pieces)


def _listed() -> str:
    return ", ".join(f"${{{word}}}" for word in _ARGS)


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _early(early: Any, notes: list[str]) -> dict[str, Any]:
    given = _known(early, "early_terminate", ("type", "min_iter", "max_iter", "s", "eta"))
    if given.get("type") != "hyperband":
        raise SpecError("early_terminate.type", given.get("type"), "is no way to end early", "write hyperband")
    for word in ("min_iter", "max_iter", "s", "eta"):
        value = given.get(word, 2)
        if isinstance(value, bool) or not isinstance(value, int) or value < (2 if word == "eta" else 1):
            raise SpecError(f"early_terminate.{word}", value, "is no whole number above 0" if word != "eta" else "is below 2")
    eta, steps = given.get("eta", 3), given.get("max_iter", _ENDLESS)
    if "min_iter" not in given and not ("max_iter" in given and "s" in given):
        raise SpecError("early_terminate", dict(given), "has neither min_iter nor max_iter with s", "write min_iter: 3")
    if "min_iter" in given and "s" in given:
        raise SpecError("early_terminate.s", given["s"], "stands beside min_iter", "leave one of them out")
    least = given.get("min_iter") or max(1, given["max_iter"] // eta ** given["s"])
    ends = f", and a trial ends after {steps} reports (max_iter)" if "max_iter" in given else ""
    notes.append(f"early_terminate: hyperband is our `asha`, from report {least} on by {eta}{ends}")
    return {"schedule": {"asha": {"grace_period": least, "reduction_factor": eta}}, "max_steps": steps}


def _group(given: Any, key: str, grid: bool, notes: list[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not given:
        raise SpecError(key, given, "is no map of parameters", "write lr: {min: 0.001, max: 0.1}")
    return {str(name): _parameter(one, f"{key}.{name}", grid, notes) for name, one in given.items()}


def _parameter(given: Any, key: str, grid: bool, notes: list[str]) -> Any:
    keys = ("parameters", "value", "values", "probabilities", "distribution", "min", "max", "mu", "sigma", "q")
    given = _known(given, key, keys)
    if "parameters" in given:
        _known(given, key, ("parameters",))
        notes.append(f"{key}: nested, an argument is called by its dotted name")
        return _group(given["parameters"], f"{key}.parameters", grid, notes)
    kind = given.get("distribution") or _unsaid(given)
    reads = _READS.get(kind or "")
    if reads is None:
        raise SpecError(key, dict(given), "cannot be translated", f"its distribution is one of: {', '.join(_READS)}")
    _known(given, key, ("distribution", *reads))
    for word in reads:
        if word not in given and word not in ("q", "mu", "sigma", "probabilities"):
            raise SpecError(f"{key}.{word}", None, f"is missing, {kind} needs it", f"add `{word}:`")
    if kind == "constant":
        return {"constant": given["value"]}
    if kind in ("categorical", "categorical_w_probabilities"):
        if len(set(given.get("probabilities") or ())) > 1:
            raise SpecError(f"{key}.probabilities", given["probabilities"], "differ, and choices are equally likely here")
        return {"grid" if grid else "choice": given["values"]}
    for word in reads:
        if word in given and (isinstance(given[word], bool) or not isinstance(given[word], (int, float))):
            raise SpecError(f"{key}.{word}", given[word], "is not a number", "write a number, 1.0e-3 with a point")
    if grid:
        if kind != "int_uniform":
            raise SpecError(key, dict(given), "has no end of values, and the method is grid", "write values: [...]")
        return {"grid": list(range(given["min"], given["max"] + 1))}
    return _range(str(kind), given)


def _range(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "normal":
        return {"normal": [given.get("mu", 0.0), given.get("sigma", 1.0)]}
    low, high = given["min"], given["max"]
    if kind == "q_uniform":
        return {"quniform": [low, high, given.get("q", 1)]}
    if kind == "log_uniform":
        low, high = math.exp(low), math.exp(high)
    if kind == "inv_log_uniform":  # log(1/x) is uniform
        low, high = math.exp(-high), math.exp(-low)
    return {{"int_uniform": "int", "uniform": "uniform"}.get(kind, "loguniform"): [low, high]}


def _unsaid(given: Mapping[str, Any]) -> str | None:
    """The distribution where none is named, as W&B has it."""
    if "values" in given:
        return "categorical"
    if "value" in given:
        return "constant"
    if "min" in given and "max" in given:
        return "int_uniform" if isinstance(given["min"], int) and isinstance(given["max"], int) else "uniform"
    return "normal" if "mu" in given or "sigma" in given else None


_ENDS = ("min", "max")
_READS: Mapping[str, tuple[str, ...]] = {
    "constant": ("value",), "categorical": ("values", "probabilities"),
    "categorical_w_probabilities": ("values", "probabilities"),
    "int_uniform": _ENDS, "uniform": _ENDS, "q_uniform": (*_ENDS, "q"), "log_uniform": _ENDS, "log_uniform_values": _ENDS,
    "inv_log_uniform": _ENDS, "inv_log_uniform_values": _ENDS, "normal": ("mu", "sigma"),
}
"""What each distribution reads; those of W&B's that are missing (beta, q_normal, log_normal, q_log_*) have no like here."""
