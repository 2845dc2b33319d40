"""The report of a big experiment: seconds to make it, its size, how soon it is drawn, how smoothly
it scrolls.

    python benchmarks/report.py --trials 1000 --steps 100 --json report.json

Beside it Optuna's own figures of the same study, those that answer the same questions, written into
one page with Plotly's `write_html`. The history is simulated; both pages are opened in Chromium
without a network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna

from regrow.infra.log.rows import LogRows
from regrow.infra.state.places import Places
from regrow.search.events import Reported
from regrow.search.history import History
from regrow.search.planning.simulator import Availability, FunctionObjective, simulate
from regrow.search.spec import Spec
from regrow.show.exports.optuna_study import study
from regrow.show.report.report import html

SPACE = {
    "lr": {"loguniform": [1e-4, 1e-1]},
    "model": {"hidden": {"int": [16, 128]}, "layers": {"int": [1, 4]}},
    "optimizer": {"choice": ["sgd", "adam", "lion"]},
    "momentum": {"uniform": [0.5, 0.99], "when": {"optimizer": "sgd"}},
}
WORKERS = 8
CHROMIUM = shutil.which("chromium")


def noise(*of: object) -> float:
    """Between 0 and 1, the same for the same arguments."""
    return int.from_bytes(hashlib.blake2s(repr(of).encode(), digest_size=4).digest(), "big") / 2**32


def curve(config: Mapping[str, Any], step: int) -> dict[str, float]:
    """A learning curve that depends on the configuration as curves do."""
    best = 0.93 - 0.08 * (math.log10(config["lr"]) + 2.3) ** 2 + 0.0003 * config["model"]["hidden"]
    accuracy = best * (1 - math.exp(-0.3 * step**0.6)) + 0.02 * noise(config["lr"], step)
    loss = -math.log(min(0.999, max(0.001, accuracy)))
    return {"accuracy": accuracy, "loss": loss, "seconds": 0.1 + config["model"]["hidden"] / 500}


def experiment(trials: int, steps: int, schedule: Any) -> LogRows:
    """A simulated experiment on eight machines, each of which is away several times."""
    spec = Spec.parse(
        {
            "name": "report",
            "trainable": "work.py:train",
            "metric": "accuracy",
            "mode": "max",
            "space": SPACE,
            "search": "random",
            "schedule": schedule,
            "trials": trials,
            "max_steps": steps,
            "checkpoint": {"every_steps": 5},
        }
    )
    span = trials * steps / WORKERS
    machines = [
        Availability(changes=(0.0, *sorted(span * noise("up", n, k) for k in range(6))))
        for n in range(WORKERS)
    ]
    done = simulate(
        spec, FunctionObjective(function=curve, spec=spec), workers=WORKERS, availability=machines
    )
    return LogRows(
        done.history, lambda: (event for event in done.events if isinstance(event, Reported))
    )


def optunas(history: History) -> str:
    """Optuna's figures in one page."""
    told = study(history)
    draw = optuna.visualization
    figures = [
        draw.plot_optimization_history(told),
        draw.plot_intermediate_values(told),
        draw.plot_parallel_coordinate(told),
        draw.plot_param_importances(told),
        draw.plot_slice(told),
        draw.plot_timeline(told),
    ]
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=number == 0)
        for number, figure in enumerate(figures)
    ]
    return f"<!doctype html><meta charset=utf-8><body>{''.join(parts)}</body>"


WATCH = """
window.tasks = []; window.shifts = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.tasks.push([one.startTime, one.duration]);
})
  .observe({ type: "longtask", buffered: true });
"""
FRAMES = """
async () => {
  const end = document.documentElement.scrollHeight - innerHeight, frames = [];
  let before = performance.now();
  const began = before;
  for (let n = 1; n <= 120; n += 1) {
    window.scrollTo(0, end * n / 120);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - before);
    before = now;
  }
  await new Promise((done) => setTimeout(done, 300));
  return { frames, tasks: window.tasks.filter(([at]) => at >= began).map(([, took]) => took) };
}
"""


def browse(page: str, drawn: str, folder: Path) -> dict[str, float]:
    """Opens a page and scrolls through it. `drawn` selects something once all its figures are
    there.
    """
    from playwright.sync_api import sync_playwright

    file = folder / "page.html"
    file.write_text(page)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_context(viewport={"width": 1400, "height": 1000}, offline=True).new_page()
        tab.add_init_script(WATCH)
        start = time.perf_counter()
        tab.goto(file.as_uri(), timeout=300_000)
        loaded = time.perf_counter() - start
        tab.wait_for_selector(drawn, state="attached", timeout=300_000)
        whole = time.perf_counter() - start
        longest = max(tab.evaluate("window.tasks.map(([, took]) => took)"), default=0.0)
        elements = tab.evaluate("document.querySelectorAll('*').length")
        found = tab.evaluate(FRAMES)
        browser.close()
    frames = sorted(found["frames"])
    return {
        "readable_s": loaded,
        "drawn_s": whole,
        "longest_task_while_drawing_ms": longest,
        "elements": elements,
        "frame_p50_ms": frames[len(frames) // 2],
        "frame_p95_ms": frames[int(0.95 * len(frames))],
        "frame_worst_ms": frames[-1],
        "long_tasks_while_scrolling": len(found["tasks"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--schedule", default="fifo", help="such as asha, pbt")
    parser.add_argument(
        "--rival", action=argparse.BooleanOptionalAction, default=True, help="Optuna's figures, too"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    start = time.perf_counter()
    rows = experiment(options.trials, options.steps, options.schedule)
    print(
        f"simulated {options.trials} trials of {options.steps} steps in"
        f" {time.perf_counter() - start:.1f} s",
        flush=True,
    )
    history, places = rows.history, Places.at(None)
    sides: dict[str, tuple[Callable[[], str], str]] = {
        "regrow": (
            lambda: html(rows, places, alive=False, now=history.t_last),
            "body:not(:has(.plot:not([data-drawn])))",
        )
    }
    if options.rival:
        sides["optuna"] = (
            lambda: optunas(history),
            "body:not(:has(.plotly-graph-div:not(:has(.main-svg))))",
        )
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "trials": options.trials,
        "steps": options.steps,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, drawn) in sides.items():
            start, cpu = time.perf_counter(), time.process_time()
            page = make()
            numbers = {
                "made_s": time.perf_counter() - start,
                "made_cpu_s": time.process_time() - cpu,
            }
            numbers["size_mb"] = len(page.encode()) / 1e6
            numbers |= browse(page, drawn, Path(folder))
            found[name] = {key: round(value, 2) for key, value in numbers.items()}
            print(
                f"{name:7} " + ", ".join(f"{key} {value:g}" for key, value in found[name].items()),
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
