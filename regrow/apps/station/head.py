"""The Ray head of a station: `python -m regrow.apps.station.head FOLDER`.

A cluster on loopback with its own token, which only the owner of FOLDER can read. When this process
ends, the whole cluster ends with it; when a vital part of the cluster dies, this process ends and
the supervisor restarts it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from regrow.infra.machine.host_environment import raise_file_limit
from regrow.infra.ray import cluster
from regrow.infra.state import station_record as record


def main() -> None:
    """Serve until SIGTERM, or until the cluster is lost."""
    folder, ended = Path(sys.argv[1]), threading.Event()
    file = folder / "ray.json"
    file.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    raise_file_limit()
    head = cluster.connect(address="local", env={}, keep_idle=True)
    record.write(
        file, {"address": head.address, "token": os.environ["RAY_AUTH_TOKEN"], "pid": os.getpid()}
    )
    try:
        while not ended.wait(cluster.LOOK_SECONDS):
            if (why := cluster.lost()) is not None:
                sys.exit(f"the cluster was lost: {why}")
    finally:
        file.unlink(missing_ok=True)
        cluster.disconnect()


if __name__ == "__main__":
    main()
