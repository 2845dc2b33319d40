"""Runs of a schedule: their experiments, what these begin with, and which are removed afterwards.

Decisions of a flow run's first start are stored as its labels, for its retries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort

from regrow.flows.housekeeping.removal import remove
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import replay, survey
from regrow.infra.prefect.deployments import EXPERIMENT
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import read_spec
from regrow.search.errors import SpecError
from regrow.search.history import specification
from regrow.search.planning.learning import known_from
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
        """After a run: remove experiments beyond the number that is kept; return their names."""
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
    given = _parsed_spec(name, spec, event, trials)
    if when is None:
        return Resolved(name=name, spec=given, trials=trials, schedule=name)
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
    chosen = str(flow_run.labels.get(EXPERIMENT, ""))
    if not chosen:
        chosen = run_name(name, _due_time(flow_run, how), _names_in_use(client, flow_run, places))
        client.update_flow_run_labels(flow_run_id, {EXPERIMENT: chosen})
    if flow_run.name != chosen:
        client.update_flow_run(flow_run_id, name=chosen)
    found = survey(places.store(chosen))
    lines: tuple[str, ...] = ()
    if found.created is not None:  # a retry keeps the warm start of the beginning
        starts = list(specification(found.created, found.opened).warm_start)
    else:
        starts, lines = _warm_starts(places, given, before(name, chosen, places.experiments()))
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
    """Return the same experiment with more trials, once for each flow run."""
    total, found = flow_run.labels.get(TRIALS), survey(places.store(name))
    begun = None if found.created is None else specification(found.created, found.opened)
    if total is None:
        of_spec = given or begun
        more = trials or (None if of_spec is None else of_spec.trials)
        if more is None:
            raise UserError(
                f"the schedule {name!r} cannot continue: its specification gives no number of"
                " `trials`"
            )
        now = 0 if begun is None else max(begun.total, found.opened.trials if found.opened else 0)
        total = more + now
        client.update_flow_run_labels(flow_run.id, {EXPERIMENT: name, TRIALS: total})
    if given is not None and begun is None:
        given = Spec.parse({**given.to_json(), "trials": total})
    return Resolved(name=name, spec=given, trials=int(total), schedule=name, when=how)


def _parsed_spec(
    name: str, spec: dict[str, Any] | str | None, event: dict[str, Any] | None, trials: int | None
) -> Spec | None:
    """Return the specification in the parameters; None continues an existing experiment."""
    if spec is None:
        return None
    parsed = read_spec(Path(spec), trials=trials) if isinstance(spec, str) else Spec.parse(spec)
    own: dict[str, Any] = {"name": name} if event is None else {"name": name, "event": event}
    return parsed if own == {"name": parsed.name} else Spec.parse({**parsed.to_json(), **own})


def _due_time(flow_run: FlowRun, how: When) -> datetime:
    """Return when the run is due, in the time zone of its schedule."""
    try:
        zone = ZoneInfo(how.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        raise UserError(
            f"when.timezone: {how.timezone!r} is no time zone that this machine knows"
        ) from None
    return (flow_run.expected_start_time or flow_run.created or datetime.now(UTC)).astimezone(zone)


def _names_in_use(client: SyncPrefectClient, flow_run: FlowRun, places: Places) -> Collection[str]:
    """Return names of experiments, and of those that other runs have not created yet."""
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


def _warm_starts(
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
