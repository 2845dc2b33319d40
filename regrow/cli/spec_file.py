"""Reads the specification of a command's FILE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from regrow.search.errors import SpecError
from regrow.show.live.terminal import echo

if TYPE_CHECKING:
    from regrow.search.spec import Spec


def read(file: Path, trials: int | None = None, *, changes: Sequence[str] | None = None) -> Spec:
    """Return the specification with the `changes` of `--set`; warnings go to standard error. Raises
    as `read_spec` does.
    """
    from regrow.infra.state.spec_file import read_spec
    from regrow.infra.state.yaml_file import set_values

    return read_spec(
        file,
        trials=trials,
        echo=lambda line: echo(f"regrow: {line}", error=True, flush=True),
        changes=set_values(changes or ()),
    )


@contextmanager
def located_in(file: Path) -> Iterator[None]:
    """Tell where in the file a SpecError of the block is."""
    from regrow.infra.state.yaml_file import located

    try:
        yield
    except SpecError as error:
        raise (error if error.where else located(error, file))  # noqa: B904 - the same error, with its location


def named(spec: Spec, name: str | None) -> Spec:
    """Return the specification under another name; None: its own."""
    return spec if name is None else type(spec).parse({**spec.to_json(), "name": name})
