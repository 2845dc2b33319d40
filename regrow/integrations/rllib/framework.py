"""RLlib as a framework of trials: an algorithm of a specification, or of a user's function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from regrow.infra.mlflow.in_trial import discard_mlflow_calls
from regrow.integrations.rllib import users_code
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.attempt.trainable import as_a_script, check_syntax, find, locate, user_code
from regrow.tasks.ports.messages import Job
from regrow.tasks.trial.trial import Trial


class RLlibFramework:
    """See Framework. RLlib is imported only inside of functions."""

    def precheck(self, spec: Spec) -> None:
        """See Framework: check that the user's environment and recorded episodes exist."""
        assert spec.rllib is not None
        env, offline = spec.rllib.env, spec.rllib.offline
        if users_code.is_own(env):
            try:
                if (file := locate(env, spec.working_dir)) is not None:
                    with user_code(users_code.KEY, env):
                        check_syntax(file, env)
            except SpecError as error:
                raise SpecError(users_code.KEY, env, error.problem, error.hint) from None
        if offline is not None and "://" not in offline:
            place = Path(spec.working_dir or ".", offline)
            if not place.exists():
                hint = "write it relative to the specification's folder"
                raise SpecError("rllib.offline", offline, f"there is no {place}", hint)

    def check(self, spec: Spec, given: Any = None) -> Spec:
        """See Framework: let RLlib check it."""
        if spec.rllib is None and given is None and users_code.may_configure(spec):
            with (
                user_code("trainable", spec.trainable),
                discard_mlflow_calls(),
                as_a_script(spec.trainable, spec.working_dir),
            ):
                given = find(spec.trainable, spec.working_dir)
        if spec.rllib is None and not users_code.configures(given):
            return spec
        from regrow.integrations.rllib.check import checked

        return checked(spec, given)

    def trainable(self, job: Job, found: Any) -> Callable[[Trial], object] | None:
        from regrow.integrations.rllib.trials import trainable

        return trainable(job, found)
