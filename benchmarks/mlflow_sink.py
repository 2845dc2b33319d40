"""What recording very short trials costs: `python benchmarks/mlflow_sink.py [tracking uri] [trials]
[batch]`.

Prints wall time and CPU of this process per trial (a server's own CPU is not in it), for writing,
for the same writing again (what a crash costs), and for `load()`.
"""

import sys
import tempfile
import time
from collections.abc import Callable

from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.updates import RunUpdate, Target

PARENT = RunUpdate(key="experiment", name="digits", start_ms=1_700_000_000_000, parent=True)


def short_trial(n: int) -> RunUpdate:
    """One trial that began and ended since the last write: 6 params, 3 tags, 3 metrics."""
    start = 1_700_000_000_000 + n * 100
    return RunUpdate(
        key=f"trial-{n}",
        name=f"digits-{n:04d}",
        start_ms=start,
        params={f"param_{i}": f"{n * i / 7}" for i in range(6)},
        tags={"regrow.state": "done", "regrow.trial": str(n), "regrow.attempts": "1"},
        metrics=[(metric, n / 1000, 1, start + 40) for metric in ("accuracy", "loss", "seconds")],
        status="FINISHED",
        end_ms=start + 50,
    )


def timed(what: str, trials: int, work: Callable[[], object]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    each = f"each {1e3 * wall / trials:6.2f} ms, cpu {1e3 * cpu / trials:6.2f} ms"
    print(f"{what:24s} {wall:7.2f} s, cpu {cpu:6.2f} s; {each}")


def main(tracking_uri: str, trials: int, batch: int) -> None:
    name = f"bench-{time.time_ns()}"
    sink = MlflowSink(Target(tracking_uri=tracking_uri, experiment_name=name, experiment_id=name))

    def write() -> None:
        for first in range(0, trials, batch):
            numbers = range(first, min(first + batch, trials))
            sink.write([PARENT, *map(short_trial, numbers)], cursor=first)

    def long_run() -> None:
        points = [("loss", 1 / (i + 1), i, 1_700_000_000_000 + i) for i in range(10_000)]
        sink.write(
            [RunUpdate(key="trial-0", name="digits-0000", start_ms=0, metrics=points)], trials
        )

    timed("import, open", trials, sink.load)
    timed(f"write by {batch}", trials, write)
    timed("the same again", trials, write)
    timed("load", trials, sink.load)
    timed("one run, 10,000 points", 10_000, long_run)
    sink.close()


if __name__ == "__main__":
    uri, trials, batch = [*sys.argv[1:], *["", "1000", "50"][len(sys.argv) - 1 :]]
    with tempfile.TemporaryDirectory() as folder:
        main(uri or f"sqlite:///{folder}/mlflow.db", int(trials), int(batch))
