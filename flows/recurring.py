"""Runs of a schedule: which experiment a run is, what it begins with, how many trials it has, and
which older experiments are removed afterwards.

Decisions of a flow run's first start are stored as its labels, so that a retry continues the same
experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort

from regrow.flows.flow_run import this_flow_run
from regrow.flows.housekeeping.removal import remove
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import replay, survey
from regrow.infra.prefect.deployments import EXPERIMENT
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import read_spec
from regrow.search.errors import SpecError
from regrow.search.history import specification
from regrow.search.planning.warm import known_from
from regrow.search.recurrence import before, outdated, run_name, run_seed
from regrow.search.spec import Spec, When
from regrow.search.spec.parts import WarmStart
from regrow.tasks.errors import RegrowError, UserError

TRIALS = "regrow.trials"
"""Label with the total number of trials that this run set."""
_LOOKED_AT = 3
"""Number of earlier experiments that are searched for one to learn from."""
_RUNS = 50
"""Number of a schedule's flow runs that are asked for the experiment names they use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The experiment of a flow run.

    Attributes:
        name: name of the experiment.
        spec: as `prepare` takes it.
        trials: as `prepare` takes it.
        schedule: name of the schedule, which is the prefix of its experiments' names; the
            experiment's own name for a run without a schedule.
        when: the schedule's rules; None without a schedule.
        lines: messages for people.

    """

    name: str
    spec: Spec | None
    trials: int | None
    schedule: str
    when: When | None = None
    lines: tuple[str, ...] = ()

    def pruned(self, places: Places, say: Callable[[str], None] = lambda _: None) -> list[str]:
        """Remove the experiments of the schedule beyond the number it keeps; return their names.
        Call this after the run.
        """
        gone: list[str] = []
        for old in outdated(
            self.schedule, places.experiments(), None if self.when is None else self.when.keep
        ):
            if old == self.name or runs(places, old):
                continue
            try:
                remove(places, old, say=say)
            except RegrowError as error:
                say(f"{old} could not be removed: {error}")
            else:
                gone.append(old)
        if gone:
            say(f"removed, as {self.when and self.when.keep} are kept: {', '.join(gone)}")
        return gone


def resolved_here(
    places: Places,
    name: str,
    spec: dict[str, Any] | str | None,
    trials: int | None,
    when: dict[str, Any] | None,
    event: dict[str, Any] | None,
) -> Resolved:
    """See `resolved`, for the current flow run."""
    if when is None:  # most runs: no request to the server
        return _plain(name, _given(name, spec, event, trials), trials)
    with get_client(sync_client=True) as client:
        return resolved(
            client,
            this_flow_run().id,
            places,
            name=name,
            spec=spec,
            trials=trials,
            when=when,
            event=event,
        )


def resolved(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    places: Places,
    *,
    name: str,
    spec: dict[str, Any] | str | None,
    trials: int | None = None,
    when: dict[str, Any] | None = None,
    event: dict[str, Any] | None = None,
) -> Resolved:
    """Return the experiment of a flow run from the run's parameters. Repeated calls for a run
    return the same experiment.

    Raises UserError or SpecError for what cannot be run.
    """
    given = _given(name, spec, event, trials)
    if when is None:
        return _plain(name, given, trials)
    try:
        how = When.model_validate(when)
    except ValueError as error:  # base class of pydantic's error
        raise UserError(f"the parameter `when` of the schedule {name!r} is none: {error}") from None
    flow_run = client.read_flow_run(flow_run_id)
    if how.each == "continue":
        return _continued(client, flow_run, places, name, given, trials, how)
    if given is None:
        raise UserError(
            f"the schedule {name!r} has no `spec`: with each: new each run is an experiment of"
            " its own"
        )
    known = flow_run.labels.get(EXPERIMENT)
    chosen = (
        str(known)
        if known
        else run_name(name, _due(flow_run, how), _taken(client, flow_run, places))
    )
    if not known:
        client.update_flow_run_labels(flow_run_id, {EXPERIMENT: chosen})
    if flow_run.name != chosen:
        client.update_flow_run(flow_run_id, name=chosen)
    begun = _begun(places, chosen)
    lines: tuple[str, ...] = ()
    if begun is not None:  # a retry keeps the warm start of the beginning
        starts = list(begun.warm_start)
    else:
        starts, lines = _warm(places, given, before(name, chosen, places.experiments()))
    own = {
        "name": chosen,
        "seed": run_seed(given.seed, chosen),
        "warm_start": [start.model_dump() for start in starts],
    }
    spec_of_run = Spec.parse({**given.to_json(), **own})
    return Resolved(
        name=chosen, spec=spec_of_run, trials=trials, schedule=name, when=how, lines=lines
    )


def _continued(
    client: SyncPrefectClient,
    flow_run: FlowRun,
    places: Places,
    name: str,
    given: Spec | None,
    trials: int | None,
    how: When,
) -> Resolved:
    """Return the same experiment with more trials, by the number in the file, once for each flow
    run.
    """
    total = flow_run.labels.get(TRIALS)
    if total is None:
        begun = _begun(places, name)
        more = trials or (
            given.trials if given is not None else begun.trials if begun is not None else None
        )
        if more is None:
            raise UserError(
                f"the schedule {name!r} cannot continue: its specification gives no number of"
                " `trials`"
            )
        total = more + _total(places, name)
        client.update_flow_run_labels(flow_run.id, {EXPERIMENT: name, TRIALS: total})
    if given is not None and _begun(places, name) is None:
        given = Spec.parse({**given.to_json(), "trials": total})
    return Resolved(name=name, spec=given, trials=int(total), schedule=name, when=how)


def _plain(name: str, spec: Spec | None, trials: int | None) -> Resolved:
    return Resolved(name=name, spec=spec, trials=trials, schedule=name)


def _given(
    name: str, spec: dict[str, Any] | str | None, event: dict[str, Any] | None, trials: int | None
) -> Spec | None:
    """Return the specification of a flow run's parameters, None if it continues an existing
    experiment.
    """
    parsed = (
        read_spec(Path(spec), trials=trials)
        if isinstance(spec, str)
        else Spec.parse(spec)
        if spec is not None
        else None
    )
    if parsed is None or (parsed.name == name and event is None):
        return parsed
    return Spec.parse(
        {**parsed.to_json(), "name": name, **({} if event is None else {"event": event})}
    )


def _due(flow_run: FlowRun, how: When) -> datetime:
    """Return when the run is due, in the time zone of its schedule."""
    try:
        zone = ZoneInfo(how.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        raise UserError(
            f"when.timezone: {how.timezone!r} is no time zone that this machine knows"
        ) from None
    return (flow_run.expected_start_time or flow_run.created or datetime.now(UTC)).astimezone(zone)


def _taken(client: SyncPrefectClient, flow_run: FlowRun, places: Places) -> Collection[str]:
    """Return names that other runs use: of experiments, and of runs that have not created theirs
    yet.
    """
    names = set(places.experiments())
    if flow_run.deployment_id is not None:
        own = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[flow_run.deployment_id]))
        others = client.read_flow_runs(
            flow_run_filter=own, sort=FlowRunSort.START_TIME_DESC, limit=_RUNS
        )
        names |= {
            str(one.labels[EXPERIMENT])
            for one in others
            if one.id != flow_run.id and EXPERIMENT in one.labels
        }
    return names


def _begun(places: Places, name: str) -> Spec | None:
    """Return the specification of the experiment from its log, None if there is no log."""
    found = survey(places.store(name))
    return None if found.created is None else specification(found.created, found.opened)


def _total(places: Places, name: str) -> int:
    """Return the experiment's current number of trials, 0 for a new one."""
    found = survey(places.store(name))
    if found.created is None:
        return 0
    return max(
        found.opened.trials if found.opened else 0, specification(found.created, found.opened).total
    )


def _warm(
    places: Places, spec: Spec, earlier: list[str]
) -> tuple[list[WarmStart], tuple[str, ...]]:
    """Return the warm starts of a new experiment: those of its file, and the latest of `earlier`
    with trials to learn from.
    """
    own, why = list(spec.warm_start), ""
    for name in earlier[:_LOOKED_AT]:
        start = WarmStart(experiment=name)
        try:
            found, _ = known_from(replay(places.known(name), name), spec, start, "warm_start")
        except (SpecError, UserError, CorruptLog) as error:
            why = why or str(error)
            continue
        if found:
            return [*own, start], ()
        why = why or "it has no trial in this space"
    return own, (f"begins anew, not with {earlier[0]}: {why}",) if earlier else ()
