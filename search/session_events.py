"""The events of an experiment and its sessions: begin and end, machines and prices, the use of the
store, limits that come near.

What happens to trials is in `trial_events.py`; `events.py` has the union of both, and its JSON.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from regrow.search.event import Event
from regrow.search.measured import Amount, Count, Price, Time, Traffic

Hold = Literal["", "failures", "ends"]
"""After which ends of trials a session takes no decision until `Proceeded`: "failures" that the
study does not catch, or all "ends".
"""

Status = Literal["finished", "stopped", "interrupted", "failed"]
"""How an experiment (or one session of it) ended."""


class Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A configuration whose result was known before the experiment.

    Attributes:
        config: the flat configuration.
        status: how its trial ended.
        value: the objective, None if there is none.
        values: all metrics, if the experiment has several; else None.
        curve: the objective by step.
        violations: for each of this experiment's constraints, by how much it is broken; None for
            infinitely, as its metric is missing.
        origin: name of the earlier experiment and the trial's number.

    """

    config: dict[str, Any]
    status: Literal["done", "stopped", "failed"] = "done"
    value: float | None = None
    values: list[float] | None = None
    curve: list[tuple[int, float]] = []
    violations: list[float | None] = []
    origin: str = ""


class Created(Event, frozen=True, kw_only=True, tag="created"):
    """The first event of a log: identifies the experiment.

    Attributes:
        id: the experiment's UUID.
        spec: the canonical JSON form of the specification.
        known: trials that a warm start took over from earlier experiments.
        auto: why `search` and `schedule` were chosen, for each of them that the specification left
            to regrow; `spec` has what was chosen.
        learnt: trials of experiments on other tasks, those of one experiment next to each other.
        distinct: no configuration is proposed twice while others of the space are untried. False in
            logs of versions without this rule.

    """

    id: str
    spec: dict[str, Any]
    known: list[Known] = []
    auto: dict[str, str] = {}
    learnt: list[Known] = []
    distinct: bool = False


class Opened(Event, frozen=True, kw_only=True, tag="opened"):
    """A writer took over the log, which fences off all writers before it. The first event of a
    claim segment, unless that adds `Excluded` or `Halted` to a closed log.

    Attributes:
        by: "driver" (a new session: attempts still open belong to a driver that is gone) or
            "coordinator" (the same driver's coordinator came back: attempts continue).
        driver: id of the driver.
        slots: attempts that may run at a time; for groups, workers.
        trials: the total number of trials from here on.
        flow_run: the Prefect flow run, None for none.
        code: SHA-256 of the pickled trainable, None if it has an import path.
        versions: versions of the libraries whose results may differ between versions.
        widest: slots that one attempt may have, as limited by one node or, for groups, by the
            cluster; 0: all.
        settings: the keys of the specification that may change between sessions, where they differ
            from those of `Created`.
        environment: what the driver recorded about its code and its machine; empty if a coordinator
            opens.
        retry_failed: the user wants all trials that have failed so far to be retried.
        agent: the agent that leads this session; empty: a driver without agents.
        hold: see Hold; empty: decisions never wait.

    """

    by: Literal["driver", "coordinator"]
    driver: str
    slots: int
    trials: int
    flow_run: str | None = None
    code: str | None = None
    versions: dict[str, str] = {}
    widest: int = 0
    settings: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    retry_failed: bool = False
    agent: str = ""
    hold: Hold = ""


class Joined(Event, frozen=True, kw_only=True, tag="joined"):
    """An agent is part of the leader's cluster.

    Attributes:
        agent: its id.
        host: name of its machine.
        node_id: the id of its node in the cluster.
        cpus, gpus: what trials may use of it.
        market: "spot" or "on-demand"; empty: not specified.
        ends: when its machine or job ends, seconds since the epoch; None: not known.

    """

    agent: str
    host: str
    node_id: str
    cpus: Amount
    gpus: Amount
    market: str = ""
    ends: Time | None = None


class Left(Event, frozen=True, kw_only=True, tag="left"):
    """An agent is no longer part of the leader's cluster. `why`: for people."""

    agent: str
    why: str


class Capacity(Event, frozen=True, kw_only=True, tag="capacity"):
    """The cluster has become larger or smaller: new values of `slots` and `widest` as in `Opened`.

    0 slots: it has no room for a single attempt now. `spot`: slots on spot machines among them.
    """

    slots: int
    widest: int
    spot: int = 0


class Priced(Event, frozen=True, kw_only=True, tag="priced"):
    """What the cluster's nodes cost has changed; it holds until the next such event, or the end of
    the session.

    Attributes:
        per_hour: sum of the prices on the nodes' labels, an hour, idle nodes and the head included.
        nodes: number of nodes with a price.

    """

    per_hour: Price
    nodes: Count


class Metered(Event, frozen=True, kw_only=True, tag="metered"):
    """What the coordinator and the driver asked of the store since the last such event. Only with
    `store_prices`; what attempts asked is in `Began`, `Saved` and `Ended`.
    """

    traffic: Traffic


class Rehearsed(Event, frozen=True, kw_only=True, tag="rehearsed"):
    """The recorder has tried what the end of a session with a deadline takes, on its machine.
    `seconds`: to load MLflow, later to make the report as well.
    """

    seconds: Time


class Milestone(Event, frozen=True, kw_only=True, tag="milestone"):
    """Decision: a quarter, half or four fifths of a limit are used. Times are in seconds since the
    epoch.

    Attributes:
        limit: "budget", "stop.dollars" or "stop.deadline".
        percent: 25, 50 or 80.
        spent: what the experiment has cost so far; None without prices.
        ends: when all trials are expected to have ended; None: not known, or as many trials run as
            money and time allow.
        between: the times between which that is expected with a probability of 80 %.
        cost: what it will have cost then; None: not known.

    """

    limit: str
    percent: Count
    spent: float | None = None
    ends: float | None = None
    between: tuple[float, float] | None = None
    cost: float | None = None


class Closing(Event, frozen=True, kw_only=True, tag="closing"):
    """No attempt starts any more, running ones end.

    Attributes:
        status: how the session ends.
        why: for people.
        by: "planner" for a stop condition.
        limit: the limit that ends it, such as "budget" or "stop.dollars"; empty: none. With
            one, running trials save and may continue in a later session, as they do with "user".

    """

    status: Status
    why: str
    by: Literal["planner", "user"]
    limit: str = ""

    @property
    def pauses(self) -> bool:
        """Whether running trials save and may continue, instead of ending for good."""
        return bool(self.limit) or self.by == "user"


class Closed(Event, frozen=True, kw_only=True, tag="closed"):
    """Decision: nothing is left to do in this session."""

    status: Status
