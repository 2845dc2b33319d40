"""`trial NAME N --again`: runs a trial's configuration again, in an experiment of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from regrow.infra.state.places import Places
from regrow.infra.state.yaml_file import set_values
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError


def run_again(
    places: Places,
    name: str,
    number: int | None,
    *,
    changes: Sequence[str] | None,
    seed: int | None,
    seeds: int | None,
    max_steps: int | None,
    as_json: bool,
) -> NoReturn:
    """Run it in this terminal, to its end. `changes`: keys of the specification or parameters of
    the space, as --set has them. Raises UserError and SpecError for what cannot run.
    """
    if number is None:
        raise UserError("--again runs one trial: name it by its number")
    from regrow.cli.session import run_session
    from regrow.flows.housekeeping.copying import specification_again

    given = {"seed": seed, "repeats": seeds or 1, "trials": seeds or 1, "max_steps": max_steps}
    given = {key: value for key, value in given.items() if value is not None}
    spec = specification_again(
        places,
        name,
        number,
        _free(places, f"{name}-trial{number}"),
        {**given, **set_values(changes or ())},
    )
    if not as_json:
        times = "once" if spec.total == 1 else f"{spec.total} times"
        tell(f"{spec.name}: the configuration of trial {number} of {name}, {times}")
    run_session(
        spec.name,
        spec=spec,
        places=places,
        trials=None,
        quiet=False,
        as_json=as_json,
        prefect_port=None,
    )


def _free(places: Places, name: str) -> str:
    """Return the name, or the name with the first free number."""
    taken, number = set(places.experiments()), 2
    found = name
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found
