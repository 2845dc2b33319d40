"""Sessions of `regrow.tune` in this process, without Ray and Prefect: everything else is real. No
test lives here.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from ray import cloudpickle

from regrow.experiment import store_trainable
from regrow.flows.inline import run_inline
from regrow.infra.state.places import Places
from regrow.search.spec import Spec


def run_here(*, name: str, spec: Spec, places: Places, given: Any, **_: Any) -> None:
    """Stands in for `regrow.experiment.run_session`. The trainable is unpickled, as on a worker."""
    store = places.store(name)
    code = store_trainable(store, given)
    trainable = cloudpickle.loads(store.read(f"code/{code}"))
    run_inline(
        name=name, spec=spec, places=places, given=trainable, reached=lambda _: nullcontext()
    )
