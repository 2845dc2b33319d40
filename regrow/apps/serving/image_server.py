"""`python -m regrow.apps.serving.image_server FOLDER`: serves the one checkpoint in a folder that
`regrow export --image` wrote.

It runs in a container: without an experiment or state, and with only those of regrow's dependencies
that serving needs.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

import msgspec
from msgspec import structs

from regrow.apps.serving.messages import Chosen, Setup
from regrow.apps.serving.replicas import Replicas
from regrow.apps.serving.running import Listeners, answer, token_in
from regrow.infra.machine import addresses
from regrow.tasks.errors import UserCodeError, UserError

KEPT = "checkpoint.json"
MODEL, CODE = "model", "code"


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the folder: user's class relative to `code/`, and the checkpoint in `model/`."""

    experiment: str
    model: str
    chosen: Chosen


def kept(folder: Path) -> ExportManifest:
    """Read the folder's manifest. Raises UserError if the folder has none of ours."""
    try:
        found = msgspec.json.decode((folder / KEPT).read_bytes(), type=ExportManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(
            f"{folder} is no folder that `regrow export --image` wrote ({error})"
        ) from None
    return structs.replace(found, chosen=structs.replace(found.chosen, folder=str(folder / MODEL)))


def setup_of(found: ExportManifest, folder: Path) -> Setup:
    return Setup(experiment=found.experiment, model=found.model, code=str(folder / CODE))


def serve(folder: Path, *, host: str | None, port: int, replicas: int) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises UserError and UserCodeError if it cannot be served."""
    found = kept(folder)
    token = token_in(folder / "serve-token")
    listeners = Listeners.open(addresses.beside_loopback(host), port)

    def choose(offered: Replicas, _: Path, stop: threading.Event) -> None:
        if (refused := offered.offer(found.chosen)) is not None and not stop.is_set():
            raise refused.error()

    answer(setup_of(found, folder), listeners, replicas, choose, token)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m regrow.apps.serving.image_server", description=__doc__
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", help="listen there as well [default: loopback only]")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--replicas", type=int, default=1, choices=range(1, 257), metavar="N")
    asked = parser.parse_args()
    try:
        serve(asked.folder.resolve(), host=asked.host, port=asked.port, replicas=asked.replicas)
    except (UserError, UserCodeError) as error:
        trace = error.trace if isinstance(error, UserCodeError) else ""
        sys.exit(f"{trace}{error}")


if __name__ == "__main__":
    main()
