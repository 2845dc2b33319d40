"""The log's objects: their names, their bytes, and which of them together hold the whole log. No
I/O lives here.

A segment is a head line and its lines: `{"crc32":...,"head":{...}}`, then one JSON event per line.
The head holds the length and CRC-32 of every line, so a damaged line is found without searching for
line ends. A merged object is several segments concatenated, byte for byte. A seal
(`0000000012.seal`) lies beside the segment at which the log was closed.
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
        """Number of segments."""
        return self.last - self.first + 1

    def holds(self, other: Extent) -> bool:
        """Return whether this object holds every segment of `other`."""
        return self.first <= other.first and other.last <= self.last


class Segment(NamedTuple):
    """One segment as it was read. `lines`: those before the first damaged one, without ends."""

    number: int
    lines: list[bytes]
    claim: bool = False
    kept: int | None = None
    """How many lines of the segment before it count; None: all. Set by the claim after a tear."""
    why: str = ""
    """What is wrong with the segment; empty if all of it verified."""
    torn: bool = False
    """Whether nothing verified after the first damaged line: the write was cut short, or only the
    last record is damaged.
    """
    start: int = 0
    end: int = 0
    """Where the segment begins and ends in the object's bytes."""


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


def encode(
    number: int,
    lines: Sequence[bytes],
    *,
    writer: str,
    claim: bool = False,
    kept: int | None = None,
) -> bytes:
    """Return the bytes of a segment. `writer` distinguishes equal lines of two writers. Raises
    ValueError for a line end within a line.
    """
    ended = [line + b"\n" for line in lines]
    if any(b"\n" in line for line in lines):
        raise ValueError("a line of the log must not contain a line end")
    sums = [(len(line), zlib.crc32(line)) for line in ended]
    head = msgspec.json.encode(
        _Head(log=FORMAT, segment=number, writer=writer, claim=claim, kept=kept, lines=sums)
    )
    top = msgspec.json.encode(_HeadLine(crc32=zlib.crc32(head), head=msgspec.Raw(head)))
    return b"".join([top, b"\n", *ended])


def decode(data: bytes, extent: Extent) -> list[Segment]:
    """Return the segments in an object, in order, up to and including the first damaged one."""
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
        return Segment(
            number, [], why="its first line is cut short", torn=True, start=start, end=len(data)
        )
    try:
        top = _head_line.decode(data[start:eol])
        if zlib.crc32(top.head) != top.crc32:
            raise ValueError("its checksum differs")
        head = _head.decode(top.head)
        if (head.log, head.segment) != (FORMAT, number):
            raise ValueError(f"it says segment {head.segment} of format {head.log}")
    except ValueError as error:
        # With at most one line below it, no more than the last record is lost.
        torn = data.count(b"\n", eol + 1) <= 1
        return Segment(
            number,
            [],
            why=f"its first line is damaged: {error}",
            torn=torn,
            start=start,
            end=len(data),
        )
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
            torn = False  # an intact line follows the damage, so this is no torn tail
        else:
            lines.append(line[:-1])
    why = f"line {damaged} of {len(head.lines)} is damaged" if damaged else ""
    return Segment(
        number, lines, head.claim, head.kept, why, bool(why) and torn, start, min(at, len(data))
    )


def extents(keys: Iterable[str]) -> list[Extent]:
    """Return the extents of the objects of a listing; keys that are no log objects are ignored."""
    matches = (_NAME.fullmatch(key) for key in keys)
    return [Extent(int(m[1]), int(m[2] or m[1])) for m in matches if m]


def seal_key(number: int) -> str:
    """Return the key of the seal that marks the log as closed at this segment."""
    return f"{PREFIX}{number:010d}.seal"


def seals(keys: Iterable[str]) -> list[int]:
    """Return the segments at which the log was closed, in order, given the keys of a listing."""
    return sorted(int(match[1]) for key in keys if (match := _SEAL.fullmatch(key)))


def last_of(keys: Iterable[str]) -> int:
    """Return the last segment that must exist, also if only its seal does, 0 for none."""
    known = list(keys)
    return max([0, *(extent.last for extent in extents(known)), *seals(known)])


def sealed(number: int, lines: Sequence[bytes]) -> bytes:
    """Return the bytes of a seal: the number of the last segment, and the SHA-256 of its lines."""
    digest = hashlib.sha256(b"\n".join(lines)).hexdigest()
    return msgspec.json.encode({"segment": number, "sha256": digest}) + b"\n"


def cover(known: Iterable[Extent], after: int, end: int) -> tuple[list[Extent], int | None]:
    """Return the fewest objects that hold the segments after `after` up to `end`, and the first
    number that no object holds (None: all are held).

    Objects may overlap, if two writers merged differently before one was fenced. The later object
    then repeats some segments.
    """
    ordered = sorted(known)
    chain: list[Extent] = []
    best, i = Extent(0, 0), 0
    while after < end:
        while i < len(ordered) and ordered[i].first <= after + 1:
            # Of equals, keep the one that begins first.
            best = max(best, ordered[i], key=lambda extent: extent.last)
            i += 1
        if best.last <= after:
            return chain, after + 1
        chain.append(best)
        after = best.last
    return chain, None
