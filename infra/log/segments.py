"""The log's objects: their names, their bytes, and which of them together hold the whole log. No I/O lives here.

A segment is a head line and its lines: `{"crc32":...,"head":{...}}`, then one JSON event a line. The head holds the
length and CRC-32 of every line, so a damaged line is found without looking for line ends. A merged object is several
segments one after the other, byte for byte. A seal (`0000000012.seal`) lies beside the segment at which the log was closed.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

FORMAT = 1
PREFIX = "log/"
_NAME = re.compile(r"log/(\d{10})(?:-(\d{10}))?\.jsonl")
_SEAL = re.compile(r"log/(\d{10})\.seal")


class Extent(NamedTuple):
    """The object that holds the segments `first` to `last`, both included."""

    first: int
    last: int

    @property
    def key(self) -> str:
        last = "" if self.first == self.last else f"-{self.last:010d}"
        return f"{PREFIX}{self.first:010d}{last}.jsonl"

    @property
    def span(self) -> int:
        """How many segments."""
        return self.last - self.first + 1

    def holds(self, other: Extent) -> bool:
        """Whether every segment of `other` is here too."""
        return self.first <= other.first and other.last <= self.last


class Segment(NamedTuple):
    """One segment as it was read. `lines` are those before the first damaged one, without line ends."""

    number: int
    lines: list[bytes]
    claim: bool = False
    kept: int | None = None
    """How many lines of the segment before count; None: all. A claim says so after it cut a torn one."""
    why: str = ""
    """What is wrong with it; empty when all of it verified."""
    torn: bool = False
    """Nothing verified after the first damaged line: a write cut short, or a damaged last record."""
    start: int = 0
    end: int = 0
    """Its place in the object's bytes."""


class _Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    log: int
    segment: int
    writer: str
    claim: bool = False
    kept: int | None = None
    lines: list[tuple[int, int]]


class _HeadLine(msgspec.Struct, frozen=True, kw_only=True):
    crc32: int
    head: msgspec.Raw


_head_line = msgspec.json.Decoder(_HeadLine)
_head = msgspec.json.Decoder(_Head)


def encode(number: int, lines: Sequence[bytes], *, writer: str, claim: bool = False, kept: int | None = None) -> bytes:
    """The bytes of a segment. `writer` tells two writers' equal lines apart. Raises ValueError for a line end in a
    line.
    """
    ended = [line + b"\n" for line in lines]
    if any(b"\n" in line for line in lines):
        raise ValueError("a line of the log must not contain a line end")
    sums = [(len(line), zlib.crc32(line)) for line in ended]
    head = msgspec.json.encode(_Head(log=FORMAT, segment=number, writer=writer, claim=claim, kept=kept, lines=sums))
    top = msgspec.json.encode(_HeadLine(crc32=zlib.crc32(head), head=msgspec.Raw(head)))
    return b"".join([top, b"\n", *ended])


def decode(data: bytes, extent: Extent) -> list[Segment]:
    """The segments in an object, in order, up to and including the first that is damaged."""
    segments: list[Segment] = []
    at = 0
    for number in range(extent.first, extent.last + 1):
        segments.append(_decode_one(data, at, number))
        at = segments[-1].end
        if segments[-1].why:
            return segments
    if at < len(data):
        segments[-1] = segments[-1]._replace(why=f"{len(data) - at} bytes too many", torn=True)
    return segments


def _decode_one(data: bytes, start: int, number: int) -> Segment:
    eol = data.find(b"\n", start)
    if eol < 0:
        return Segment(number, [], why="its first line is cut short", torn=True, start=start, end=len(data))
    try:
        top = _head_line.decode(data[start:eol])
        if zlib.crc32(top.head) != top.crc32:
            raise ValueError("its checksum differs")
        head = _head.decode(top.head)
        if (head.log, head.segment) != (FORMAT, number):
            raise ValueError(f"it says segment {head.segment} of format {head.log}")
    except ValueError as error:
        # With one line or none below, no more than the last record is lost.
        torn = data.count(b"\n", eol + 1) <= 1
        return Segment(number, [], why=f"its first line is damaged: {error}", torn=torn, start=start, end=len(data))
    at = eol + 1
    lines: list[bytes] = []
    damaged = 0
    torn = True
    for place, (length, crc) in enumerate(head.lines, start=1):
        line = data[at : at + length]
        at += length
        if len(line) != length or zlib.crc32(line) != crc:
            damaged = damaged or place
        elif damaged:
            torn = False  # a whole one after it: no torn tail
        else:
            lines.append(line[:-1])
    why = f"line {damaged} of {len(head.lines)} is damaged" if damaged else ""
    return Segment(number, lines, head.claim, head.kept, why, bool(why) and torn, start, min(at, len(data)))


def extents(keys: Iterable[str]) -> list[Extent]:
    """What the objects of a listing hold; keys that are no log objects are left out."""
    matches = (_NAME.fullmatch(key) for key in keys)
    return [Extent(int(m[1]), int(m[2] or m[1])) for m in matches if m]


def seal_key(number: int) -> str:
    """The object that says that a log was closed at this segment."""
    return f"{PREFIX}{number:010d}.seal"


def seals(keys: Iterable[str]) -> list[int]:
    """The segments at which the log was closed, by the objects of a listing, in order."""
    return sorted(int(match[1]) for key in keys if (match := _SEAL.fullmatch(key)))


def last_of(keys: Iterable[str]) -> int:
    """The last segment that must be there, by a listing, 0 for none: also if only its seal is left."""
    known = list(keys)
    return max([0, *(extent.last for extent in extents(known)), *seals(known)])


def sealed(number: int, lines: Sequence[bytes]) -> bytes:
    """The bytes of a seal: which segment is the last one, and the SHA-256 of its lines."""
    digest = hashlib.sha256(b"\n".join(lines)).hexdigest()
    return msgspec.json.encode({"segment": number, "sha256": digest}) + b"\n"


def cover(known: Iterable[Extent], after: int, end: int) -> tuple[list[Extent], int | None]:
    """The fewest objects that hold the segments after `after` up to `end`, and the first number that none holds.

    They may overlap (two writers merged differently before one was fenced): the later one's start is then repeated.
    """
    ordered = sorted(known)
    chain: list[Extent] = []
    best, i = Extent(0, 0), 0
    while after < end:
        while i < len(ordered) and ordered[i].first <= after + 1:
            best = max(best, ordered[i], key=lambda extent: extent.last)  # of equals, the one that begins first
            i += 1
        if best.last <= after:
            return chain, after + 1
        chain.append(best)
        after = best.last
    return chain, None
