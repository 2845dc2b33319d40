"""Checkpoints to an S3 server: how long `report` blocks, how fast they are stored, what a clone
costs.

    python benchmarks/checkpoint.py --json checkpoint.json

On one real server (SeaweedFS on loopback, started for this), turn by turn: our writer, the same
upload without a writer (what a synchronous `report` would wait for), s3fs's own `put`, and Ray
Tune's way (`StorageContext`, through pyarrow, in the training thread). 1, 64 and 512 MB in one
file, and 1,000 files of 4 KB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regrow.infra.local import s3_server
from regrow.infra.stores.s3 import open_s3
from regrow.tasks.checkpoint.saving import clone, restore, save
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.ports.store import Store

MB = 1 << 20


def plant(folder: Path, size: int, files: int) -> Path:
    """A checkpoint of so many bytes in so many files, which no two calls have in common."""
    folder.mkdir(parents=True)
    for number in range(files):
        with (folder / f"part-{number:04d}.bin").open("wb") as file:
            left = size // files
            while left > 0:
                file.write(os.urandom(min(left, 16 * MB)))
                left -= 16 * MB
    return folder


def timed(call: Callable[[], object]) -> float:
    """Seconds that `call` takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def blocks(store: Store, source: Path) -> tuple[float, float]:
    """Seconds that a report waits (writing the snapshot, as `save` would, and handing it over), and
    until it is durable.
    """
    writer = CheckpointWriter(store, trial=0, attempt=int(uuid.uuid4().int % 1_000_000))
    start = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="regrow-snapshot-", dir=source.parent))
    for file in source.iterdir():
        shutil.copyfile(file, folder / file.name)
    writer.submit(folder, 1)
    blocked = time.perf_counter() - start
    writer.drain()
    whole = time.perf_counter() - start
    writer.close()
    assert writer.results(), writer.errors()
    return blocked, whole


def synchronous(store: Store, source: Path) -> float:
    """The same upload without anything beside it."""
    return timed(
        lambda: save(store, source, trial=1, attempt=int(uuid.uuid4().int % 1_000_000), step=1)
    )


def by_s3fs(server: s3_server.S3Server, source: Path) -> float:
    """s3fs's own recursive put."""
    import s3fs

    client = s3fs.S3FileSystem(endpoint_url=server.endpoint)
    return timed(
        lambda: client.put(f"{source}/", f"{server.bucket}/raw/{uuid.uuid4().hex}/", recursive=True)
    )


def by_tune(server: s3_server.S3Server, source: Path) -> float:
    """What `tune.report(checkpoint=...)` does, in the training thread: a copy through pyarrow's
    file system.
    """
    import pyarrow.fs
    from ray.train._internal.storage import _upload_to_fs_path

    keys = dict(
        line.split(" = ") for line in server.credentials.read_text().splitlines() if " = " in line
    )
    target = pyarrow.fs.S3FileSystem(
        access_key=keys["aws_access_key_id"],
        secret_key=keys["aws_secret_access_key"],
        endpoint_override=server.endpoint.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
    )
    place = f"{server.bucket}/tune/{uuid.uuid4().hex}"
    return timed(lambda: _upload_to_fs_path(local_path=str(source), fs=target, fs_path=place))


def measure(
    server: s3_server.S3Server, store: Store, size: int, files: int, rounds: int
) -> dict[str, float]:
    """Medians of the rounds, in seconds."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            source = plant(Path(folder, str(turn), "source"), size, files)
            blocked, whole = blocks(store, source)
            times = {
                "report blocks": blocked,
                "durable after": whole,
                "synchronous": synchronous(store, source),
            }
            times |= {"s3fs": by_s3fs(server, source), "Ray Tune blocks": by_tune(server, source)}
            for name, seconds in times.items():
                found.setdefault(name, []).append(seconds)
            shutil.rmtree(source.parent)
    return {name: statistics.median(values) for name, values in found.items()}


def cloned(store: Store, size: int, rounds: int) -> dict[str, float]:
    """A population-based clone of a checkpoint of so many bytes, beside copying it (restore and
    save).
    """
    with tempfile.TemporaryDirectory() as folder:
        source = plant(Path(folder, "source"), size, 1)
        original = save(store, source, trial=2, attempt=1, step=1).manifest
        shutil.rmtree(source)
        clones = [
            timed(lambda n=n: clone(store, original, trial=3, attempt=n, step=1))  # type: ignore[misc]
            for n in range(1, rounds + 1)
        ]

        def copy() -> None:
            restore(store, [original], Path(folder, "copy"))
            save(store, Path(folder, "copy"), trial=4, attempt=1, step=1)

        return {"clone": statistics.median(clones), "copy": timed(copy)}


def main() -> None:
    """Measures, prints a line each, writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--largest", type=int, default=512, help="MB")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="s3-", ignore_cleanup_errors=True) as folder:
        server, _ = s3_server.start(Path(folder, "s3"))
        os.environ |= server.environment()
        try:
            store = open_s3(f"s3://{server.bucket}/bench")
            works = [
                ("1 MB", MB, 1),
                ("64 MB", 64 * MB, 1),
                (f"{options.largest} MB", options.largest * MB, 1),
            ]
            for name, size, files in [*works, ("1,000 x 4 KB", 1000 * 4096, 1000)]:
                t = report[name] = measure(server, store, size, files, options.rounds)
                print(
                    f"{name:>13}: report blocks {t['report blocks']:.3f} s,"
                    f" {t['report blocks'] / t['synchronous']:.2f} of a synchronous upload"
                    f" ({t['synchronous']:.2f} s); Ray Tune blocks {t['Ray Tune blocks']:.2f} s,"
                    f" {t['Ray Tune blocks'] / t['report blocks']:.1f} times longer; s3fs put"
                    f" {t['s3fs']:.2f} s, ours at {t['s3fs'] / t['synchronous']:.0%} of its rate"
                )
            c = report["clone"] = cloned(store, options.largest * MB, 5)
            print(
                f"clone of {options.largest} MB: {c['clone']:.3f} s; a copy takes {c['copy']:.1f} s"
            )
        finally:
            s3_server.stop(server.folder, at_once=True)
    if options.json:
        machine = {
            "python": platform.python_version(),
            "load": Path("/proc/loadavg").read_text().split()[0],
        }
        options.json.write_text(json.dumps({"machine": machine, "seconds": report}, indent=1))


if __name__ == "__main__":
    main()
