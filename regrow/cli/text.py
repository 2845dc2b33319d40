"""An experiment in words and tables, for a terminal. Only formatting lives here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from regrow.infra import views
from regrow.infra.places import Places
from regrow.search import cost, waste
from regrow.search.history import History, Trial


def duration(seconds: float) -> str:
    """1:02:03 or 2:03 or 0:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def value(number: Any) -> str:
    """A parameter or metric, short."""
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def number(found: float | None) -> str:
    """A metric's value; "nan" for one that is not finite, as the log has it."""
    return "nan" if found is None else f"{found:.5g}"


def ends(count: int) -> str:
    """The plural's ending."""
    return "" if count == 1 else "s"


def settings(config: Mapping[str, Any]) -> str:
    """A flat configuration in one line."""
    return " ".join(f"{k}={value(v)}" for k, v in config.items())


def config(trial: Trial) -> str:
    """The configuration that a trial has now, in one line."""
    return settings(trial.config)


def ranked(history: History) -> list[Trial]:
    """Trials, best first; those without a value last."""
    sign = -1.0 if history.spec.objective.mode == "max" else 1.0
    return sorted(history.trials, key=lambda t: (t.best is None, sign * t.best[0] if t.best else 0.0, t.number))


def counts(history: History) -> str:
    """'12 done, 3 stopped'."""
    return ", ".join(f"{n} {state.value}" for state, n in history.counts.items() if n) or "no trials yet"


def summary(history: History, places: Places, *, alive: bool, now: float) -> Iterator[str]:
    """How an experiment stands, in a few lines."""
    spec, status = history.spec, views.status(history, alive=alive)
    yield f"{spec.name} is {status}: {len(history.trials)} of {history.total} trials ({counts(history)})"
    ran = duration(history.elapsed(now if alive else None))
    yield f"{spec.objective.mode} {spec.objective.name}, ran {ran}, wasted steps {history.lost_steps}"
    yield spent(history, now if alive else history.t_last)
    for kind, lost in waste.of_all(history).items():
        yield f"  {losses(kind, lost)}"
    if history.closing is not None and history.closing.why:
        yield f"it ended because {history.closing.why}"
    if status in ("interrupted", "stopped"):
        yield f"go on with: {places.command('resume', spec.name)}"


def spent(history: History, now: float) -> str:
    """'1,080 steps, 0.3 slot-hours, cost 0.75'."""
    hours = cost.slot_hours(history, now)
    money = cost.money(history, hours)
    price = "" if money is None else f", cost {money:,.2f} at {history.spec.price_per_hour:g} an hour and slot"
    return f"{cost.steps(history):,} steps, {hours:.3g} slot-hours{price}"


def standing(history: History) -> Iterator[str]:
    """What came of a simulated experiment: it has no state to look at later."""
    why = f", because {history.closing.why}" if history.closing is not None and history.closing.why else ""
    yield f"{len(history.trials)} of {history.total} trials ({counts(history)}){why}; steps done again: {history.lost_steps}"
    for kind, lost in waste.of_all(history).items():
        yield f"  {losses(kind, lost)}"
    yield from _best(history)


def losses(kind: str, lost: waste.Waste) -> str:
    """One class of the wasted work, in words."""
    times = f"{lost.attempts} attempt{'' if lost.attempts == 1 else 's'}"
    return f"{kind}: {times}, {lost.steps} steps done again, {lost.seconds:.1f} node-seconds for nothing"


def best(history: History, places: Places) -> Iterator[str]:
    """The best configuration, as YAML that can be pasted, and where its checkpoint is."""
    view = views.best(history)
    yield from _best(history)
    if view is not None and view["checkpoint"]:
        address = places.address(f"{history.spec.name}/{view['checkpoint']}")
        yield f"  # its checkpoint: {address}"
        yield f"  # its files: {places.command('best', history.spec.name, '--save FOLDER')}"


def _best(history: History) -> Iterator[str]:
    view = views.best(history)
    if view is None:
        if history.spec.constraints and any(trial.rows for trial in history.trials):
            yield f"no step met the constraints: {', '.join(history.spec.constraints)}"
        return
    yield f"best: trial {view['trial']}, {history.spec.objective.name} {view['value']:.6g} at step {view['step']}"
    for name, setting in view["config"].items():
        yield f"  {name}: {json.dumps(setting)}"
    if front := views.front(history):
        yield f"Pareto front of {', '.join(metric.name for metric in history.spec.metrics)}, at the last steps:"
        for one in front:
            yield f"  trial {one['trial']}: {', '.join(value(number) for number in one['metrics'].values())}"
    if means := views.repeats(history):
        first = means[0]
        numbers = f"{first['mean']:.6g} +- {first['sd']:.2g} over {first['count']} repeats"
        yield f"best configuration by the mean of its repeats: {numbers} (trials {', '.join(map(str, first['trials']))})"


def failures(history: History, most: int = 3) -> Iterator[str]:
    """Tracebacks first, then which trials failed."""
    failed = [t for t in history.trials if t.failure is not None and t.state.value == "failed"]
    shown: set[str] = set()
    for trial in failed:
        attempt = trial.failure
        if attempt is None or attempt.message in shown or len(shown) >= most:
            continue
        shown.add(attempt.message)
        if attempt.trace:
            yield attempt.trace.rstrip()
        yield f"trial {trial.number} failed: {attempt.message}"
    if len(failed) > len(shown):
        yield f"{len(failed)} trials failed in all"


def ending(history: History, places: Places) -> Iterator[str]:
    """The last lines of `run`, `resume` and `watch`."""
    name = history.spec.name
    yield from failures(history)
    status = history.closed.status if history.closed else "interrupted"
    yield (
        f"{name} {status}: {len(history.trials)} of {history.total} trials ({counts(history)}) "
        f"in {duration(history.elapsed())}, wasted steps {history.lost_steps}"
    )
    if history.closing is not None and history.closing.why:
        yield f"because {history.closing.why}"
    yield spent(history, history.t_last)
    yield from best(history, places)
    if status in ("interrupted", "stopped"):
        yield f"look at it: {places.command('show', name)}, {places.command('ui', name)}"
        yield f"go on with: {places.command('resume', name)}"  # the last line
    else:
        yield f"look at it: {', '.join(places.command(verb, name) for verb in ('show', 'report', 'ui'))}"
        yield f"more trials: {places.command('resume', name, f'--trials {history.total + 10}')}"


def trials(history: History, console: Console, most: int | None = None) -> Table:
    """Trials as a table, best first; a column for each parameter where the console is wide enough, else one for all."""
    names = list(dict.fromkeys(key for trial in history.trials for key in trial.config))
    shown = ranked(history)[:most]
    wide = _trials(history, shown, {n: [value(t.config.get(n, "")) for t in shown] for n in names})
    if _width(console, wide) > console.width:
        room = max(12, console.width - _width(console, _trials(history, shown, {})) - 2)
        short = [line if len(line) <= room else line[: room - 1] + "…" for line in map(config, shown)]
        wide = _trials(history, shown, {"configuration": short})
    if len(history.trials) > len(shown):
        wide.caption = f"{len(history.trials) - len(shown)} more: regrow trials {history.spec.name}"
    return wide


def _trials(history: History, shown: Sequence[Trial], settings: Mapping[str, Sequence[str]]) -> Table:
    table = _table("trial", "state", history.spec.objective.name, "step", "steps", "attempts", *settings)
    for place, trial in enumerate(shown):
        number, step = (f"{trial.best[0]:.5g}", str(trial.best[1])) if trial.best else ("", "")
        cells = [column[place] for column in settings.values()]
        table.add_row(str(trial.number), trial.state.value, number, step, str(trial.step), str(len(trial.attempts)), *cells)
    return table


def _width(console: Console, table: Table) -> int:
    """Cells that a table would take on a console without end."""
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def points(history: History) -> Table:
    """Every step of every trial."""
    names = list(dict.fromkeys(key for trial in history.trials for row in trial.rows[:1] for key in row.metrics))
    table = _table("trial", "step", "attempt", *names)
    for point in views.points(history):
        table.add_row(*(value(point.get(n, "")) for n in ("trial", "step", "attempt", *names)))
    return table


def experiments(found: Sequence[tuple[History, bool]]) -> Table:
    """One line an experiment."""
    table = _table("name", "status", "trials", "best", "value", "ran", "wasted")
    for history, alive in found:
        view = views.best(history)
        table.add_row(
            history.spec.name, views.status(history, alive=alive), f"{len(history.trials)}/{history.total}",
            f"trial {view['trial']}" if view else "", f"{view['value']:.5g}" if view else "",
            duration(history.elapsed()), str(history.lost_steps),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
