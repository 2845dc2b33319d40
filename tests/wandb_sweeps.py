"""Kinds of sweep files of W&B's, each run by `regrow run` as it is, and what its program was given.

`python -m tests.wandb_sweeps` prints a line for each. What is expected is what W&B's documentation says
that its agent does; W&B itself is not needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Seen = list[tuple[list[str], dict[str, Any], str | None]]
"""Of each run: the program's arguments, `wandb.config`, and the variable MODE."""

PROGRAM = """
import json
import os
import sys

import wandb

run = wandb.init()
with open({seen!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(run.config), os.environ.get("MODE")]) + "\\n")
for epoch in range(3):
    wandb.log({{"loss": 1 / (epoch + 1), "epoch": epoch}})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A sweep file: `parameters` and `more` of it, and whether what the runs saw is right."""

    topic: str
    parameters: dict[str, Any]
    right: Callable[[Seen], bool]
    method: str = "grid"
    more: dict[str, Any]


def kind(
    topic: str, parameters: dict[str, Any], right: Callable[[Seen], bool], **more: Any
) -> Kind:
    method = more.pop("method", "grid")
    return Kind(topic=topic, parameters=parameters, right=right, method=method, more=more)


def argv(seen: Seen) -> list[list[str]]:
    return sorted(sorted(arguments) for arguments, _, _ in seen)


def values(seen: Seen, name: str) -> list[Any]:
    return [config[name] for _, config, _ in seen]


def command(macro: str) -> list[str]:
    return ["${env}", "${interpreter}", "${program}", macro]


KINDS = (
    kind(
        "grid of values",
        {"a": {"values": [1, 2]}, "b": {"values": ["x", "y", "z"]}},
        lambda seen: argv(seen) == [[f"--a={a}", f"--b={b}"] for a in (1, 2) for b in "xyz"],
    ),
    kind(
        "grid with constants, values of all types",
        {"a": {"values": [1, 2.5, "x", True]}, "c": {"value": 7}},
        lambda seen: (
            sorted(map(repr, values(seen, "a"))) == sorted(map(repr, [1, 2.5, "x", True]))
            and values(seen, "c") == [7] * 4
        ),
    ),
    kind(
        "random, run_cap, min and max",
        {"lr": {"min": 0.1, "max": 1.0}, "n": {"min": 1, "max": 4}},
        lambda seen: (
            len(seen) == 3
            and all(0.1 <= lr <= 1 for lr in values(seen, "lr"))
            and all(n in (1, 2, 3, 4) for n in values(seen, "n"))
        ),
        method="random",
        run_cap=3,
    ),
    kind(
        "bayes with a metric",
        {"lr": {"distribution": "log_uniform_values", "min": 0.001, "max": 0.1}},
        lambda seen: len(seen) == 3 and all(0.001 <= lr <= 0.1 for lr in values(seen, "lr")),
        method="bayes",
        run_cap=3,
    ),
    kind(
        "early_terminate: hyperband",
        {"lr": {"min": 0.1, "max": 1.0}},
        lambda seen: len(seen) == 3,
        method="random",
        run_cap=3,
        early_terminate={"type": "hyperband", "min_iter": 1, "eta": 3},
    ),
    kind(
        "distributions",
        {
            "q": {"distribution": "q_uniform", "min": 0, "max": 8, "q": 2},
            "i": {"distribution": "int_uniform", "min": 1, "max": 3},
            "g": {"distribution": "normal", "mu": 10, "sigma": 0.001},
            "l": {"distribution": "log_uniform", "min": -2, "max": 0},
        },
        lambda seen: all(
            c["q"] in (0, 2, 4, 6, 8)
            and c["i"] in (1, 2, 3)
            and abs(c["g"] - 10) < 1
            and 0.13 < c["l"] <= 1
            for _, c, _ in seen
        ),
        method="random",
        run_cap=3,
    ),
    kind(
        "nested parameters",
        {"net": {"parameters": {"width": {"values": [8, 16]}, "act": {"value": "relu"}}}},
        lambda seen: (
            sorted(config["net"]["width"] for _, config, _ in seen) == [8, 16]
            and {config["net"]["act"] for _, config, _ in seen} == {"relu"}
        ),
    ),
    kind(
        "${args_no_hyphens}",
        {"a": {"values": [1, 2]}},
        lambda seen: argv(seen) == [["a=1"], ["a=2"]],
        command=command("${args_no_hyphens}"),
    ),
    kind(
        "${args_json}",
        {"a": {"values": [1, 2]}},
        lambda seen: [json.loads(one) for (one,) in argv(seen)] == [{"a": 1}, {"a": 2}],
        command=command("${args_json}"),
    ),
    kind(
        "${args_no_boolean_flags}, a flag",
        {"flag": {"values": [True, False]}, "a": {"value": 1}},
        lambda seen: argv(seen) == [["--a=1"], ["--a=1", "--flag"]],
        command=command("${args_no_boolean_flags}"),
    ),
    kind(
        "probabilities",
        {"a": {"values": [1, 2], "probabilities": [0.0001, 0.9999]}},
        lambda seen: values(seen, "a") == [2, 2, 2],
        method="random",
        run_cap=3,
    ),
    kind(
        "${env} with a variable, a name with dots",
        {"net.width": {"values": [3]}},
        lambda seen: seen[0][0] == ["--net.width=3"] and seen[0][2] == "fast",
        command=["${env}", "MODE=fast", "${interpreter}", "${program}", "${args}"],
    ),
)


def run(one: Kind, folder: Path) -> str:
    """Runs it; "right", or what went wrong."""
    seen = folder / "seen"
    (folder / "train.py").write_text(PROGRAM.format(seen=str(seen)))
    sweep = {"program": "train.py", "method": one.method, "parameters": one.parameters}
    sweep |= {"metric": {"name": "loss", "goal": "minimize"}, **one.more}
    (folder / "sweep.yaml").write_text(json.dumps(sweep, indent=1))
    done = subprocess.run(
        [sys.executable, "-m", "regrow", "run", "sweep.yaml", "--state", str(folder / "state")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        return f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
    found: Seen = [tuple(json.loads(line)) for line in seen.read_text().splitlines()]
    return "right" if one.right(found) else f"wrong: {found}"


def main() -> int:
    """Prints a line for each, and how many are right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="part of a topic")
    chosen = [one for one in KINDS if parser.parse_args().only in one.topic]
    right = 0
    for one in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            outcome = run(one, Path(folder))
        right += outcome == "right"
        print(f"{one.topic:45} {time.monotonic() - began:5.0f} s  {outcome[:600]}", flush=True)
    print(f"{right} of {len(chosen)} right")
    return int(right < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
