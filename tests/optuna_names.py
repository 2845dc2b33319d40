"""What becomes of each public name of Optuna's with `import regrow.optuna as optuna`.

`python -m tests.optuna_names` writes the table into the page on Optuna; a unit test compares.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
from optuna import distributions, exceptions, pruners, samplers

import regrow.optuna as ours
from regrow.integrations.optuna.running import NOT_THERE
from regrow.integrations.optuna.scheduling import schedule
from regrow.integrations.optuna.searching import search
from regrow.tasks.errors import UserError

PAGE = Path(__file__).resolve().parents[1] / "docs/how-to/coming-from-optuna.md"
_PLACE = re.compile(r"(?<=<!-- names -->\n).*?(?=<!-- /names -->)", re.DOTALL)
ABSTRACT = ("BaseSampler", "BaseGASampler", "BasePruner", "nsgaii")
ARGUMENTS: dict[str, dict[str, Any]] = {
    "GridSampler": {"search_space": {"x": [1]}},
    "PartialFixedSampler": {"fixed_params": {}, "base_sampler": samplers.RandomSampler()},
    "HyperbandPruner": {"max_resource": 9},
    "PatientPruner": {"wrapped_pruner": None, "patience": 1},
    "PercentilePruner": {"percentile": 25.0},
    "ThresholdPruner": {"lower": 0.0},
}


def public(module: ModuleType) -> list[str]:
    """The public names of a module of Optuna's."""
    found = getattr(module, "__all__", None)
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return sorted(n for n in found or own if not n.startswith("_"))


def of_module(path: str) -> dict[str, str]:
    """By name, whose it is: "regrow's", or "Optuna's own"."""
    theirs: Any = optuna if not path else getattr(optuna, path)
    mine: Any = ours if not path else getattr(ours, path)
    return {
        name: "Optuna's own" if getattr(mine, name) is getattr(theirs, name) else "regrow's"
        for name in public(theirs)
    }


def of_class(theirs: type, mine: type, refused: Callable[[str], bool]) -> dict[str, str]:
    """By public attribute of a class, whose it is."""
    found = {}
    for name in dir(theirs):
        if name.startswith("_"):
            continue
        same = inspect.getattr_static(mine, name, None) is inspect.getattr_static(theirs, name)
        found[name] = "refused" if refused(name) else "Optuna's own" if same else "regrow's"
    return found


def translated(module: ModuleType, made: Callable[[Any], object]) -> dict[str, str]:
    """By class of a sampler or a pruner, whether it is done or refused, or a base class."""
    found = {}
    for name in public(module):
        if name in ABSTRACT:
            found[name] = "Optuna's own"
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = getattr(module, name)(**ARGUMENTS.get(name, {}))
        try:
            made(one)
        except UserError as error:
            found[name] = "refused" if name in str(error) else "refused without its name"
        else:
            found[name] = "done"
    return found


def table() -> str:
    """The table, in Markdown."""
    rows: dict[str, dict[str, str]] = {
        "optuna": of_module(""),
        "optuna.study": of_module("study"),
        "optuna.trial": of_module("trial"),
        "optuna.distributions": dict.fromkeys(public(distributions), "Optuna's own"),
        "optuna.exceptions": dict.fromkeys(public(exceptions), "Optuna's own"),
        "optuna.samplers": translated(samplers, lambda one: search(one, "name")),
        "optuna.pruners": translated(pruners, schedule),
        "Study": of_class(optuna.Study, ours.Study, lambda _: False),
        "Trial": of_class(optuna.Trial, ours.Trial, lambda name: name in NOT_THERE),
    }
    return "\n".join(_lines(rows)) + "\n"


def _lines(rows: dict[str, dict[str, str]]) -> Iterator[str]:
    yield ""
    yield "| | regrow's, or done by regrow | Optuna's own, unchanged | refused in a line |"
    yield "|---|---|---|---|"
    for where, names in rows.items():
        cells = [
            ", ".join(f"`{name}`" for name, how in names.items() if how in kinds)
            for kinds in (("regrow's", "done"), ("Optuna's own",), ("refused",))
        ]
        yield f"| `{where}` | {' | '.join(cells)} |"
    yield ""


def main() -> int:
    """Write the table."""
    PAGE.write_text(_PLACE.sub(lambda _: table(), PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
