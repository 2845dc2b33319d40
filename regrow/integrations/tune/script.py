"""Runs a Ray Tune script in this process, with Tune's Tuner replaced."""

from __future__ import annotations

import importlib
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.experiment import StationOf
from regrow.integrations.tune.analysis import ExperimentAnalysis
from regrow.integrations.tune.private import check_version
from regrow.integrations.tune.recorded import recording
from regrow.integrations.tune.results import ResultGrid
from regrow.integrations.tune.tuner import (
    ScriptSession,
    Tuner,
    register_trainable,
    run,
    say,
    with_parameters,
)
from regrow.integrations.tune.unsupported import unsupported_calls
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.output.traces import user_trace

if TYPE_CHECKING:
    from regrow.show.live.terminal import Events

_PLACES: dict[str, tuple[tuple[str, ...], Any]] = {
    "Tuner": (("ray.tune", "ray.tune.tuner"), Tuner),
    "run": (("ray.tune", "ray.tune.tune"), run),
    "register_trainable": (("ray.tune", "ray.tune.registry"), register_trainable),
    "with_parameters": (
        ("ray.tune", "ray.tune.trainable.util", "ray.tune.trainable"),
        with_parameters,
    ),
    "ResultGrid": (("ray.tune", "ray.tune.result_grid"), ResultGrid),
    "ExperimentAnalysis": (("ray.tune", "ray.tune.analysis"), ExperimentAnalysis),
}


class ScriptFailed(RegrowError):
    """The script itself raised; the message is the traceback."""


def run_script(
    script: Path,
    arguments: list[str],
    *,
    name: str | None,
    state: str | None,
    quiet: bool,
    events: Events | None = None,
    station_of: StationOf | None = None,
) -> None:
    """Run the script as Python would. Raises UserError, with its line, for what cannot run here."""
    check_version()
    if str(script).startswith("-"):
        raise UserError(
            f"{script} is no option of regrow tune; for machines elsewhere set RAY_ADDRESS, or give"
            " an experiment's file to `regrow run FILE --on CLUSTER`"
        )
    if not script.is_file():
        raise UserError(f"there is no file {script}")
    if wrong := unsupported_calls(script):
        raise UserError(f"{script} cannot run here:\n" + "\n".join(wrong))
    replaced = _Replaced()
    Tuner.session = ScriptSession(
        name=name,
        state=state,
        quiet=quiet,
        events=events,
        station_of=station_of,
        rays_own_names=replaced.rays_own_names,
    )
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    with replaced, recording():
        try:
            runpy.run_path(str(script), run_name="__main__")
        except (SpecError, UserError) as error:
            raise UserError(f"{_place(script, error)}: {error}") from error
        except RegrowError:
            raise
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - any exception ends the script, as it would end Python
            raise ScriptFailed(user_trace(error)) from None


def _place(script: Path, error: BaseException) -> str:
    """Return the line of the script that caused an error."""
    frames: Any = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == script.resolve()]
    return f"{script}, line {lines[-1]}" if lines else str(script)


class _Replaced:
    """Context in which a script finds our names; within `rays_own_names` it finds Ray's."""

    def __init__(self) -> None:
        self._theirs: list[tuple[Any, str, Any]] = []
        self._ours: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        ray = importlib.import_module("ray")
        ours = [(ray, "init", self._init), (ray, "shutdown", lambda *_, **__: None)]
        for name, (modules, thing) in _PLACES.items():
            ours += [(importlib.import_module(module), name, thing) for module in modules]
        self._ours = [one for one in ours if hasattr(one[0], one[1])]
        self._theirs = [(place, name, getattr(place, name)) for place, name, _ in self._ours]
        _put(self._ours)

    def __exit__(self, *_: object) -> None:
        _put(self._theirs)

    @contextmanager
    def rays_own_names(self) -> Iterator[None]:
        """Restore Ray's names within the block."""
        _put(self._theirs)
        try:
            yield
        finally:
            _put(self._ours)

    @staticmethod
    def _init(address: str | None = None, **given: Any) -> None:
        if address is not None or given:
            words = ", ".join([*([f"address={address!r}"] if address else []), *given])
            say(
                f"ray.init({words}) is not needed: regrow starts Ray, or joins the cluster that"
                " RAY_ADDRESS names"
            )


def _put(things: list[tuple[Any, str, Any]]) -> None:
    for place, name, thing in things:
        setattr(place, name, thing)
