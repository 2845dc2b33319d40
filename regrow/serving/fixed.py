"""`python -m regrow.serving.fixed FOLDER`: answers with the one checkpoint in a folder that `regrow export --image` wrote.

What a container runs: there is no experiment, no state, and of regrow's dependencies only those that answering takes.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

import msgspec
from msgspec import structs

from regrow.serving.messages import Chosen, Setup
from regrow.serving.replicas import Replicas
from regrow.serving.running import Doors, answer, guarded
from regrow.tasks.errors import UserCodeError, UserError

KEPT = "checkpoint.json"
MODEL, CODE = "model", "code"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What the folder holds: the experiment, the user's class (relative to `code/`), and the checkpoint in `model/`."""

    experiment: str
    model: str
    chosen: Chosen


def kept(folder: Path) -> Kept:
    """What `folder` holds. Raises UserError if it is not one of ours."""
    try:
        found = msgspec.json.decode((folder / KEPT).read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{folder} is no folder that `regrow export --image` wrote ({error})") from None
    return structs.replace(found, chosen=structs.replace(found.chosen, folder=str(folder / MODEL)))


def setup_of(found: Kept, folder: Path) -> Setup:
    """What the processes that answer are told."""
    return Setup(experiment=found.experiment, model=found.model, code=str(folder / CODE))


def serve(folder: Path, *, host: str | None, port: int, replicas: int) -> None:
    """Answers until SIGTERM or Ctrl-C. Raises UserError and UserCodeError for what cannot be served."""
    found = kept(folder)
    doors = Doors.open(guarded(host), port)

    def choose(offered: Replicas, _: Path, stop: threading.Event) -> None:
        if (refused := offered.offer(found.chosen)) is not None and not stop.is_set():
            raise UserCodeError(refused.why, refused.trace) if refused.trace else UserError(refused.why)

    answer(setup_of(found, folder), doors, replicas, choose)


def main() -> None:
    """See the top."""
    parser = argparse.ArgumentParser(prog="python -m regrow.serving.fixed", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", help="listen there as well; REGROW_SERVE_TOKEN has to be set [default: loopback only]")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--replicas", type=int, default=1, choices=range(1, 257), metavar="N")
    asked = parser.parse_args()
    try:
        serve(asked.folder.resolve(), host=asked.host, port=asked.port, replicas=asked.replicas)
    except UserError as error:
        trace = error.trace if isinstance(error, UserCodeError) else ""
        sys.exit(f"{trace}{error}")


if __name__ == "__main__":
    main()
