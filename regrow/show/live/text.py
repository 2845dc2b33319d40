"""Texts about an experiment, for a terminal. Only formatting lives here; tables are in `tables`."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from regrow.infra.state.notes import Notes
from regrow.infra.state.places import Places
from regrow.search.durations import on_clock
from regrow.search.history import History, TrialRecord, cost, waste
from regrow.search.history.at_bounds import at_bounds
from regrow.search.lifecycle import TrialState
from regrow.search.measured import Traffic
from regrow.search.numbers import money, readable
from regrow.search.planning import forecast, limits
from regrow.search.planning.stopping import holding
from regrow.search.samplers import size
from regrow.show.views import agents, machine_use, summaries
from regrow.tasks.output.traces import one_line, printable
from regrow.tasks.process import disk

CENT = 0.005
"""Less money outside of attempts is not shown."""


def age(seconds: float) -> str:
    """Format an age by its largest unit: '40 s', '12 min', '5 h', '3 days'."""
    for unit, length in (("day", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            count = int(seconds / length)
            return f"{count} {unit}{ends(count) if unit == 'day' else ''}"
    return f"{max(0, int(seconds))} s"


def ending_in(agent: Mapping[str, Any], now: float) -> str:
    """Format in how long an agent's machine ends; empty for one that is gone, and if unknown."""
    if agent["ends"] is None or agent["state"] in ("left", "ended"):
        return ""
    return f"in {age(agent['ends'] - now)}"


def value(number: Any) -> str:
    """Format a parameter or metric briefly."""
    return readable(number) if isinstance(number, float) else one_line(str(number))


def number(found: float | None) -> str:
    """Format a metric's value; "nan" for None, which the log has for values that are not finite."""
    return "nan" if found is None else readable(found)


def ends(count: int) -> str:
    """Return the plural's ending."""
    return "" if count == 1 else "s"


def pasted(setting: Any) -> str:
    """Format a value as JSON, which is YAML, without escaping the user's letters."""
    return printable(json.dumps(setting, ensure_ascii=False))


def settings(config: Mapping[str, Any]) -> str:
    """Format a flat configuration in one line."""
    return " ".join(f"{one_line(k)}={value(v)}" for k, v in config.items())


def counts(history: History) -> str:
    """Format the counts by state: '12 done, 3 stopped'."""
    found = ", ".join(f"{n} {state.value}" for state, n in history.counts.items() if n)
    return found or "no trials yet"


def _trials(history: History) -> str:
    return f"{history.of_total(len(history.trials))} trials ({counts(history)})"


def _why(history: History) -> str:
    return history.closing.why if history.closing is not None else ""


def so_far(history: History) -> str:
    """Format the progress: '2 of 40 trials ended (2 paused)'."""
    open_ = ", ".join(
        f"{n} {state.value}" for state, n in history.counts.items() if n and not state.final
    )
    return f"{history.of_total(history.ended)} trials ended{f' ({open_})' if open_ else ''}"


def noted(notes: Notes) -> Iterator[str]:
    """Yield the tags and notes, a line each."""
    if notes.tags:
        yield f"tags: {one_line(', '.join(notes.tags))}"
    for note in notes.texts:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(note.t))
        yield f"note of {at}: {one_line(note.text)}"


def summary(history: History, places: Places, *, alive: bool, now: float) -> Iterator[str]:
    """Yield the state of an experiment in a few lines."""
    spec, status = history.spec, summaries.status(history, alive=alive)
    yield f"{spec.name} is {status}: {_trials(history)}"
    ran = on_clock(history.elapsed(now if alive else None))
    yield (
        f"{spec.objective.mode} {one_line(spec.objective.name)}, ran {ran}, wasted steps"
        f" {history.lost_steps}"
    )
    yield history.choice.describe()
    if (decision := judged(history)) is not None:
        yield decision
    yield spent(history, now if alive else history.t_last)
    if asked := store(history):
        yield asked
    if limited := forecast.limits_text(history, now, alive=alive):
        yield limited
    for kind, lost in waste.of_all(history).items():
        yield f"  {losses(kind, lost)}"
    if why := _why(history):
        yield one_line(f"it ended because {why}")
    if (line := summaries.code_line(history)) is not None:
        yield line
    yield from agents.line(history, alive=alive)
    yield from empty_checkpoints(history, places)
    yield from narrow(history, places)
    yield from machine_use.sentences(history)
    if status != "running":
        yield from retry(history, places)
    if status in ("interrupted", "stopped"):
        yield f"continue with: {places.command('resume', spec.name)}"


def judged(history: History) -> str | None:
    """Tell from which step on trials are stopped, None without a guard."""
    first, clock = history.judged_from, history.spec.clock
    if first is None:
        return None
    early, late = (
        step if clock is None else clock.value(step) for step in (history.first_decided, first)
    )
    if first == history.spec.max_steps:
        return f"no step from {early} on is seen to tell the end: no trial is stopped early"
    if early == late:
        return f"step {early} predicts the final results: trials are judged from there on"
    return f"step {early} is not seen to tell the end: trials are first judged at {late}"


def spent(history: History, now: float) -> str:
    """Format the expense: '1,080 steps, 0.3 slot-hours, cost 0.75'."""
    found = cost.of(history, now)
    used = f"{cost.steps(history):,} steps, {found.hours:.3g} slot-hours"
    if found.money is None:
        return used
    rest = f", {money(found.rest)} outside of attempts" if found.rest >= CENT else ""
    return f"{used}, cost {money(found.money)} at {cost.prices(history)} an hour and slot{rest}"


def store(history: History) -> str:
    """Format what the store cost: 'store: cost 0.05, 12,340 writes, 210 reads, 1.2 GB sent'; "" if
    that is not counted.
    """
    found = cost.of(history, history.t_last)
    return f"store: cost {money(found.store)}, {traffic(found.traffic)}" if found.traffic else ""


def traffic(found: Traffic) -> str:
    """Format what was asked of the store: '12,340 writes, 210 reads, 1.2 GB sent'."""
    sent = f", {disk.size(found.sent)} sent" if found.sent else ""
    writes, reads = found.writes, found.reads
    return f"{writes:,} write{ends(writes)}, {reads:,} read{ends(reads)}{sent}"


def simulated(history: History) -> Iterator[str]:
    """Yield the result of a simulated experiment, which has no state to show later."""
    why = one_line(f", because {_why(history)}") if _why(history) else ""
    yield f"{_trials(history)}{why}; steps done again: {history.lost_steps}"
    for kind, lost in waste.of_all(history).items():
        yield f"  {losses(kind, lost)}"
    yield from _best(history)


def losses(kind: str, lost: waste.Waste) -> str:
    times = f"{lost.attempts} attempt{ends(lost.attempts)}"
    paid = f", cost {money(lost.money)}" if lost.money else ""
    return (
        f"{kind}: {times}, {lost.steps} steps done again, {lost.seconds:.1f} slot-seconds for"
        f" nothing{paid}"
    )


def best(history: History, places: Places) -> Iterator[str]:
    """Yield the best configuration, as YAML to paste, and its checkpoint's address."""
    view = summaries.best(history)
    yield from _best(history)
    if view is not None and view["checkpoint"]:
        address = places.address(f"{history.spec.name}/{view['checkpoint']}")
        yield f"  # its checkpoint: {address}"
        yield f"  # its files: {places.command('best', history.spec.name, '--save FOLDER')}"


def _best(history: History) -> Iterator[str]:
    view = summaries.best(history)
    if view is None:
        if history.spec.constraints and any(trial.step for trial in history.trials):
            yield one_line(f"no step met the constraints: {', '.join(history.spec.constraints)}")
        return
    metric = one_line(history.spec.objective.name)
    reached = f"{metric} {readable(view['value'])} at step {view['step']}"
    yield f"best: trial {view['trial']}, {reached}"
    if "mean" in view:
        trials = ", ".join(map(str, view["trials"]))
        count = f"{view['count']} repeat{ends(view['count'])}"
        yield f"  its configuration: {summaries.reached(view)} over {count} (trials {trials})"
    for name, setting in view["config"].items():
        yield f"  {one_line(name)}: {pasted(setting)}"
    if front := summaries.front(history):
        names = one_line(", ".join(metric.name for metric in history.spec.metrics))
        yield f"Pareto front of {names}, at the last steps:"
        for one in front:
            yield f"  trial {one['trial']}: {', '.join(map(value, one['metrics'].values()))}"


def failures(history: History) -> Iterator[str]:
    """Yield tracebacks, then the failed trials; those with the same message are grouped."""
    alike: dict[str, list[TrialRecord]] = {}
    for trial in history.trials:
        if trial.failure is not None and trial.state.value == "failed":
            alike.setdefault(trial.failure.message, []).append(trial)
    for message, trials in list(alike.items())[:3]:
        if (first := trials[0].failure) is not None and first.trace:
            yield first.trace.rstrip()
        if len(trials) == 1:
            yield f"trial {trials[0].number} failed: {one_line(message)}"
        else:
            which = f"trials {spans([t.number for t in trials])}"
            yield f"{len(trials)} trials failed the same way: {one_line(message)} ({which})"
    if len(alike) > 3:
        yield f"{sum(map(len, alike.values()))} trials failed in all, in {len(alike)} ways"


def spans(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: '0-4, 7'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def ending(history: History, places: Places) -> Iterator[str]:
    """Yield the last lines of `run`, `resume` and `watch`."""
    name = history.spec.name
    yield from failures(history)
    status = summaries.status(history, alive=False)
    cut, why = status in ("interrupted", "stopped"), _why(history)
    yield (
        f"{name} {status}: {so_far(history) if cut else _trials(history)} "
        f"in {on_clock(history.elapsed())}, wasted steps {history.lost_steps}"
    )
    if why:
        yield one_line(f"because {why}")
    yield spent(history, history.t_last)
    if asked := store(history):
        yield asked
    yield from empty_checkpoints(history, places)
    yield from best(history, places)
    yield from narrow(history, places)
    yield from machine_use.sentences(history)
    if cut:
        yield f"look at it: {places.command('show', name)}, {places.command('ui', name)}"
        yield from retry(history, places)
        yield f"continue with: {places.command('resume', name)}"  # the last line
    else:
        looks = (places.command(verb, name) for verb in ("show", "report", "ui"))
        yield f"look at it: {', '.join(looks)}"
        if status != "failed" and not why and (total := _more(history)) is not None:
            yield f"more trials: {places.command('resume', name, f'--trials {total}')}"
        yield from raised(history, places)
        yield from retry(history, places)


def _more(history: History) -> int | None:
    """Return a larger total that the experiment can have; None if it has tried everything."""
    if history.unlimited:
        return None
    repeats = history.spec.repeats
    total = -(-(history.total + 10) // repeats) * repeats
    cells = None if history.spec.own_sampler else size(history.spec.search, history.spec.setting)
    return total if cells is None or total <= cells * repeats else None


def raised(history: History, places: Places) -> Iterator[str]:
    """Yield how an experiment continues that a condition of `stop` has ended."""
    name = history.spec.name
    for key, now in holding(history.spec.stop, history, history.t_last):
        further = "null" if now is None else f"{2 * now:g}"
        change = f"--set {key}={further}"
        yield f"to continue beyond {key}: {places.command('resume', name, change)}"
    if larger := limits.further(history):
        keys = " and ".join(key for key, _ in larger)
        change = " ".join(f"--{key.removeprefix('stop.')} {more}" for key, more in larger)
        yield f"to continue beyond {keys}: {places.command('resume', name, change)}"


def narrow(history: History, places: Places) -> Iterator[str]:
    """Yield which parameters' best values lie at a bound, and the command that widens it."""
    for where, command in widened(history, places):
        yield f"{one_line(where)}; widen it: {command}"


def widened(history: History, places: Places) -> Iterator[tuple[str, str]]:
    """Yield for each parameter whose best values lie at a bound where they lie, and the command
    that writes a specification with a wider domain.
    """
    name = history.spec.name
    for one in at_bounds(history):
        domain = one.wider.to_json()
        assert isinstance(domain, dict)
        changes = " ".join(
            f"--set {shlex.quote(f'space.{one.name}.{key}={json.dumps(value)}')}"
            for key, value in domain.items()
        )
        where = f"{one.name} lies at its {one.side} bound in {one.count} of the {one.of} best"
        yield where, places.command("cp", name, f"{name}-wider.yaml {changes}")


def empty_checkpoints(history: History, places: Places) -> Iterator[str]:
    """Yield how many trials keep a checkpoint that holds no data; nothing if none does."""
    found = [
        trial.number
        for trial in history.trials
        if any(kept.size == 0 for kept in trial.checkpoints.values())
    ]
    if found:
        whose = f"trial {found[0]}" if len(found) == 1 else f"trials {spans(found)}"
        yield (
            f"the checkpoints of {whose} hold no data (0 bytes); see"
            f" {places.command('logs', history.spec.name, str(found[0]))}"
        )


def retry(history: History, places: Places) -> Iterator[str]:
    """Yield how many trials failed, the usual reason, and how to retry them, if any did."""
    failed = [history.trials[number] for number in sorted(history.by_state[TrialState.FAILED])]
    if not failed:
        return
    reasons = Counter(trial.attempts[-1].message for trial in failed)
    (most, count), *others = reasons.most_common()
    note = f"{len(failed)} of {len(history.trials)} trials failed"
    if most:
        note += f": {one_line(most)}" if not others else f", {count} of them of: {one_line(most)}"
    yield (
        f"{note}; after mending it: {places.command('resume', history.spec.name, '--retry-failed')}"
    )
