"""The lists of what another library and regrow both run, and `compared.py` compares: each case is a
function that gets the module of either, and what is new for it (a folder, or a study's name), and
returns what has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
Body = Callable[[Any, str], Any]


@dataclass(frozen=True, kw_only=True)
class Cases:
    """The cases of one library.

    Attributes:
        library: its module.
        ours: regrow's module in its place.
        modules: those below `tests` that fill the list.
        refusals: what refuses something with what to do instead.
        in_folders: whether a case gets a folder, with its state; else a study's name.
        elsewhere: those that need real sessions, or take the time that they give.
        different: what differs on purpose, or is not mended, by name, in the words of the page.
        page: where the table of outcomes stands; None: nowhere.

    """

    library: str
    ours: str
    modules: tuple[str, ...]
    refusals: tuple[type[Exception], ...]
    in_folders: bool = False
    elsewhere: tuple[str, ...] = ()
    different: Mapping[str, str] = field(default_factory=dict)
    page: Path | None = None
    bodies: dict[str, Body] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)

    def body(self, topic: str) -> Callable[[Body], Body]:
        """Registers a case under its function's name."""

        def register(function: Body) -> Body:
            self.bodies[function.__name__] = function
            self.topics[function.__name__] = topic
            return function

        return register

    def loaded(self) -> dict[str, Body]:
        """All cases by name."""
        for module in self.modules:
            import_module(f"tests.{module}")
        return self.bodies

    def raised(self, function: Callable[[], Any]) -> str:
        """The class of the library's or Python's that is raised."""
        try:
            function()
        except self.refusals:
            raise
        except Exception as error:  # noqa: BLE001 - the outcome that is compared
            named = (cls for cls in type(error).__mro__ if cls.__module__.split(".")[0] != "regrow")
            return next(named).__name__
        return "nothing"


OPTUNA = Cases(
    library="optuna",
    ours="regrow.optuna",
    modules=("optuna_bodies", "optuna_bodies_of_studies"),
    refusals=(UserError,),
)
TUNE = Cases(
    library="ray.tune",
    ours="regrow.tune",
    modules=("tune_bodies", "tune_bodies_more", "tune_bodies_of_runs", "tune_bodies_of_searches"),
    refusals=(UserError, SpecError),
    in_folders=True,
    elsewhere=("restored", "timeouts"),
    different={
        "not_finite_searched": "a metric that is not finite fails its trial",
        "stop_unknown": "a metric of `stop` that is not reported is an error at once",
        "all_kept": "without a `CheckpointConfig` the last two checkpoints and the best are kept",
        "step_callbacks": "there is no controller whose steps begin and end",
        "dirnames": "`trial_dirname_creator` is named as not used: trials have numbers",
    },
    page=ROOT / "docs" / "how-to" / "coming-from-ray-tune.md",
)
CASES = {"optuna": OPTUNA, "tune": TUNE}
