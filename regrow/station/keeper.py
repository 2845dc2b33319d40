"""Starts the supervisor of a station again when it ends without having been told to: `keeper.py LOCK COMMAND...`.

It waits for the lock that the supervisor holds; a supervisor that was told to end ends this process first. Runs as a script of
its own and imports nothing but the standard library: it must stay small.
"""

import fcntl
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Waits, starts the next supervisor, and ends: that one has a keeper of its own."""
    with Path(sys.argv[1]).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True)


if __name__ == "__main__":
    main()
