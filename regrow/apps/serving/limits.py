"""Limits of a request, counted while its body arrives: bytes, values, depth, digits. Also limits
what a process holds at a time.

The cost of a body is known before it is parsed: for `[0,0,0,...` a parser allocates 400 times the
memory before it reports an error, and no other request is answered meanwhile.
"""

from __future__ import annotations

from regrow.apps.serving.served import Served

OBJECT, FIELD = 20, 5
"""How many numbers an object and one of its fields count for: pydantic takes 1 us and 600 bytes for
a model, 40 ns for a number.
"""
MOST_DEPTH = 100
MOST_DIGITS = 4300
"""Maximum digits of a number: Python's own limit."""
ROOM = 8
"""How many of the largest requests a process holds at a time."""
FREE_BYTES = 64 * 1024
"""The first bytes of a request are not counted: small ones are answered beside large ones."""
_NUMBER = bytes(one if chr(one) in "0123456789+-.eE" else 32 for one in range(256))
_OTHERS = bytes(one for one in range(256) if chr(one) not in "[]{}")


class TooMuch(Exception):
    """The request exceeds a limit; the message names it."""


class JsonCounter:
    """Counts one JSON body, part by part. `items`: its size in numbers; a text or a list counts as
    one.

    It does not check whether the body is valid JSON: the count is right up to the first error,
    where a parser stops.
    """

    def __init__(self, most_items: int) -> None:
        self.items, self._most = 1, most_items
        self._depth = self._digits = 0
        self._in_text = self._escaped = False

    def count(self, part: bytes) -> None:
        """Count a part. Raises TooMuch."""
        outside = self._outside(part)
        self.items += (
            outside.count(b",")
            + outside.count(b"[")
            + OBJECT * outside.count(b"{")
            + FIELD * outside.count(b":")
        )
        if self.items > self._most:
            raise TooMuch(
                f"the body holds more than {self._most} values (max_items), of which an object"
                f" counts for {OBJECT} and each of its fields for {FIELD}"
            )
        self._nest(outside)
        self._measure(outside)

    def _outside(self, part: bytes) -> bytes:
        """Return the part of it that is outside of strings."""
        if self._escaped:
            part, self._escaped = part[1:], not part
        if b"\\" in part:
            if (len(part) - len(part.rstrip(b"\\"))) % 2:
                part, self._escaped = part[:-1], True
            part = part.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        pieces = part.split(b'"')
        outside = pieces[self._in_text :: 2]
        self._in_text ^= len(pieces) % 2 == 0
        return b'"'.join(outside)

    def _nest(self, outside: bytes) -> None:
        opened = outside.count(b"[") + outside.count(b"{")
        if self._depth + opened <= MOST_DEPTH:
            self._depth += opened - outside.count(b"]") - outside.count(b"}")
            return
        for one in outside.translate(None, _OTHERS):
            self._depth += 1 if one in b"[{" else -1
            if self._depth > MOST_DEPTH:
                raise TooMuch(f"the body nests deeper than {MOST_DEPTH}")

    def _measure(self, outside: bytes) -> None:
        if not outside:
            return
        spaced = outside.translate(_NUMBER)
        numbers = [len(one) for one in spaced.split()]
        if numbers and spaced[:1] != b" ":
            numbers[0] += self._digits
        if max(numbers, default=0) > MOST_DIGITS:
            raise TooMuch(f"a number in the body has more than {MOST_DIGITS} digits")
        self._digits = numbers[-1] if numbers and spaced[-1:] != b" " else 0


class CsvCounter:
    """Counts the fields of a CSV body; quotes are ignored."""

    def __init__(self, most_items: int) -> None:
        self.items, self._most = 1, most_items

    def count(self, part: bytes) -> None:
        """Count a part. Raises TooMuch."""
        self.items += part.count(b",") + part.count(b"\n")
        if self.items > self._most:
            raise TooMuch(f"the body holds more than {self._most} values (max_items)")


class BudgetFull(Exception):
    """Pending requests hold so much that another one cannot be accepted."""


class Room:
    """Budget shared by the requests of a process."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0

    def reserve(self, count: int) -> None:
        """Reserve an amount. Raises BudgetFull without reserving anything."""
        if self._held + count > self._most:
            raise BudgetFull
        self._held += count

    def release(self, count: int) -> None:
        self._held -= count


class Body:
    """What a request holds: its bytes until they are released, its values until it is answered."""

    def __init__(
        self, rooms: Rooms, most_bytes: int, counting: JsonCounter | CsvCounter | None
    ) -> None:
        """Start with an empty body; `counting` None: only bytes are counted."""
        self.content = bytearray()
        self._rooms, self._most, self._counting = rooms, most_bytes, counting
        self._bytes = self._values = 0

    def add(self, part: bytes) -> None:
        """Add a part. Raises TooMuch, and BudgetFull."""
        self.content += part
        if len(self.content) > self._most:
            raise TooMuch(f"the body is larger than {self._most} bytes")
        if self._counting is not None:
            self._counting.count(part)
        if len(self.content) > FREE_BYTES:
            self._rooms.bytes_.reserve(len(part))
            self._bytes += len(part)
            if self._counting is not None:
                fresh = self._counting.items - self._values
                self._rooms.values.reserve(fresh)
                self._values += fresh

    def release(self) -> None:
        self.content = bytearray()
        self._rooms.bytes_.release(self._bytes)
        self._bytes = 0

    def close(self) -> None:
        """Release everything: the request is answered."""
        self.release()
        self._rooms.values.release(self._values)
        self._values = 0


class Rooms:
    """The budgets of a process, for models of a class."""

    def __init__(self, kind: type[Served]) -> None:
        self.bytes_, self.values = Room(ROOM * kind.max_body), Room(ROOM * kind.max_items)
