"""What a trainable changes in its process is not found by the next attempt there. In a process of
its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.fresh import printed

HEAD = """
import builtins, os, resource, signal, socket, sys, tempfile, threading, time, warnings
from regrow.tasks.process.restored import CHANGED, restored
terminated = lambda number, frame: None
signal.signal(signal.SIGTERM, terminated)
with restored():
"""


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ("os.chdir('/')", "open('here').read() == 'yes'"),
        ("d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)", "open('here').read() == 'yes'"),
        ("os.umask(0o777)", "open('new', 'w').close() is None and open('new').read() == ''"),
        ("sys.stdout = open('log', 'w'); sys.stdout.close()", "print('shown') is None"),
        ("sys.excepthook = None", "threading.Thread(target=print).start() is None"),
        ("sys.setrecursionlimit(60)", "sys.getrecursionlimit() > 60"),
        ("socket.setdefaulttimeout(0.001)", "socket.getdefaulttimeout() is None"),
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
            "signal.getsignal(signal.SIGTERM) is terminated",
        ),
        ("signal.alarm(1)", "signal.alarm(0) == 0 and not CHANGED.is_set()"),
        ("time.time = lambda: 0.0", "time.time() > 1.0 and CHANGED.is_set()"),
        ("builtins.open = os.getpid = None", "open('here') and os.getpid() and CHANGED.is_set()"),
        ("del sys.modules['regrow.tasks']", "sys.modules['regrow.tasks'] and CHANGED.is_set()"),
        (
            "threading.excepthook = print",
            "threading.excepthook is not print and not CHANGED.is_set()",
        ),
        # as PyTorch 2 does when it is imported
        (
            "import inspect; inspect.getfile = print",
            "inspect.getfile is print and not CHANGED.is_set()",
        ),
        (
            "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))",
            "CHANGED.is_set() or not os.getuid()",
        ),
        (
            "resource.setrlimit(resource.RLIMIT_NOFILE, (9, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
            "resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 9",
        ),
    ],
)
def test_the_next_attempt_finds_its_process_as_it_was(
    change: str, holds: str, tmp_path: Path
) -> None:
    (tmp_path / "here").write_text("yes")
    code = f"{HEAD}    {change}\nassert {holds}"
    printed(code, cwd=tmp_path)
