"""A server that a station keeps up: `python -m regrow.station.server --state ROOT NAME`.

It is `regrow serve` with what `served` has by that name, and ends when that is not so any more.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import threading
import time

from regrow.infra.machine import private_files
from regrow.infra.machine.addresses import beyond
from regrow.infra.state import served
from regrow.infra.state.places import Places
from regrow.infra.state.served import Served
from regrow.search.errors import SpecError
from regrow.serving.messages import TOKEN
from regrow.serving.running import Doors
from regrow.serving.serve import Asked, Count, serve
from regrow.serving.standing import Standing
from regrow.tasks.addresses import redacted
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.traces import one_line

LOOK_SECONDS = 1.0
"""Between looks whether it is still what is to be served."""
END_SECONDS = 45.0
"""For requests that are under way, and a checkpoint that is being restored; then it ends in any case."""


def main() -> None:
    """Serves until SIGTERM, or until something else is to be served."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--state", required=True)
    arguments.add_argument("name")
    options = arguments.parse_args()
    places = Places.at(options.state)
    order = served.read(places, options.name)
    if order is None:
        return
    threading.Thread(target=_end_with_order, args=(places, order), daemon=True).start()
    standing = Standing(served.standing(places, order.name))
    last = standing.state.port
    standing.begins()
    try:
        serve(places, _asked(order, places, last), standing)
    except (RegrowError, SpecError) as error:
        standing.troubled(redacted(one_line(str(error))))
        sys.stdout.write(f"{getattr(error, 'trace', '')}{time.strftime('%Y-%m-%d %H:%M:%S')} {standing.state.trouble}\n")
        sys.exit(1)


def _asked(order: Served, places: Places, last: int) -> Asked:
    """What `regrow serve` would be told. `last`: the port of the server before this one, 0 for none. Raises UserError."""
    try:
        what = order.parsed
    except ValueError as error:  # pydantic's is one
        raise UserError(f"another version of regrow wrote what is to be served: {error}") from None
    try:
        os.chdir(order.folder)
    except OSError as error:
        raise UserError(f"the folder of its code, {order.folder}, cannot be used ({error.strerror})") from None
    if beyond(what.host) is not None and TOKEN not in os.environ:
        file = served.token_file(places)
        private_files.create(file, secrets.token_hex(16))
        os.environ[TOKEN] = file.read_text().strip()
    return Asked(
        name=order.name, model=what.model, follow=True, trial=None, canary=what.share, gate=what.gates, ray=False,
        replicas=Count(least=what.replicas, most=what.replicas), host=what.host, series=order.series,
        port=what.port or _free(last, what.host),
    )


def _free(port: int, host: str | None) -> int:
    """The port, 0 for any free one where somebody else has it by now."""
    try:
        Doors.open(beyond(host), port).close()
    except UserError:
        return 0
    return port


def _end_with_order(places: Places, order: Served) -> None:
    """A thread that ends the process in good order once its order is another one, or gone."""
    while served.read(places, order.name) == order:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
