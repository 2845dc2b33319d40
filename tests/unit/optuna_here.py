"""Sessions of `regrow.optuna` in this process, without Ray and Prefect: everything else is real. No
test lives here.
"""

from __future__ import annotations

from typing import Any

from ray import cloudpickle

from regrow.flows.inline import run_inline
from regrow.infra.state.places import Places
from regrow.search.spec import Spec


def run_here(
    *, name: str, spec: Spec, places: Places, code: str, hold: Any, watch: Any, **_: Any
) -> None:
    """Stands in for `regrow.experiment.run_session`. The objective is unpickled, as on a worker."""
    objective = cloudpickle.loads(places.store(name).read(f"code/{code}"))
    remote = watch.__self__
    run_inline(
        name=name, spec=spec, places=places, given=objective, hold=hold, reached=remote.through
    )
