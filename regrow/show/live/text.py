"""Texts about an experiment, for a terminal. Only formatting lives here; tables are in `tables`."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from regrow.infra.state.notes import Notes
from regrow.infra.state.places import Places
from regrow.search.history import History, TrialRecord, cost, waste
from regrow.search.lifecycle import TrialState
from regrow.show.views import summaries
from regrow.tasks.output.traces import one_line, printable


def duration(seconds: float) -> str:
    """Format as 1:02:03, 2:03 or 0:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(seconds: float) -> str:
    """Format an age by its largest unit: '40 s', '12 min', '5 h', '3 days'."""
    for unit, length in (("day", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            count = int(seconds / length)
            return f"{count} {unit}{ends(count) if unit == 'day' else ''}"
    return f"{max(0, int(seconds))} s"


def value(number: Any) -> str:
    """Format a parameter or metric briefly."""
    return f"{number:.4g}" if isinstance(number, float) else one_line(str(number))


def number(found: float | None) -> str:
    """Format a metric's value; "nan" for None, which the log has for values that are not finite."""
    return "nan" if found is None else f"{found:.5g}"


def ends(count: int) -> str:
    """Return the plural's ending."""
    return "" if count == 1 else "s"


def pasted(setting: Any) -> str:
    """Format a value as JSON, which is YAML, without escaping the user's letters."""
    return printable(json.dumps(setting, ensure_ascii=False))


def settings(config: Mapping[str, Any]) -> str:
    """Format a flat configuration in one line."""
    return " ".join(f"{one_line(k)}={value(v)}" for k, v in config.items())


def config(trial: TrialRecord) -> str:
    """Format a trial's current configuration in one line."""
    return settings(trial.config)


def ranked(history: History) -> list[TrialRecord]:
    """Return the trials, best first; those without a value last."""
    sign = history.spec.objective.sign
    return sorted(
        history.trials,
        key=lambda t: (t.best is None, sign * t.best[0] if t.best else 0.0, t.number),
    )


def counts(history: History) -> str:
    """Format the counts by state: '12 done, 3 stopped'."""
    return (
        ", ".join(f"{n} {state.value}" for state, n in history.counts.items() if n)
        or "no trials yet"
    )


def so_far(history: History) -> str:
    """Format the progress: '2 of 40 trials ended (2 paused)'; in parentheses, the trials that have
    begun and not ended.
    """
    open_ = ", ".join(
        f"{n} {state.value}" for state, n in history.counts.items() if n and not state.final
    )
    return f"{history.ended} of {history.total} trials ended{f' ({open_})' if open_ else ''}"


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
    yield (
        f"{spec.name} is {status}: {len(history.trials)} of {history.total} trials"
        f" ({counts(history)})"
    )
    ran = duration(history.elapsed(now if alive else None))
    yield (
        f"{spec.objective.mode} {one_line(spec.objective.name)}, ran {ran}, wasted steps"
        f" {history.lost_steps}"
    )
    yield history.choice.told()
    yield spent(history, now if alive else history.t_last)
    for kind, lost in waste.of_all(history).items():
        yield f"  {losses(kind, lost)}"
    if history.closing is not None and history.closing.why:
        yield one_line(f"it ended because {history.closing.why}")
    if (line := summaries.code_line(history)) is not None:
        yield line
    yield from hollow(history, places)
    if status != "running":
        yield from retry(history, places)
    if status in ("interrupted", "stopped"):
        yield f"continue with: {places.command('resume', spec.name)}"


def spent(history: History, now: float) -> str:
    """Format the expense: '1,080 steps, 0.3 slot-hours, cost 0.75'."""
    found = cost.of(history, now)
    price = (
        ""
        if found.money is None
        else f", cost {found.money:,.2f} at {cost.prices(history)} an hour and slot"
    )
    return f"{cost.steps(history):,} steps, {found.hours:.3g} slot-hours{price}"


def standing(history: History) -> Iterator[str]:
    """Yield the result of a simulated experiment, which has no state to show later."""
    why = (
        one_line(f", because {history.closing.why}")
        if history.closing is not None and history.closing.why
        else ""
    )
    yield (
        f"{len(history.trials)} of {history.total} trials ({counts(history)}){why}; steps done"
        f" again: {history.lost_steps}"
    )
    for kind, lost in waste.of_all(history).items():
        yield f"  {losses(kind, lost)}"
    yield from _best(history)


def losses(kind: str, lost: waste.Waste) -> str:
    """Format one class of the wasted work."""
    times = f"{lost.attempts} attempt{'' if lost.attempts == 1 else 's'}"
    money = f", cost {lost.money:,.2f}" if lost.money else ""
    return (
        f"{kind}: {times}, {lost.steps} steps done again, {lost.seconds:.1f} slot-seconds for"
        f" nothing{money}"
    )


def best(history: History, places: Places) -> Iterator[str]:
    """Yield the best configuration, as YAML that can be pasted, and the address of its
    checkpoint.
    """
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
    yield (
        f"best: trial {view['trial']}, {one_line(history.spec.objective.name)} {view['value']:.6g}"
        f" at step {view['step']}"
    )
    for name, setting in view["config"].items():
        yield f"  {one_line(name)}: {pasted(setting)}"
    if front := summaries.front(history):
        yield (
            "Pareto front of"
            f" {one_line(', '.join(metric.name for metric in history.spec.metrics))}, at the last"
            " steps:"
        )
        for one in front:
            yield (
                f"  trial {one['trial']}:"
                f" {', '.join(value(number) for number in one['metrics'].values())}"
            )
    if means := summaries.repeats(history):
        first = means[0]
        numbers = f"{first['mean']:.6g} +- {first['sd']:.2g} over {first['count']} repeats"
        yield (
            f"best configuration by the mean of its repeats: {numbers} (trials"
            f" {', '.join(map(str, first['trials']))})"
        )


def failures(history: History, most: int = 3) -> Iterator[str]:
    """Yield tracebacks, then the failed trials; those with the same message are grouped."""
    alike: dict[str, list[TrialRecord]] = {}
    for trial in history.trials:
        if trial.failure is not None and trial.state.value == "failed":
            alike.setdefault(trial.failure.message, []).append(trial)
    for message, trials in list(alike.items())[:most]:
        if (first := trials[0].failure) is not None and first.trace:
            yield first.trace.rstrip()
        if len(trials) == 1:
            yield f"trial {trials[0].number} failed: {one_line(message)}"
        else:
            yield (
                f"{len(trials)} trials failed the same way: {one_line(message)} (trials"
                f" {spans([t.number for t in trials])})"
            )
    if len(alike) > most:
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
    whole = f"{len(history.trials)} of {history.total} trials ({counts(history)})"
    yield (
        f"{name} {status}: {so_far(history) if status in ('interrupted', 'stopped') else whole} "
        f"in {duration(history.elapsed())}, wasted steps {history.lost_steps}"
    )
    if history.closing is not None and history.closing.why:
        yield one_line(f"because {history.closing.why}")
    yield spent(history, history.t_last)
    yield from hollow(history, places)
    yield from best(history, places)
    if status in ("interrupted", "stopped"):
        yield f"look at it: {places.command('show', name)}, {places.command('ui', name)}"
        yield from retry(history, places)
        yield f"continue with: {places.command('resume', name)}"  # the last line
    else:
        yield (
            "look at it:"
            f" {', '.join(places.command(verb, name) for verb in ('show', 'report', 'ui'))}"
        )
        if status != "failed" and not (history.closing is not None and history.closing.why):
            yield f"more trials: {places.command('resume', name, f'--trials {history.total + 10}')}"
        yield from retry(history, places)


def hollow(history: History, places: Places) -> Iterator[str]:
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
    """Yield how many trials failed, the most frequent reason, and how to retry them; nothing if
    none failed.
    """
    failed = [history.trials[number] for number in sorted(history.by_state[TrialState.FAILED])]
    if not failed:
        return
    reasons = Counter(trial.attempts[-1].message for trial in failed)
    (most, count), *others = reasons.most_common()
    told = f"{len(failed)} of {history.total} trials failed"
    if most:
        told += f": {one_line(most)}" if not others else f", {count} of them of: {one_line(most)}"
    yield (
        f"{told}; after mending it: {places.command('resume', history.spec.name, '--retry-failed')}"
    )
