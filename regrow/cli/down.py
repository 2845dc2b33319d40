"""`down`: the end of the S3 server that `up` started."""

from __future__ import annotations

from regrow.cli.options import ServerFolderOption
from regrow.infra.local import s3_server


def down(folder: ServerFolderOption = None) -> None:
    """End the S3 server that `up` started; its data stays."""
    place = s3_server.home(folder)
    server = s3_server.running(place)
    if server is None or not s3_server.stop(place):
        print(f"no S3 server of {place} is running")
        return
    print(f"the S3 server at {server.endpoint} has ended; its data stays in {place}")
