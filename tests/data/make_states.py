"""Makes a state root with experiments of every kind of ending, by real runs, and packs it: what
later versions must still open.

    python -m tests.data.make_states tests/data/states-0.1.0.tar.gz

The archive holds `work/` (specifications and what they run), `state/` (log, checkpoints and output
of each experiment; not the embedded servers' files, which regrow makes anew) and `said/NAME/` (what
the version that made it said of each). Archives are never made again: a new one, of another
version, goes beside the old ones.
"""

from __future__ import annotations

import gzip
import io
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.data import KINDS, SAID
from tests.system.conftest import TRAIN, Desk, await_no_process, desk_in

WAITS = """
import json, os, signal, time
from pathlib import Path

GO = Path(__file__).with_name("go")


def train(trial):
    total = json.loads((trial.restored / "total").read_text()) if trial.restored else 0.0
    for step in trial.steps():
        if DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        while WAITS and not GO.exists():
            time.sleep(0.05)
        total += trial.config["x"]
        trial.report({"score": total}, checkpoint=lambda folder: (folder / "total").write_text(json.dumps(total)))
"""
"""Waits for a file where it is to be cut, so that it is cut there however quick the machine is."""
QUICK = """
import math


def train(trial):
    for step in trial.steps():
        trial.report({"score": trial.config["x"] * (1 - math.exp(-step / 4)), "loss": math.nan if step == 2 else 1 / step})
"""
FAILS = """
def train(trial):
    for step in trial.steps():
        if trial.number == 1 and step == 2:
            raise ValueError("trial 1 fails at step 2")
        trial.report({"score": trial.config["x"] * step}, checkpoint=lambda folder: (folder / "step").write_text(str(step)))
"""
SCRIPT = """
import json, os, sys
from pathlib import Path

import regrow as rg

weight = 0.0
for epoch in range(1, int(sys.argv[2]) + 1):
    weight -= float(sys.argv[1]) * 2 * (weight - 3.0)
    Path(os.environ["REGROW_CHECKPOINT"], "weight").write_text(json.dumps(weight))
    print(f"epoch {epoch} of trial {os.environ['REGROW_TRIAL']}")
    rg.report({"loss": (weight - 3.0) ** 2})
"""
SPACE = {
    "x": {"loguniform": [1.0e-3, 1.0]},
    "model": {"layers": {"int": [1, 4]}, "rate": {"quniform": [0.0, 1.0, 0.1]}},
    "optimizer": {"choice": ["sgd", "adam"]},
    "momentum": {"uniform": [0.5, 0.99], "when": {"optimizer": "sgd"}},
    "size": 3,
}


def finished(desk: Desk, name: str) -> None:
    """Every domain of a space; ran to its end, and was then resumed with a higher total."""
    desk.run("run", spec(desk, name, space=SPACE))
    desk.run("resume", name, "--trials", 6)


def asha(desk: Desk, name: str) -> None:
    """Stopped trials, values that are not finite, and a log long enough to be compacted."""
    desk.run(
        "run",
        spec(
            desk,
            name,
            train=QUICK,
            schedule={"asha": {"reduction_factor": 3}},
            trials=100,
            max_steps=9,
        ),
    )
    assert list((desk.folder / ".regrow" / name / "log").glob("*-*.jsonl")), (
        "no segments were merged"
    )


def pbt(desk: Desk, name: str) -> None:
    """Trials that continued as clones of others."""
    schedule = {"pbt": {"perturbation_interval": 2, "quantile_fraction": 0.5}}
    desk.run("run", spec(desk, name, schedule=schedule, max_steps=8, trials=5, concurrency=1))
    assert any(
        event.get("verdict") == "restart" and event.get("source") is not None
        for event in desk.events(name)
    )


def paused(desk: Desk, name: str) -> None:
    """Interrupted by `regrow stop` while trials were held for their next rung."""
    train = WAITS.replace("DIES", "False").replace("WAITS", "trial.number >= 7")
    process = desk.start(
        "run", spec(desk, name, train=train, schedule="hyperband", trials=14, max_steps=9)
    )
    desk.await_events(name, "decided", 7, process)
    stop = desk.start("stop", name)
    desk.await_events(name, "closing", 1, process)
    (desk.folder / "go").touch()
    stop.communicate()
    process.communicate()
    (desk.folder / "go").unlink()
    assert process.returncode == 3, process.returncode
    assert desk.show(name)["counts"]["paused"] > 2


def failed(desk: Desk, name: str) -> None:
    """One trial of four raised."""
    desk.run("run", spec(desk, name, train=FAILS, checkpoint={"every_steps": 1}))


def killed(desk: Desk, name: str) -> None:
    """A worker was killed, later the driver, with two trials under way whose checkpoints are in the
    log, which has no end.
    """
    train = WAITS.replace("DIES", "(trial.number, trial.attempt, step) == (0, 1, 3)")
    train = train.replace("WAITS", "trial.number >= 3 and step == 3")
    process = desk.start(
        "run", spec(desk, name, train=train, trials=5, max_steps=4, checkpoint={"every_steps": 1})
    )
    # four of each of the first three trials, two of each of the others, if none is done again
    count = 16
    while True:
        desk.await_events(name, "saved", count, process)
        saved = [
            (event["trial"], event["step"])
            for event in desk.events(name)
            if event["event"] == "saved"
        ]
        if {(3, 2), (4, 2)} <= {*saved}:
            break
        count = len(saved) + 1
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert await_no_process(desk.folder) == []
    assert desk.events(name)[-1]["event"] != "closed"


def command(desk: Desk, name: str) -> None:
    """A script as it is in the place of a trainable."""
    (desk.folder / "fit.py").write_text(SCRIPT)
    words = ["python", "fit.py", "{lr}", "{max_steps}"]
    space = {"lr": {"loguniform": [0.01, 1.0]}}
    desk.run(
        "run",
        spec(desk, name, trainable=None, command=words, space=space, metric="loss", mode="min"),
    )


MAKERS: tuple[Callable[[Desk, str], None], ...] = (
    finished,
    asha,
    pbt,
    paused,
    failed,
    killed,
    command,
)


def spec(
    desk: Desk, name: str, *, train: str = TRAIN, seconds: float = 0.02, **changes: Any
) -> Path:
    """Writes NAME.yaml and NAME.py, which no other experiment's changes."""
    (desk.folder / f"{name}.py").write_text(train.replace("SECONDS", str(seconds)))
    return desk.write(name, **{"trainable": f"{name}.py:train", **changes})


def pack(desk: Desk, archive: Path) -> None:
    """Files in order, without owners or times, so that the archive is as small as it can be and
    nobody's.
    """
    folders = {"work": desk.folder, "state": desk.folder / ".regrow", "said": desk.folder / "said"}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, folder in folders.items():
            for file in sorted(folder.rglob("*")):
                inside = file.relative_to(folder)
                hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
                if hidden or not file.is_file() or (name == "work" and inside.parts[0] == "said"):
                    continue
                entry = tarfile.TarInfo(f"{name}/{inside}")
                entry.size = file.stat().st_size
                tar.addfile(entry, io.BytesIO(file.read_bytes()))
    archive.write_bytes(gzip.compress(content.getvalue(), mtime=0))


def main() -> None:
    archive = Path(sys.argv[1]).resolve()
    if archive.exists():
        sys.exit(f"{archive} is there already")
    with (
        tempfile.TemporaryDirectory(prefix="regrow-states-") as folder,
        desk_in(Path(folder)) as desk,
    ):
        for name, make in zip(KINDS, MAKERS, strict=True):
            make(desk, name)
            said = desk.folder / "said" / name
            said.mkdir(parents=True)
            for file, (word, *options) in SAID.items():
                (said / file).write_text(desk.run(word, name, *options).stdout)
            print(f"{name}: {len(desk.events(name))} events")
        (desk.folder / "go").touch()  # nothing waits any more when it continues
        (desk.folder / "work.py").unlink()  # the desk's own, which none of them runs
        pack(desk, archive)
    print(f"{archive}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()
