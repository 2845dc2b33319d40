"""Runs a Ray Tune script in this process, with Tune's Tuner replaced."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from regrow.integrations.tune.private import check_version
from regrow.integrations.tune.recorded import recording
from regrow.integrations.tune.replaced import Replaced
from regrow.integrations.tune.tuner import Session, Tuner, say
from regrow.integrations.tune.unsupported import refused
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.output.traces import user_trace


class ScriptFailed(RegrowError):
    """The script itself raised; the message is the traceback."""


def run_script(
    script: Path, arguments: list[str], *, name: str | None, state: str | None, quiet: bool
) -> None:
    """Run the script as `python script.py` would. Raises UserError, with the line of the script,
    for what cannot run here.
    """
    check_version()
    if not script.is_file():
        raise UserError(f"there is no file {script}")
    if wrong := refused(script):
        raise UserError(f"{script} cannot run here:\n" + "\n".join(wrong))
    replaced = Replaced(say)
    Tuner.session = Session(name=name, state=state, quiet=quiet, apart=replaced.apart)
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
