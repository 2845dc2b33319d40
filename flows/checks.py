"""Checks of the user's code (program, syntax, imports, search) before anything is started."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from regrow.infra.mlflow.in_trial import discard_mlflow_calls
from regrow.infra.ray.joining import environment
from regrow.infra.state.experiments import make_importable
from regrow.search.errors import SpecError
from regrow.search.spec import COMMAND, Spec
from regrow.tasks.attempt import frameworks, trainable
from regrow.tasks.errors import UserCodeError, UserError
from regrow.tasks.output.traces import in_a_line, user_trace
from regrow.tasks.program.command import INTERPRETERS

_READERS = (*INTERPRETERS, "bash", "sh", "zsh", "dash", "node", "perl", "Rscript", "julia", "ruby")
"""Programs whose first argument is a script, unless it is an option."""


def check_search(spec: Spec) -> None:
    """Make the user's sampler or scheduler once. Raises SpecError or UserCodeError."""
    make_importable(spec)
    try:
        spec.check_imports()
    except SpecError as wrong:
        if wrong.__cause__ is None or isinstance(wrong.__cause__, ImportError):
            raise
        raise UserCodeError(str(wrong), user_trace(wrong.__cause__)) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's class may raise anything
        raise UserCodeError(
            f"the search cannot be made: {in_a_line(error)}", user_trace(error)
        ) from None


def precheck(spec: Spec) -> None:
    """Check the trainable without importing it. Raises SpecError and UserCodeError."""
    if spec.trainable == COMMAND and not spec.command:
        framework = frameworks.of_key(spec)
        if framework is None:  # the package was installed before it had this entry point
            raise UserError(f"no library is registered for {spec.program}; install regrow again")
        framework.precheck(spec)
    elif spec.command:
        precheck_command(spec)
    elif (
        spec.trainable != "pickled"
        and (file := trainable.locate(spec.trainable, spec.working_dir)) is not None
    ):
        with trainable.user_code("trainable", spec.trainable):
            trainable.check_syntax(file, spec.trainable)


def precheck_command(spec: Spec) -> None:
    """Check that program and script exist, and its syntax. Raises SpecError, UserCodeError."""
    folder, (program, *arguments) = Path(spec.working_dir or "."), spec.command
    path = {**os.environ, **environment(spec)}.get("PATH")
    own = program in INTERPRETERS or "{" in program
    called = str(folder / program) if "/" in program else program
    if not own and shutil.which(called, path=path) is None:
        problem, hint = "there is no such program", "correct the name, or install it"
        if (folder / program).is_file():
            problem = "cannot be run as it is"
            hint = (
                f"chmod +x {shlex.quote(str(folder / program))}, or put its interpreter before it"
            )
        raise SpecError("command.0", program, problem, hint)
    script = arguments[0] if arguments and program.rpartition("/")[2] in _READERS else "-"
    if script.startswith("-") or "{" in script:
        return
    if not (folder / script).is_file():
        hint = "write it relative to the specification's folder"
        raise SpecError("command.1", script, f"there is no file {folder / script}", hint)
    if program in INTERPRETERS:
        with trainable.user_code("command.1", script):
            trainable.parsed(folder / script)


def check_frameworks(spec: Spec, given: Any = None) -> Spec:
    """Return the specification with the resources that a library needs whose own object is the
    trainable (RLlib's algorithms).

    `given`: the trainable, if it is an object rather than a name. Raises SpecError, UserError if
    the library is not installed, UserCodeError for an exception of the user's code.
    """
    for framework in frameworks.of_spec(spec, given):
        spec = framework.check(spec, given)
    return spec


def check_trainable(spec: Spec) -> None:
    """Import the trainable in this process, so that a wrong name or a failing module is reported
    before the first trial starts.

    Raises SpecError, and UserCodeError for an exception of the user's module.
    """
    if spec.trainable not in ("pickled", COMMAND):
        code = trainable.user_code("trainable", spec.trainable)
        with code, discard_mlflow_calls(), trainable.as_a_script(spec.trainable, spec.working_dir):
            trainable.adapt(trainable.find(spec.trainable, spec.working_dir), spec.trainable)
            if (ends := spec.stop.trial.function) is not None:
                found = trainable.find(ends, spec.working_dir)
                hint = "write `def enough(number, metrics):`, which returns True or False"
                what = "two arguments, the number and the metrics of the step"
                trainable.check_call(found, "stop.trial.function", ends, what, hint, 1, {})
