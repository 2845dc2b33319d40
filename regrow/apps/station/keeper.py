"""Restarts the supervisor of a station when it ends without a request: `keeper.py LOCK COMMAND...`.

It waits for the lock that the supervisor holds; a supervisor that is asked to end ends this process
first. Runs as a script and imports only the standard library, to stay small.
"""

import fcntl
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Wait for the lock, start the next supervisor, and end: that supervisor has its own keeper."""
    with Path(sys.argv[1]).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True)


if __name__ == "__main__":
    main()
