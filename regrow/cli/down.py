"""`down`: ends what `up` started."""

from __future__ import annotations

from typing import Annotated

from regrow.cli.options import ServerFolderOption, StateOption, option
from regrow.infra.local import s3_server
from regrow.infra.state.places import Places
from regrow.show.live.terminal import tell


def down(
    state: StateOption = None,
    s3: Annotated[
        bool, option("End the S3 server of `regrow up --s3` as well; its data stays", "--s3")
    ] = False,
    folder: ServerFolderOption = None,
) -> None:
    """End the station of the state root: running experiments save a checkpoint first. State and
    schedules stay.
    """
    from regrow.apps.station import start

    places, place = Places.at(state), s3_server.home(folder)
    server = s3_server.running(place) if s3 else None
    if start.end(places):  # ends the S3 server, too, if it was started with it
        tell(f"the station of {places.root} has ended")
    elif not s3:
        tell(f"no station runs on {places.root}")
    if server is not None:
        s3_server.stop(place)
        tell(f"the S3 server at {server.endpoint} has ended; its data stays in {place}")
    elif s3:
        tell(f"no S3 server of {place} is running")
