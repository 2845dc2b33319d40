"""A server that a station keeps running: `python -m regrow.apps.station.server --state ROOT NAME`.

It is `regrow serve` with the settings that `served` has under that name, and ends when they change.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

from regrow.apps.serving.running import Listeners
from regrow.apps.serving.serve import Count, ServeRequest, serve
from regrow.apps.serving.status import ServingStatus
from regrow.infra.machine import addresses
from regrow.infra.state import served
from regrow.infra.state.places import Places
from regrow.infra.state.served import ServeRecord
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.output.traces import one_line
from regrow.tasks.process import background
from regrow.tasks.process.addresses import redacted

LOOK_SECONDS = 1.0
"""Interval of the checks whether its settings are still current."""
END_SECONDS = 45.0
"""Time for pending requests, and for a checkpoint that is being restored; then it is killed."""


def main() -> None:
    """Serve until SIGTERM, or until its settings change."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--state", required=True)
    arguments.add_argument("name")
    options = arguments.parse_args()
    places = Places.at(options.state)
    order = served.read(places, options.name)
    if order is None:
        return
    background.start(_end_with_order, places, order, name="settings")
    status = ServingStatus(served.status_file(places, order.name))
    last = status.state.port
    status.begins()
    try:
        serve(places, _asked(order, last), status)
    except (RegrowError, SpecError) as error:
        status.troubled(redacted(one_line(str(error))))
        sys.stdout.write(
            f"{getattr(error, 'trace', '')}{time.strftime('%Y-%m-%d %H:%M:%S')}"
            f" {status.state.trouble}\n"
        )
        sys.exit(1)


def _asked(order: ServeRecord, last: int) -> ServeRequest:
    """Return the arguments that `regrow serve` would get. `last`: port of the previous server, 0
    for none. Raises UserError if the settings cannot be used.
    """
    try:
        what = order.parsed
    except ValueError as error:  # pydantic's error is a ValueError
        raise UserError(f"another version of regrow wrote what is to be served: {error}") from None
    try:
        os.chdir(order.folder)
    except OSError as error:
        raise UserError(
            f"the folder of its code, {order.folder}, cannot be used ({error.strerror})"
        ) from None
    return ServeRequest(
        name=order.name,
        model=what.model,
        follow=True,
        trial=None,
        canary=what.share,
        gate=what.gates,
        ray=False,
        replicas=Count(least=what.replicas, most=what.replicas),
        host=what.host,
        series=order.series,
        port=what.port or _free(last, what.host),
    )


def _free(port: int, host: str | None) -> int:
    """Return the port, or 0 (any free one) if another process uses it now."""
    try:
        Listeners.open(addresses.beside_loopback(host), port).close()
    except UserError:
        return 0
    return port


def _end_with_order(places: Places, order: ServeRecord) -> None:
    """Shut down gracefully once its settings are changed or removed (in a thread)."""
    while served.read(places, order.name) == order:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
