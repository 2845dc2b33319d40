"""The live view of a running experiment: a table in a terminal, plain lines elsewhere. It follows the log, nothing else."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from regrow.cli import text
from regrow.search.events import AnyEvent, Closing, Decided, Ended, Opened, decode
from regrow.search.history import History

REFRESH_SECONDS = 0.5
RATE_SECONDS = 60.0
"""The window over which the rate of trials is measured."""
MOST_ROWS = 8


class Live:
    """Follows an experiment's log while it runs and shows it on a console."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._history = History()
        self._ends: deque[float] = deque()
        self._notes: deque[str] = deque(maxlen=4)
        self._best: int | None = None
        self._fresh = False

    def announce(self, line: str) -> None:
        """Prints a line before the experiment begins."""
        if not self._quiet:
            self._console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def watch(self, coordinator: Any) -> Iterator[None]:
        """Shows the experiment within the block."""
        if self._quiet:
            yield
            return
        self._history = History()  # a second coordinator's log, after the cluster was lost, is read from its start as well
        done = threading.Event()
        screen = RichLive(
            console=self._console, refresh_per_second=4, get_renderable=self._render, transient=True
        ) if self._console.is_terminal else None
        thread = threading.Thread(target=self._follow, args=(coordinator, done), name="regrow-live", daemon=True)
        thread.start()
        try:
            if screen is not None:
                with screen:
                    yield
            else:
                yield
        finally:
            done.set()
            thread.join(timeout=5.0)

    def _follow(self, coordinator: Any, done: threading.Event) -> None:
        import ray

        after = 0
        while True:
            last = done.is_set()
            try:
                segments = ray.get(coordinator.follow.remote(after, 0.0 if last else 1.0), timeout=3.0)
            except ray.exceptions.GetTimeoutError:  # busy, or its cluster is gone
                if last:
                    return
                continue
            except ray.exceptions.RayError:
                return
            for number, lines in segments:
                after = number
                for line in lines:
                    self._take(decode(line))
            self._fresh = True
            if last:
                return
            done.wait(REFRESH_SECONDS)

    def _take(self, event: AnyEvent) -> None:
        history = self._history
        history.apply(event)
        if isinstance(event, Opened) and event.by == "driver":
            self._fresh = False
            self._ends.clear()
        if isinstance(event, Ended) and history.trials[event.trial].state.final:
            self._ends.append(event.t)
        if (note := self._note(event)) is not None:
            if self._console.is_terminal:
                self._notes.append(note)
            elif history.opened is not None and event.t >= history.opened.t:
                self._console.print(note, markup=False, soft_wrap=True)

    def _note(self, event: AnyEvent) -> str | None:
        """A line for what a person wants to read as it happens."""
        history = self._history
        match event:
            case Ended():
                trial = history.trials[event.trial]
                why = f" ({event.message})" if event.message and event.outcome != "done" else ""
                found = f", {history.spec.objective.name} {trial.best[0]:.5g}" if trial.best else ""
                count = sum(len(history.by_state[s]) for s in history.by_state if s.final)
                star = " *" if history.best == event.trial and self._best != event.trial else ""
                self._best = history.best if star else self._best
                return f"[{count}/{history.total}] trial {event.trial} {trial.state.value} at step {trial.step}{found}{star}{why}"
            case Closing():
                return f"ending: {event.why}"
            case Decided() | _:
                return None

    # ---- the table ---------------------------------------------------------------------------------------------------

    def _render(self) -> RenderableType:
        history = self._history
        if not self._fresh or history.opened is None:
            return Text("starting ...", style="dim")
        spec, now = history.spec, time.time()
        final = sum(len(numbers) for state, numbers in history.by_state.items() if state.final)
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(spec.name, style="bold"), ProgressBar(total=history.total, completed=final, width=24),
            f"{final}/{history.total}", self._pace(now, final), text.duration(history.elapsed(now)),
        )
        parts: list[RenderableType] = [head, Text(text.counts(history), style="dim")]
        running = [history.trials[n] for n in sorted(history.running)][:MOST_ROWS]
        if running:
            parts += [Text("running", style="bold"), self._rows(running, "step")]
        best = [t for t in text.ranked(history) if t.best is not None][:5]
        if best:
            parts += [Text(f"best by {spec.objective.name} ({spec.objective.mode})", style="bold"), self._rows(best, "best")]
        parts += [Text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in self._notes]
        return Group(*parts)

    def _rows(self, trials: list[Any], kind: str) -> Table:
        spec = self._history.spec
        table = Table.grid(padding=(0, 2))
        for trial in trials:
            if kind == "step":
                row = trial.rows[-1].metrics.get(spec.objective.name) if trial.rows else None
                shown = "" if row is None else f"{row:.5g}"
                step = f"step {trial.step}" + (f"/{spec.max_steps}" if spec.max_steps else "")
            else:
                shown, step = f"{trial.best[0]:.5g}", f"step {trial.best[1]}"
            attempt = f"attempt {len(trial.attempts)}" if len(trial.attempts) > 1 else trial.state.value
            table.add_row(
                f"  {trial.number:>4}", step, shown, attempt,
                Text(text.config(trial), style="dim", no_wrap=True, overflow="ellipsis"),
            )
        return table

    def _pace(self, now: float, final: int) -> str:
        while self._ends and now - self._ends[0] > RATE_SECONDS:
            self._ends.popleft()
        if len(self._ends) < 2:
            return ""
        rate = (len(self._ends) - 1) / max(now - self._ends[0], 1e-3)
        left = (self._history.total - final) / rate
        return f"{rate * 60:.0f} trials/min, {text.duration(left)} left"
