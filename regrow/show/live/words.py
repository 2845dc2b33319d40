"""Lines for people about events. Control characters in users' texts never reach the terminal."""

from __future__ import annotations

from regrow.infra.prefect.events import again
from regrow.search.durations import duration, in_words, on_clock
from regrow.search.events import Ended, Excluded, Halted, Joined, Left, Moved, Revived
from regrow.search.history import History, TrialRecord
from regrow.search.planning.market import kind
from regrow.show.live.incidents import DriverAbsence, Loss
from regrow.show.live.text import ends, number
from regrow.tasks.output.traces import one_line

START_SECONDS = 30.0
"""An attempt that has not begun after this time is shown as waiting."""
SILENT_SECONDS = 60.0
"""No trial is shown as silent before this time, however short its steps are."""


SHOWN_PERCENT = 50
"""Milestones of money and time from here on are shown."""


def end(
    history: History, trial: TrialRecord, event: Ended, *, star: bool, like: int | None = None
) -> str:
    """Describe the end of a trial; `star`: with the best value so far. `like`: a trial that failed
    with the same message, shown before.
    """
    message = trial.attempts[-1].message
    why = f" ({one_line(message)})" if message and event.outcome != "done" else ""
    why = why if like is None else f" (as trial {like} did)"
    found = f", {one_line(history.objective.name)} {number(trial.best[0])}" if trial.best else ""
    place = f"[{history.of_total(history.ended, '/')}] trial {trial.number}"
    mark = " *" if star else ""
    return f"{place} {trial.state.value} at step {trial.step}{found}{mark}{why}"


def loss(one: Loss) -> str:
    """Describe the loss of a trial, with or without another attempt."""
    return f"trial {one.trial} {lost(one)}"


def capacity(history: History) -> str:
    """Describe the cluster's new capacity."""
    slots, what = history.slots, "worker" if history.spec.resources.ranked else "trial"
    if not slots:
        return "the cluster has no room for a trial now: they wait for a node"
    return f"the cluster has room for {slots} {what}{ends(slots)} at a time now"


def arrival(event: Joined) -> str:
    """Tell that an agent has joined."""
    gpus = f", {event.gpus:g} GPU{ends(int(event.gpus))}" if event.gpus else ""
    what = f"{event.cpus:g} CPU{ends(int(event.cpus))}{gpus}"
    return f"agent {one_line(event.agent)} has joined ({what})"


def departure(event: Left) -> str:
    """Tell that an agent has left."""
    return f"agent {one_line(event.agent)} has left: {one_line(event.why)}"


def losses(count: int) -> str:
    return f"{count} loss{'' if count == 1 else 'es'}"


def waiting(attempts: int) -> str:
    return f"{attempts} wait{'s' if attempts == 1 else ''} for room on a node"


def change(event: Revived | Moved | Halted | Excluded, trial: TrialRecord) -> str:
    """Tell what was done with a trial: by the user, or to save money."""
    match event:
        case Revived():
            return f"trial {trial.number}, which had failed, is {again(trial)}"
        case Moved():
            return f"trial {trial.number} leaves {trial.attempts[-1].where}: {event.why}"
        case Halted():
            return f"the user stopped trial {trial.number}"
        case Excluded():
            what = "dropped: it does not rank" if event.excluded else "kept: it ranks again"
            return f"trial {trial.number} is {what}"


def lost(one: Loss) -> str:
    """Describe a loss: 'preempted on node-a after step 7: its node is drained'."""
    place = f" on {one_line(one.node)}" if one.node else " before it began"
    why = f": {one_line(one.message)}" if one.message else ""
    return f"{one.outcome}{place}{f' after step {one.step}' if one.node else ''}{why}"


def recovery(one: Loss) -> str:
    changed = f"with {one_line(one.changed)} " if one.changed else ""
    return f"trial {one.trial} continues {changed}{back(one)}"


def back(one: Loss) -> str:
    """Describe where it continues: 'after step 6 on node-b, 2.3 s later, 1 step again'."""
    again = f", {one.again} step{ends(one.again)} again" if one.again else ""
    where = f"after step {one.back_step}" if one.back_step else "from its beginning"
    later = duration(one.back_s or 0.0)
    return f"{where} on {one_line(one.back_node or '?')}, {later} later{again}"


def driver_back(absence: DriverAbsence, trials: int) -> str:
    """Describe another driver that continues after one was lost."""
    return (
        f"the driver was lost; after {duration(absence.seconds)} another one continues with its"
        f" {trials} trial{ends(trials)}"
    )


def last_report(span: float, usual: float) -> str:
    """Format how long ago a trial reported; 'silent 4 min' after thrice its usual step."""
    return f"silent {in_words(span)}" if span >= max(SILENT_SECONDS, 3 * usual) else ago(span)


def start(span: float, market: str = "") -> str:
    """Format how long an attempt waits to begin; 'waits 4 min for spot' after START_SECONDS."""
    if span < START_SECONDS:
        return "starts"
    return f"waits {in_words(round(span))}{f' for {market}' if market else ''}"


def moved(trial: TrialRecord) -> str:
    """Describe a trial that got no machine, and now asks for another kind, or for fewer workers."""
    last, before = trial.attempts[-1], trial.attempts[-2]
    what = f"{last.width} worker{ends(last.width)}" if before.narrower else kind(last.market)
    return f"trial {trial.number} asks for {what}: {one_line(before.message)}"


def ago(span: float) -> str:
    """Format an age in few characters: 4s, 12:31, 3:02:10."""
    span = max(0.0, span)
    return f"{span:.0f}s" if span < 99.5 else on_clock(span)
