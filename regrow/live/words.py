"""What happens, in lines for people. Nothing that a user wrote reaches the terminal as control characters."""

from __future__ import annotations

from regrow.infra.prefect.events import again
from regrow.live.incidents import Absence, Loss
from regrow.live.text import duration, ends, number
from regrow.search.durations import in_words
from regrow.search.events import Ended
from regrow.search.history import History, TrialRecord
from regrow.search.planning.market import kind
from regrow.tasks.traces import one_line

START_SECONDS = 30.0
"""After so long an attempt that has not begun waits for room."""
SILENT_SECONDS = 60.0
"""So long no trial is called silent, however quick it was."""


def end(history: History, trial: TrialRecord, event: Ended, *, star: bool, like: int | None = None) -> str:
    """A trial is over; `star`: with the best value so far. `like`: a trial that failed the same way, which was told."""
    why = f" ({one_line(event.message)})" if event.message and event.outcome != "done" else ""
    why = why if like is None else f" (as trial {like} did)"
    found = f", {one_line(history.objective.name)} {number(trial.best[0])}" if trial.best else ""
    place = f"[{history.ended}/{history.total}]"
    return f"{place} trial {trial.number} {trial.state.value} at step {trial.step}{found}{' *' if star else ''}{why}"


def loss(one: Loss) -> str:
    """A trial was lost, with or without another attempt."""
    return f"trial {one.trial} {lost(one)}"


def capacity(history: History) -> str:
    """The cluster has become larger or smaller."""
    slots, what = history.slots, "worker" if history.spec.resources.ranked else "trial"
    now = f"room for {slots} {what}{ends(slots)} at a time now" if slots else "no room for a trial now: they wait for a node"
    return f"the cluster has {now}"


def waiting(attempts: int) -> str:
    """Attempts have not begun."""
    return f"{attempts} wait{'s' if attempts == 1 else ''} for room on a node"


def revival(trial: TrialRecord) -> str:
    """A failed trial is to be tried again."""
    return f"trial {trial.number}, which had failed, is {again(trial)}"


def lost(one: Loss) -> str:
    """'preempted on node-a after step 7: its node is drained'."""
    place = f" on {one_line(one.node)}" if one.node else " before it began"
    why = f": {one_line(one.message)}" if one.message else ""
    return f"{one.outcome}{place}{f' after step {one.step}' if one.node else ''}{why}"


def recovery(one: Loss) -> str:
    """A trial that was lost goes on."""
    return f"trial {one.trial} goes on {back(one)}"


def back(one: Loss) -> str:
    """'from step 6 on node-b, 2.3 s later, 1 step again'."""
    again = f", {one.again} step{ends(one.again)} again" if one.again else ""
    where = f"after step {one.back_step}" if one.back_step else "from its beginning"
    return f"{where} on {one_line(one.back_node or '?')}, {seconds(one.back_s or 0.0)} later{again}"


def driver_back(absence: Absence, trials: int) -> str:
    """The driver was gone, and another one goes on."""
    return f"the driver was lost; after {seconds(absence.seconds)} another one goes on with its {trials} trial{ends(trials)}"


def seconds(span: float) -> str:
    """2.3 s, 42 s, or 1:02:03."""
    if span < 9.95:
        return f"{span:.1f} s"
    return f"{span:.0f} s" if span < 99.5 else duration(span)


def heard(span: float, usual: float) -> str:
    """How long ago a trial reported; 'silent 4 min' after a minute and three times as long as it `usual`ly takes."""
    return f"silent {in_words(span)}" if span >= max(SILENT_SECONDS, 3 * usual) else ago(span)


def start(span: float, market: str = "") -> str:
    """How long an attempt has been waiting to begin; 'waits 4 min for spot' once that is more than a start takes."""
    return f"waits {in_words(round(span))}{f' for {market}' if market else ''}" if span >= START_SECONDS else "starts"


def moved(trial: TrialRecord) -> str:
    """An attempt waited for a machine in vain, and its trial asks for another kind, or for fewer."""
    last, before = trial.attempts[-1], trial.attempts[-2]
    if before.narrower:
        return f"trial {trial.number} asks for {last.width} worker{ends(last.width)}: {one_line(before.message)}"
    return f"trial {trial.number} asks for {kind(last.market)}: {one_line(before.message)}"


def ago(span: float) -> str:
    """How long ago, in few characters: 4s, 12:31, 3:02:10."""
    span = max(0.0, span)
    return f"{span:.0f}s" if span < 99.5 else duration(span)
