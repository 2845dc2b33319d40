"""What trials print: taken in once, from wherever it is printed, by the attempt that printed it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from regrow.tasks.output import capture
from tests.unit.fresh import printed

PRINTS = r"""
import ctypes, json, logging, multiprocessing, os, subprocess, sys, threading, warnings
from regrow.tasks.output import capture
from regrow.tasks.output.logs import LogRelay
from regrow.tasks.output.parts import KEEPER, decode
from tests.memory_store import MemoryStore

store, said, before = MemoryStore(), [], (sys.stdout, sys.stderr)
relay = LogRelay(said.extend)

def user():
    logging.getLogger().addHandler(logging.StreamHandler())  # prints what is taken as a record
    print("printed")
    print("to stderr", file=sys.stderr)
    print("no end", end="")
    print(" yet")
    logging.getLogger("a.b").info("logged %d", 1)
    apart = logging.getLogger("apart")
    apart.propagate = False
    apart.addHandler(logging.StreamHandler(sys.stderr))
    apart.warning("a record that only its own handler is told")
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("a.b").exception("with a traceback")
    for percent in range(0, 101, 20):
        sys.stderr.write(f"\r{percent}%")
    sys.stderr.write("\n1\r2\r3\n")
    for _ in range(30_000):
        sys.stderr.write("\rlong")
    sys.stderr.write("\n")
    thread = threading.Thread(target=print, args=("from a thread",))
    thread.start()
    thread.join()
    os.write(1, "raw ä".encode() + b"\n")
    sys.stdout.buffer.write(b"binary \xff\n")
    sys.stdout.buffer.flush()
    ctypes.CDLL(None).puts(b"from C")
    ctypes.CDLL(None).fflush(None)
    subprocess.run(["sh", "-c", "echo child; echo child error >&2"], check=True)
    child = multiprocessing.get_context("fork").Process(target=print, args=("from a fork",))
    child.start()
    child.join()
    ctypes.PyDLL(None).write(1, b"x" * 999 + b"\n", 1000)
    for _ in range(200):  # holding Python's lock: a pipe would be full after 64
        ctypes.PyDLL(None).write(2, b"y" * 999 + b"\n", 1000)
    print("a lone surrogate \ud800 and \x1b[31m")
    logging.basicConfig(force=True, level=logging.INFO, format="formatted: %(message)s")  # removes all other handlers
    logging.getLogger("a.b").info("printed only")
    print("the last line has no end", end="")

with capture.CAPTURE.on():
    print("between attempts: nobody's")
    os.write(1, b"nobody's either\n")
    with capture.kept_output(store, 0, 1, relay):
        user()
    print("nobody's again")
    with capture.kept_output(store, 1, 1, relay):
        print("the second trial")
assert KEEPER.finish(20)
assert (sys.stdout, sys.stderr) == before
os.write(1, b"the descriptor is back\n")
found = {t: [(l.stream, l.text, l.level, l.logger) for k in sorted(store.list(f"logs/{t}/")) for l in decode(store.read(k))] for t in (0, 1)}
said += relay.drain()
print(json.dumps({"found": found, "said": [(line.source, line.text) for line in said]}))
"""


@pytest.fixture(scope="module")
def taken() -> dict[str, Any]:
    """What a process of its own took in: here pytest has the descriptors."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    first, last = printed(PRINTS, env=buffered).splitlines()
    assert first == "the descriptor is back"
    result: dict[str, Any] = json.loads(last)
    return result


def test_all_that_is_printed_is_taken_once_and_by_the_attempt_that_printed_it(
    taken: dict[str, Any],
) -> None:
    found = [(stream, text) for stream, text, *_ in taken["found"]["0"]]
    short = [one for one in found if len(one[1]) < 900]
    assert sorted(short) == sorted(
        [
            ("stdout", "printed"),
            ("stderr", "to stderr"),
            ("stdout", "no end yet"),
            ("log", "logged 1"),
            ("stderr", "a record that only its own handler is told"),
            next(one for one in short if one[1].startswith("with a traceback\nTraceback")),
            ("stderr", "100%"),
            ("stderr", "3"),
            ("stderr", "long"),
            ("stdout", "from a thread"),
            ("stdout", "raw ä"),
            ("stdout", "binary �"),
            ("stdout", "from C"),
            ("stdout", "child"),
            ("stderr", "child error"),
            ("stdout", "from a fork"),
            ("stdout", "a lone surrogate \\ud800 and \x1b[31m"),
            ("stdout", "the last line has no end"),
            ("stderr", "formatted: printed only"),
        ]
    )
    assert [one for one in found if len(one[1]) >= 900] == [("stdout", "x" * 999)] + [
        ("stderr", "y" * 999)
    ] * 200
    assert [text for _, text, *_ in taken["found"]["1"]] == ["the second trial"]


def test_records_keep_their_level_and_their_logger(taken: dict[str, Any]) -> None:
    logged = [
        (level, logger) for stream, _, level, logger in taken["found"]["0"] if stream == "log"
    ]
    assert logged == [("INFO", "a.b"), ("ERROR", "a.b")]


def test_what_was_printed_and_logged_is_handed_on_once(taken: dict[str, Any]) -> None:
    said = [(source, text) for source, text in taken["said"]]
    assert {
        ("stdout", "printed"),
        ("stderr", "to stderr"),
        ("stdout", "from C"),
        ("stdout", "the second trial"),
    } <= set(said)
    assert [source for source, text in said if text.endswith("logged 1")] == ["a.b"]
    assert not [text for _, text in said if "nobody's" in text]


ENDLESS = r"""
import json, os, subprocess, sys, tempfile, threading
from regrow.tasks.output import capture
from regrow.tasks.output.logs import LogRelay
from regrow.tasks.output.parts import KEEPER, decode
from tests.memory_store import MemoryStore

store, most, mb = MemoryStore(), 0, 1 << 20
if len(sys.argv) > 1:  # a file system that takes no room back
    capture._free_blocks = lambda handle, size: False
    capture._MOST_BYTES = 8 * mb
with capture.CAPTURE.on(), capture.kept_output(store, 0, 1, LogRelay(lambda lines: None)):
    for n in range(48):
        os.write(1, f"\r{n:015}".encode() * (mb // 16))  # as a bar of a C library's, which ends its line when it is full
        capture.CAPTURE.poll()
        most = max(most, os.fstat(1).st_blocks * 512)
    os.write(1, b"\nended\n")
assert KEEPER.finish(20)
print(json.dumps([most / mb, [l.text for k in sorted(store.list("logs/0/")) for l in decode(store.read(k))]]))
"""


@pytest.mark.parametrize("more", [[], ["without holes"]])
def test_a_bar_that_never_ends_its_line_takes_no_room_and_is_told_now_and_then(
    more: list[str],
) -> None:
    most, lines = json.loads(printed(ENDLESS, *more))
    assert most < 10, "MB on the disk"
    assert lines[-1] == "ended"
    assert [int(line) for line in lines[:-1]] == sorted({*map(int, lines[:-1])}), (
        "each once, in order"
    )
    assert 40 <= len(lines) <= 50


def test_a_long_line_is_split_also_if_it_comes_at_once() -> None:
    text = "".join(chr(97 + n % 26) for n in range(2 * capture.MOST_LINE + 5))
    for pieces in ([text + "\n"], [text[:7], text[7:] + "\nnext\n"], [text, "\n"]):
        lines = capture._Lines()
        found = [line for piece in pieces for line in lines.add(piece)]
        assert max(map(len, found)) == capture.MOST_LINE
        assert "".join(found).removesuffix("next") == text
