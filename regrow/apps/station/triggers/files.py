"""Files and S3 objects that trigger a schedule: new or changed ones, once none of them has changed
for a while.

`Settling` decides, from successive listings; `listed` makes a listing.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import uuid4

from regrow.apps.station.triggers.journal import Cursor
from regrow.apps.station.triggers.payloads import is_unicode
from regrow.apps.station.triggers.trigger import GIVEN, Step, since
from regrow.infra.stores.s3 import in_bucket, is_s3
from regrow.tasks.errors import UserError
from regrow.tasks.process.disk import leads_above

SETTLE_SECONDS = 60.0
"""How long no new file may change, if the schedule does not set it."""
LOCAL_SECONDS, S3_SECONDS = 2.0, 10.0
"""Seconds between two listings."""
ABSENT_SECONDS = 24 * 3600.0
"""How long a file may be missing and reappear unchanged without counting as new, for example on a
disk that was not mounted or in a bucket that was listed partially.
"""
LIST_BYTES = 200_000
"""Maximum length of an event's list in JSON: Prefect accepts parameters of up to 512 KB."""
_MAGIC = "*?["
_NOT_UTF8 = "its name is not UTF-8, and no parameter of a flow run can be; rename it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One file.

    Attributes:
        mark: changes with its content.
        size: bytes.
        modified: seconds since the epoch.
        problem: why it cannot be passed to a run, "" if it can.

    """

    mark: str
    size: int
    modified: float
    problem: str = ""


@dataclass(slots=True)
class Settling:
    """Tracks which files are new since the last event, and since when they are unchanged. `seen`:
    paths with their marks; `settle`: seconds.
    """

    seen: Mapping[str, str]
    settle: float
    _fresh: dict[str, str] = field(default_factory=dict)
    _since: float = 0.0
    _absent: dict[str, float] = field(default_factory=dict)

    def settled(self, current: Mapping[str, Found], now: float) -> list[str]:
        """Return the new or changed files of a listing if they have settled by `now` (seconds of a
        monotonic clock), else an empty list.
        """
        fresh = {
            path: found.mark for path, found in current.items() if self.seen.get(path) != found.mark
        }
        if fresh != self._fresh:
            self._fresh, self._since = fresh, now
        self._absent = {
            path: self._absent.get(path, now) for path in self.seen if path not in current
        }
        return sorted(fresh) if now - self._since >= self.settle else []

    def gone(self, now: float) -> list[str]:
        """Return the files that have been missing so long that they would be new again."""
        return [path for path, since in self._absent.items() if now - since >= ABSENT_SECONDS]


def file_list(current: Mapping[str, Found], paths: list[str]) -> dict[str, Any]:
    """Return the list for an event, cut at its maximum length; `omitted`: how many are cut."""
    files: list[dict[str, Any]] = []
    length = 0
    for path in paths:
        one = {"path": path, "size": current[path].size, "modified": current[path].modified}
        length += len(json.dumps(one))
        if length > LIST_BYTES:
            return {"files": files, "omitted": len(paths) - len(files)}
        files.append(one)
    return {"files": files}


def fault(pattern: str) -> tuple[str, str] | None:
    """Return what keeps a pattern from matching as it is meant, and what to write; None: nothing
    does.
    """
    for part in pattern.split("/"):
        if "**" in part and part != "**":
            return "has ** beside other characters", "write data/**/*.csv for files in any folders"
        if "[" in re.sub(r"\[!?\]?[^]]*\]", "", part):
            return "has a [ without a ]", "write [abc] for one of these, [[] for the bracket itself"
        if "(?!)" in fnmatch.translate(part):
            return "has a range without any character", "write its ends in order, as in [0-9]"
    return None


def listed(pattern: str) -> dict[str, Found] | None:
    """Return the current matches of a pattern: paths, or URLs of objects.

    A folder stands for the files directly in it, an S3 prefix for all objects below it; `**`
    matches any folders. None if unknown, because the folder that the pattern begins with does not
    exist. Raises OSError, StoreError or UserError.
    """
    return _objects(pattern) if is_s3(pattern) else _files(pattern)


def _files(pattern: str) -> dict[str, Found] | None:
    full = os.path.abspath(os.path.expanduser(pattern))
    plain = re.sub(r"\[([*?[])\]", r"\1", full)  # without what is escaped
    if glob.escape(plain) == full and os.path.isdir(plain):
        full = os.path.join(full, "*")
    parts = Path(full).parts[:-1]  # all matches lie below those without a wildcard
    base = Path(*takewhile(lambda part: not any(sign in part for sign in _MAGIC), parts))
    if not base.is_dir():
        return None
    os.scandir(base).close()  # glob silently ignores a folder that it may not read
    found = {}
    for path in _matches(full):
        try:
            status = os.stat(path)
        except FileNotFoundError:  # removed in the meantime
            continue
        except OSError as error:  # such as a link to itself; the other files are still listed
            mark, why = f"error {error.errno}", f"it cannot be read: {error.strerror}"
            found[path] = Found(mark=mark, size=0, modified=0.0, problem=why)
            continue
        if stat.S_ISREG(status.st_mode):
            found[path] = Found(
                mark=f"{status.st_size}-{status.st_mtime_ns}",
                size=status.st_size,
                modified=status.st_mtime,
                problem="" if is_unicode(path) else _NOT_UTF8,
            )
    return found


def _matches(pattern: str) -> Iterator[str]:
    """Yield the paths that match. Unlike `glob`, which goes round a link to a folder above it 40
    times, and with two such links for years, `**` follows none.
    """
    if pattern.endswith("/**"):
        pattern += "/*"
    head, mark, rest = pattern.partition("/**/")
    if not mark:
        yield from glob.iglob(pattern)
        return
    for top in glob.iglob(head) if head else ["/"]:
        for folder in _folders(top):
            yield from _matches(os.path.join(glob.escape(folder), rest))


def _folders(top: str) -> Iterator[str]:
    """Yield a folder and those below it that are not hidden."""
    try:
        with os.scandir(top) as entries:
            below = [
                one.path
                for one in entries
                if one.name[0] != "." and one.is_dir() and not leads_above(one)
            ]
    except OSError:  # no folder, or one that may not be read
        return
    yield top
    for folder in below:
        yield from _folders(folder)


def _objects(pattern: str) -> dict[str, Found]:
    from fsspec.utils import glob_translate

    store, wanted = in_bucket(pattern)
    if not wanted:
        raise UserError(
            f"{pattern}: this is a bucket; write s3://bucket/prefix/*.parquet, or s3://bucket/prefix/"
        )
    plain = min(wanted.find(sign) if sign in wanted else len(wanted) for sign in _MAGIC)
    whole = plain == len(wanted)
    matches = re.compile(
        re.escape(wanted.rstrip("/")) + "(/.+)?" if whole else glob_translate(wanted)
    )
    return {
        f"{store}{key}": Found(mark=etag, size=size, modified=modified)
        for key, etag, size, modified in store.details(
            wanted.rstrip("/") if whole else wanted[:plain]
        )
        if matches.fullmatch(key)
    }


class FilesTrigger:
    """Trigger on new and changed files of one pattern."""

    def __init__(self, pattern: str, settle: float = SETTLE_SECONDS) -> None:
        self.interval = S3_SECONDS if is_s3(pattern) else LOCAL_SECONDS
        self._pattern = pattern
        self._settling = Settling(seen={}, settle=settle)

    def poll(self, cursor: Cursor) -> Step | None:
        """Make one event of what is new and has settled. The first listing is the beginning."""
        now = time.monotonic()
        if (current := listed(self._pattern)) is None:
            return None
        if not cursor[GIVEN].get("begun"):
            # Files modified later are new.
            seen = {
                path: one.mark for path, one in current.items() if one.modified <= since(cursor)
            }
            return Step(put={GIVEN: {**cursor[GIVEN], "begun": True}, **seen})
        self._settling.seen = {path: mark for path, mark in cursor.items() if path != GIVEN}
        paths = self._settling.settled(current, now)
        gone = self._settling.gone(now)
        if not paths:
            return Step(drop=gone) if gone else None
        good = [path for path in paths if not current[path].problem]
        event = {
            "kind": "files",
            "id": uuid4().hex,
            **file_list(current, good),
            "time": time.time(),
        }
        return Step(
            put={path: current[path].mark for path in paths},
            drop=gone,
            events=[event] if good else [],
            refused=[(path, current[path].problem) for path in paths if current[path].problem],
        )
