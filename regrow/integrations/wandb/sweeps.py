"""Translates a W&B sweep file to a specification. Pure data to data: nothing is run, read or
printed here.

Every key is translated, named in a note, or refused; none is dropped silently. Parameters are
translated in `sweep_space.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from regrow.integrations.wandb.rows import STEPS
from regrow.integrations.wandb.sweep_space import Notes, cells, group, known, nested
from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.spec import as_name
from regrow.search.spec.command import ALL, ENV

PACKAGE = "REGROW_WANDB_PACKAGE"
"""The trials' variable for the `wandb` of their programs: `standin` is ours, `real` is W&B's."""
DOTTED = "REGROW_WANDB_DOTTED"
"""The trials' variable with a JSON list of names with dots: keys in W&B's config, groups here."""
OURS = "regrow"
"""The one key that W&B does not know: a map of our keys, for what W&B cannot express."""
_DEFAULT = ["${env}", "${interpreter}", "${program}", "${args}"]
_ARGS = {form.replace(":", "_"): f"{{{form}}}" for form in ALL if form != "args:wandb"}
_ARGS |= {"args": "{args:wandb}", "args.hydra": "{args:hydra}"}
_ARGS["args_json_file"] = "{config_file}"
"""Our form of each macro in a command; one for all parameters is a whole argument."""
_WRITTEN_OUT = {
    "{args:wandb}": "--",
    "{args:hydra}": "",
    "{args:no_hyphens}": "",
    "{args:append_hydra}": "+",
    "{args:override_hydra}": "++",
}
"""What stands before each parameter, for the forms whose arguments can be written one by one."""
_IGNORED = {
    "entity": "ignored, there are no accounts here",
    "description": "ignored, it is not recorded",
}
_KEYS = (
    "program",
    "command",
    "method",
    "parameters",
    "metric",
    "early_terminate",
    "name",
    "project",
    "run_cap",
    OURS,
    *_IGNORED,
)
_METHODS = {"grid": "grid", "random": "random", "bayes": "tpe"}
_ENDLESS = 1_000_000
"""Number of steps if only the program knows it."""
_NAMED = {
    "space": "parameters",
    "trials": "run_cap",
    "schedule": "early_terminate",
    "search": "method",
    "stop": "metric",
    "mlflow": "project",
}
"""Key of a sweep that corresponds to our key, for error messages."""
_SAID = (
    "name",
    "trainable",
    "command",
    "rllib",
    "metric",
    "mode",
    "space",
    "trials",
    "report",
    "working_dir",
)
"""Our keys that the sweep's keys set."""


def is_sweep(data: Mapping[str, Any]) -> bool:
    """Return whether it has W&B's `method` and `parameters`, and none of our keys."""
    return (
        "method" in data
        and "parameters" in data
        and not data.keys() & {"space", "trainable", "search", "rllib", "trials"}
    )


def theirs(error: SpecError, sweep: Mapping[str, Any]) -> SpecError:
    """Return an error of the translated specification under the sweep file's key."""
    first, dot, rest = error.key.partition(".")
    own = sweep.get(OURS)
    named = (
        f"{OURS}.{first}" if isinstance(own, Mapping) and first in own else _NAMED.get(first, first)
    )
    return SpecError(named + dot + rest, error.value, error.problem, error.hint, error.where)


def translated(
    sweep: Mapping[str, Any], stem: str, trials: int | None = None
) -> tuple[dict[str, Any], Notes]:
    """Return the specification; and by key, what is translated inexactly.

    `stem` is the file's name, for a sweep without one; `trials` replaces a missing `run_cap`.
    Raises SpecError.
    """
    for key in sweep:
        if key not in _KEYS:
            raise SpecError(
                str(key),
                sweep[key],
                "is no key of a sweep that can be translated",
                nearest(str(key), _KEYS),
            )
    notes: Notes = [(key, why) for key, why in _IGNORED.items() if key in sweep]
    method = sweep["method"]
    if not isinstance(method, str) or method not in _METHODS:
        raise SpecError("method", method, "is no method of a sweep", "write grid, random or bayes")
    if method == "bayes":
        notes.append(("method", "bayes is our `tpe`, not W&B's Gaussian process"))
    spec: dict[str, Any] = {
        "name": _name(sweep, stem, notes),
        "search": _METHODS[method],
        "duplicates": method != "grid",  # as there: a small space does not end before run_cap
    }
    needs = "early_terminate" if sweep.get("early_terminate") else ""
    needs = "method: bayes" if method == "bayes" else needs
    spec |= _metric(sweep.get("metric"), needs, notes)
    command, variables = _command(sweep, notes)
    spec["env"] = {PACKAGE: "standin", **variables}
    space = group(sweep["parameters"], "parameters", method == "grid", notes)
    notes += [
        (f"parameters.{name}.probabilities", "hold for what is drawn at random, not for `tpe`")
        for name, domain in space.items()
        if method == "bayes" and "probabilities" in domain
    ]
    spec["space"], paths = nested(space)
    spec["command"] = _by_name(command, space, paths, notes)
    if paths:
        plain = all(name == path for name, path in paths.items())
        spec["env"][DOTTED] = json.dumps(list(paths) if plain else paths)
    spec |= _total(sweep, trials, cells(spec["space"]) if method == "grid" else None)
    if sweep.get("project") is not None:
        spec["mlflow"] = {"experiment": sweep["project"]}
    if sweep.get("early_terminate") is not None:
        spec |= _early(sweep["early_terminate"], notes)
    return _with_ours(spec, sweep.get(OURS)), notes


def _by_name(
    command: list[str], space: Mapping[str, Any], paths: Mapping[str, str], notes: Notes
) -> list[str]:
    """Return the command, whose arguments have the sweep's names also where ours are others.

    Raises SpecError for a form or values that cannot be written out one by one.
    """
    renamed = {name: path for name, path in paths.items() if name != path}
    if not renamed:
        return command
    listed: list[str] = []
    for text in command:
        prefix = _WRITTEN_OUT.get(text)
        if prefix is None and text.strip("{}") in (*ALL, "config_file"):
            name = next(iter(renamed))
            hint = "write ${args}, or call one of them otherwise"
            raise SpecError(f"parameters.{name}", name, "lies within another parameter", hint)
        if prefix is None:
            listed.append(text)
            continue
        for name, domain in space.items():
            values = domain.get("choice", domain.get("grid", [domain.get("constant", 0)]))
            is_group = any(isinstance(inner, Mapping) for inner in domain.values())
            if is_group or not all(map(_is_written_alike, values)):
                problem = "has values that are no word or number, beside a name within another"
                raise SpecError(f"parameters.{name}", name, problem, "call one of them otherwise")
            listed.append(f"{prefix}{name}={{{paths.get(name, name)}}}")
    for name, path in renamed.items():
        notes.append((f"parameters.{name}", f"it is called {path} here; the program sees {name}"))
    return listed


def _is_written_alike(value: Any) -> bool:
    """Return whether all forms of arguments write a value in the same way, without quotes."""
    if isinstance(value, str):
        return re.fullmatch(r"[\w./:@%+-]+", value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _with_ours(spec: dict[str, Any], given: Any) -> dict[str, Any]:
    """Return the specification with our keys in the sweep file."""
    if given is None:
        return spec
    if not isinstance(given, Mapping):
        hint = "write keys of a specification, regrow: {resources: {gpu: 1}}"
        raise SpecError(OURS, given, "is not a map", hint)
    for key in given:
        if key in _SAID:
            raise SpecError(
                f"{OURS}.{key}", given[key], "is set by the sweep's own keys", "leave it out"
            )
    both = {
        key: {**spec[key], **value}
        for key, value in given.items()
        if isinstance(value, Mapping) and isinstance(spec.get(key), Mapping)
    }
    return {**spec, **given, **both}


def _name(sweep: Mapping[str, Any], stem: str, notes: Notes) -> str:
    name = as_name(str(sweep.get("name") or stem), "sweep")
    if sweep.get("name") and name != sweep["name"]:
        notes.append(("name", f"it is called {name} here"))
    return name


def _total(sweep: Mapping[str, Any], trials: int | None, size: int | None) -> dict[str, Any]:
    """Return the number of trials: `run_cap`, unless a grid of `size` is smaller."""
    cap = sweep.get("run_cap", trials)
    if cap is None and size is None:
        hint = "add `run_cap: 20`, or give --trials 20"
        raise SpecError("run_cap", None, "is missing: without it the sweep never ends", hint)
    whole = isinstance(cap, int) and not isinstance(cap, bool)
    return {} if cap is None or (whole and size is not None and cap >= size) else {"trials": cap}


def _metric(metric: Any, needed: str, notes: Notes) -> dict[str, Any]:
    """Return metric and mode. `needed`: what cannot do without one, empty for nothing."""
    if metric is None:
        if needed:
            hint = "add `metric: {name: loss, goal: minimize}`"
            raise SpecError("metric", None, f"is missing, {needed} needs it", hint)
        notes.append(("metric", f"is missing: trials are ranked by `{STEPS}`, the rows they log"))
        return {"metric": STEPS, "mode": "max"}
    given = known(metric, "metric", ("name", "goal", "target"))
    if not isinstance(given.get("name"), str):
        hint = "write what the program logs, name: loss"
        raise SpecError("metric.name", given.get("name"), "is no name of a metric", hint)
    goal = given.get("goal", "minimize")
    if goal not in ("minimize", "maximize"):
        raise SpecError("metric.goal", goal, "is no goal", "write minimize or maximize")
    stop = {"stop": {"target": given["target"]}} if given.get("target") is not None else {}
    return {"metric": given["name"], "mode": goal[:3], **stop}


def _command(sweep: Mapping[str, Any], notes: Notes) -> tuple[list[str], dict[str, str | None]]:
    """Return the command and its variables: those it sets, and with None those it inherits."""
    command, variables = sweep.get("command") or _DEFAULT, dict[str, str | None]()
    if not isinstance(command, list):
        raise SpecError(
            "command", command, "is not a list of arguments", "write one argument a line"
        )
    filled: list[str] = []
    for place, text in enumerate(map(str, command)):
        leads = place and command[0] == "${env}" and not any(filled)
        if leads and (set_to := re.fullmatch(r"([A-Za-z_]\w*)=([^$]*)", text)):
            variables[set_to[1]] = set_to[2]  # as /usr/bin/env, which ${env} stands for, would do
        else:
            filled.append(_argument(text, f"command.{place}", sweep, variables, notes))
    if not (found := [text for text in filled if text]):
        hint = "write ${env}, ${interpreter}, ${program}, ${args}, one a line"
        raise SpecError("command", command, "has no program", hint)
    return found, variables


def _argument(
    text: str,
    key: str,
    sweep: Mapping[str, Any],
    variables: dict[str, str | None],
    notes: Notes,
) -> str:
    """Return our form of an argument. As W&B's agent does, a macro that is not the whole argument
    is left as it is, except for a variable of the environment.
    """
    if (whole := re.fullmatch(r"\$\{([\w.]+)\}", text)) and whole[1] in _ARGS:
        return _ARGS[whole[1]]

    def translate_macro(word: str) -> str:
        if word == "program":
            if not isinstance(sweep.get("program"), str):
                raise SpecError(
                    "program", sweep.get("program"), "is no file", "add `program: train.py`"
                )
            return _braced(sweep["program"])
        if word in ("env", "interpreter"):  # the program runs in the worker's environment
            return "python" if word == "interpreter" else ""
        if variable := re.fullmatch(r"envvar:([A-Za-z_]\w*)", word):
            variables[variable[1]] = None
            return f"{{{ENV}{variable[1]}}}"
        words = ["env", "interpreter", "program", *_ARGS, "envvar:NAME"]
        listed = ", ".join(f"${{{word}}}" for word in words)
        raise SpecError(key, text, f"${{{word}}} cannot be translated", f"there are: {listed}")

    if not re.fullmatch(r"\$\{[^}]*\}", text):
        pieces = re.split(r"\$\{envvar:([A-Za-z_]\w*)\}", text)
        if "${" in "".join(pieces[::2]):
            notes.append((key, f"{text} is passed on as it is, as W&B's agent does"))
        return "".join(
            translate_macro(f"envvar:{one}") if place % 2 else _braced(one)
            for place, one in enumerate(pieces)
        )
    pieces = re.split(r"\$\{([^}]*)\}", text)
    return "".join(
        translate_macro(one) if place % 2 else _braced(one) for place, one in enumerate(pieces)
    )


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _early(early: Any, notes: Notes) -> dict[str, Any]:
    given = known(early, "early_terminate", ("type", "min_iter", "max_iter", "s", "eta"))
    if given.get("type") != "hyperband":
        raise SpecError(
            "early_terminate.type", given.get("type"), "is no way to end early", "write hyperband"
        )
    for word in ("min_iter", "max_iter", "s", "eta"):
        value, least = given.get(word, 2), 2 if word == "eta" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            problem, hint = "is no whole number above 0", "write 3"
            if word == "eta":
                problem, hint = "is below 2", "3 is usual"
            raise SpecError(f"early_terminate.{word}", value, problem, hint)
    eta, steps = given.get("eta", 3), given.get("max_iter", _ENDLESS)
    if "min_iter" not in given and not ("max_iter" in given and "s" in given):
        hint = "write min_iter: 3"
        raise SpecError(
            "early_terminate", dict(given), "has neither min_iter nor max_iter with s", hint
        )
    if "min_iter" in given and "s" in given:
        raise SpecError(
            "early_terminate.s", given["s"], "stands beside min_iter", "leave one of them out"
        )
    least = given.get("min_iter") or max(1, given["max_iter"] // eta ** given["s"])
    if least >= steps:
        hint = "leave max_iter out"
        raise SpecError("early_terminate.min_iter", least, f"is not below max_iter ({steps})", hint)
    ends = f", and a trial ends after {steps} logs of the metric (max_iter)"
    ends = ends if "max_iter" in given else ""
    brackets = (
        f"at {least}, {least * eta}, {least * eta**2}, ... logs of the metric the best 1/{eta} so"
        " far continue"
    )
    notes.append(("early_terminate", f"hyperband is our `asha`: {brackets}{ends}"))
    return {
        "schedule": {"asha": {"grace_period": least, "reduction_factor": eta}},
        "max_steps": steps,
    }
