"""What an estimate is made of: curves and durations, of earlier experiments or of a table, and the
machines that a cluster file offers, with their prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from regrow.infra.clusters.description import Cluster, Kubernetes, OnVms, Pods, Slurm, Ssh
from regrow.infra.clusters.prices import Prices
from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.search.bounds import MOST_TOGETHER
from regrow.search.errors import SpecError
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.search.planning.curves import RecordedCurve, completed
from regrow.search.planning.estimating import Offered, Timing
from regrow.search.planning.learning import comparable
from regrow.search.planning.machines import Machine
from regrow.search.spec import Spec
from regrow.show.exports.recorded import RecordedTable
from regrow.tasks.errors import RegrowError, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What an estimate is made of.

    Attributes:
        curves: those of stopped trials are continued as `completed` says.
        timing: durations apart from those of steps.
        names: where the curves are from, for people, with their number.
        stopped: how many of the trials were stopped before their end.

    """

    curves: Sequence[RecordedCurve]
    timing: Timing
    names: Sequence[tuple[str, int]]
    stopped: int = 0


def from_table(path: Path, spec: Spec, *, scale: float) -> Sources:
    """Return the curves of a table; see `RecordedTable`. Raises UserError."""
    curves = RecordedTable(path, spec, scale=scale).curves
    return Sources(curves=curves, timing=Timing(), names=[(path.name, len(curves))])


def from_experiments(
    places: Places, spec: Spec, names: Sequence[str], *, scale: float, key: str = "--from"
) -> Sources:
    """Return the curves of experiments: of these or, without names, of all in the state root that
    have these parameters and this metric. Raises SpecError and UserError if there are none.
    """
    found = [(name, replay(places.known(name), name)) for name in names]
    if not names:
        for name in places.experiments():
            with suppress(RegrowError, SpecError, msgspec.MsgspecError):
                found.append((name, replay(places.known(name), name)))
    curves: list[RecordedCurve] = []
    startups: list[float] = []
    warm_ups: list[float] = []
    saves: list[float] = []
    used: list[tuple[str, int]] = []
    for name, history in found:
        if history.created is None:
            continue
        try:
            own = list(_curves(history, spec, name, key, scale=scale))
        except SpecError:
            if names:
                raise
            continue
        if own:
            curves += own
            used.append((name, len(own)))
            startups += _startups(history)
            warm_ups += [over for trial in history.trials for over in _steps(trial)[1]]
            saves += history.pace.saves
    if not curves:
        if names:
            listed = ", ".join(names)
            raise UserError(f"{key} {listed}: no trial has reported a value in this space")
        raise UserError(
            f"no experiment in {places.root} has these parameters and this metric; run a few"
            " trials first with --pilot 3, or name what is like it with --from NAME or --table FILE"
        )
    stopped = sum(not curve.whole for curve in curves)
    steps = spec.max_steps or max(len(curve.rows) for curve in curves)
    return Sources(
        curves=completed(curves, spec.objective.name, steps),
        timing=Timing(
            startup=(sorted(startups)[len(startups) // 4] if startups else 0.0)
            + (median(warm_ups) if warm_ups else 0.0),
            save=median(saves) if saves else None,
        ),
        names=used,
        stopped=stopped,
    )


def _curves(
    history: History, spec: Spec, name: str, key: str, *, scale: float
) -> Iterator[RecordedCurve]:
    needed = {metric.name for metric in spec.metrics} | {limit.metric for limit in spec.limits}
    for trial, config in comparable(history, spec, name, key):
        rows = [
            {metric: value for metric, value in found.items() if value is not None}
            for found in map(trial.curve.metrics, range(1, trial.step + 1))
        ]
        if rows and all(needed <= row.keys() for row in rows):
            seconds = [one * scale for one in _steps(trial)[0]]
            whole = trial.state is TrialState.DONE
            yield RecordedCurve(config=config, rows=rows, seconds=seconds, whole=whole)


def _steps(trial: TrialRecord) -> tuple[list[float], list[float]]:
    """Return the duration of each step on one slot, and by how much the first one of each attempt
    was longer than usual: imports and data, which an attempt loads once.
    """
    found: list[float] = []
    firsts: list[int] = []
    last = 0
    for number, until in trial.curve.runs:
        attempt = trial.attempts[number - 1]
        before = attempt.t_began if attempt.t_began is not None else attempt.t_started
        firsts.append(last)
        for t in trial.curve.times[last:until]:
            found.append(max(0.0, t - before) * attempt.width)
            before = t
        last = until
    others = [one for place, one in enumerate(found) if place not in firsts]
    if not others:
        return found, []
    usual = median(others)
    over = [max(0.0, found[place] - usual) for place in firsts]
    for place in firsts:
        found[place] = min(found[place], usual)
    return found, over


def _startups(history: History) -> Iterator[float]:
    """Yield how long attempts took from their start to their beginning, waits included."""
    for trial in history.trials:
        for attempt in trial.attempts:
            if attempt.t_began is not None:
                yield attempt.t_began - attempt.t_started


BOOT_SECONDS = 180.0
"""Supposed time from the request of a machine until it takes trials."""
IDLE_SECONDS = 600.0
"""Supposed time without a trial after which a machine of a cluster that grows is stopped."""
AFTER_SECONDS = 600.0
"""How long the fall-back waits for a spot machine, if the experiment's file does not say it."""


def offered(spec: Spec, cluster: Cluster | None, *, each: int | None) -> Offered:
    """Return what a cluster offers; without one, spot and on-demand machines without a price.

    `each`: trials that a machine runs at a time; None: what a pod's size says, else one. Raises
    UserError for a bad file of prices.
    """
    usual = Machine(permanent=False, boot=BOOT_SECONDS, idle=IDLE_SECONDS, slots=each or 1)
    market: Mapping[str, Any] | None = None
    kinds: dict[str, Machine] = {}
    on_need: float | None = None
    match cluster:
        case Ssh():
            one = replace(usual, permanent=True, boot=0.0, slots=each or _fitting(spec, cluster))
            return Offered(kinds={"": one})
        case Slurm():
            return Offered(kinds={"": replace(usual, permanent=True, boot=0.0)})
        case OnVms() | Kubernetes():
            prices = Prices.of_cluster(cluster)
            region = cluster.region if isinstance(cluster, OnVms) else ""
            # The cloud keeps them from the beginning to the end.
            usual = replace(usual, permanent=True)
            spot = any(one.market == "spot" for one in cluster.workers)
            for kind in ("spot", "on-demand"):
                own = [one for one in cluster.workers if one.market == kind]
                group = (own or list(cluster.workers))[0]
                name = group.name if isinstance(group, Pods) else group.type
                price = prices.of(name, region, kind)
                if not own and price is None:
                    continue
                slots = each or (_fitting(spec, group) if isinstance(group, Pods) else 1)
                kinds[kind] = replace(usual, market=kind, price=price, slots=slots)
                if own and kind == "on-demand" and isinstance(cluster, OnVms) and spot:
                    market, on_need = fall_back(spec), cluster.idle
        case _:
            kinds = {kind: replace(usual, market=kind) for kind in ("spot", "on-demand")}
            market = fall_back(spec)
    if any(one.price is None for one in kinds.values()):
        # costs in different units could not be compared
        kinds = {kind: replace(one, price=None) for kind, one in kinds.items()}
    return Offered(kinds=kinds, market=market, on_need=on_need)


def fall_back(spec: Spec) -> Mapping[str, Any]:
    """Return the key `market` of a search that asks for spot machines first: that of the
    specification, else one that changes as the deadline of the search asks for it or, without one,
    after ten minutes.
    """
    own = spec.market
    if own is not None and own.first == "spot":
        return own.model_dump(mode="json", exclude_defaults=True)
    until = {} if spec.stop.deadline is not None else {"after": AFTER_SECONDS}
    return {"first": "spot", **until}


def most(cluster: Cluster | None) -> int | None:
    """Return how many machines there are, if they are permanent; None: as many as are asked for."""
    match cluster:
        case Ssh():
            return len(cluster.machines)
        case Slurm():
            return cluster.most or cluster.agents
        case _:
            return None


def _fitting(spec: Spec, of: Pods | Ssh) -> int:
    """Return how many slots of trials a machine has; 1 if its size is not known."""
    if isinstance(of, Ssh):
        node = {"CPU": float(of.cpus)} if of.cpus else {}
    else:
        node = {"CPU": of.cpu, "GPU": float(of.gpu), "memory": float(of.memory)}
    slot = spec.resources.needs()
    return min(MOST_TOGETHER, max(1, slot.fitting(node))) if node and slot.bundles else 1
