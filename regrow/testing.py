"""For users' samplers and schedulers: the types they use, and checks of their contracts.

`check_sampler` and `check_scheduler` raise AssertionError with the violated rule. They accept what
a specification has under `search` and `schedule`: a registered name, `{name: options}`, or an
import path `package.module:Class`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from regrow.search import samplers
from regrow.search.errors import SpecError
from regrow.search.events import AnyEvent, Decided, Proposed, Retired, decode, encode, is_decision
from regrow.search.lifecycle import IllegalMove, TrialState
from regrow.search.planning.planner import Planner, seed_for
from regrow.search.planning.simulator import (
    Availability,
    FunctionObjective,
    Objective,
    Simulation,
    availability,
    simulate,
)
from regrow.search.planning.verify import verify
from regrow.search.samplers.base import Proposal, Result, Sampler
from regrow.search.schedulers.base import (
    Candidate,
    Decision,
    Drop,
    End,
    Foreseeing,
    News,
    Opening,
    Revival,
    Scheduler,
    SchedulerPort,
    Start,
    Verdict,
    Widening,
)
from regrow.search.space import Space
from regrow.search.space.domains import Json
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec

__all__ = [
    "Availability",
    "Candidate",
    "Decision",
    "Drop",
    "End",
    "Foreseeing",
    "FunctionObjective",
    "News",
    "Objective",
    "Opening",
    "Proposal",
    "Result",
    "Revival",
    "Sampler",
    "Scheduler",
    "SchedulerPort",
    "Setting",
    "Simulation",
    "Space",
    "Spec",
    "Start",
    "Verdict",
    "Widening",
    "availability",
    "check_log",
    "check_resumes",
    "check_sampler",
    "check_scheduler",
    "decisions",
    "simulate",
]

_SPACE: dict[str, Any] = {
    "x": {"uniform": [0.0, 1.0]},
    "lr": {"loguniform": [1e-4, 1.0]},
    "n": {"int": [1, 9]},
    "kind": {"choice": ["a", "b", "c"]},
}


def check_sampler(
    search: object, space: Mapping[str, Any] | None = None, *, trials: int = 40, mode: str = "min"
) -> None:
    """Check a sampler: ask for `trials` proposals with four trials running at a time, some of which
    are stopped or fail.

    Checks that every proposal is a configuration of the space (None: one with two ranges, an
    integer and a choice), that it and its state are JSON, that asking twice gives the same
    proposal, and that a fresh sampler that got the same results in another order proposes the same.
    """
    setting = Setting(
        space=Space.parse(space or _SPACE),
        modes=("min" if mode == "min" else "max",),
        max_steps=9,
        trials=trials,
    )
    observed: list[Result] = []
    begun: list[Result] = []
    sampler = samplers.make(search, setting)
    for number in range(trials):
        seed = seed_for(setting.seed, number)
        proposal = sampler.ask(number, seed)
        assert sampler.ask(number, seed) == proposal, (
            f"trial {number}: asked twice, {search} proposes different things"
        )
        fresh = samplers.make(search, setting)
        # Trials in any order, but the results of each trial in their order.
        order = [result.number for result in observed]
        random.Random(number).shuffle(order)  # noqa: S311 - an order, not a secret
        of_trial = {
            n: iter([result for result in observed if result.number == n]) for n in set(order)
        }
        results = [next(of_trial[n]) for n in order]
        for result in results:
            fresh.tell(result)
        again = fresh.ask(number, seed)
        assert again == proposal, (
            f"trial {number}: given the same results in another order, {search} proposes {again},"
            f" not {proposal}"
        )
        if proposal is None:
            return
        _check_proposal(setting.space, proposal, f"trial {number}")
        begun.append(
            Result(number=number, config=proposal.config, state=proposal.state, status="running")
        )
        now = [begun[-1]]
        if number >= 3:
            now += _course(begun[number - 3])
        for result in now:
            sampler.tell(result)
        observed += now


def _check_proposal(space: Space, proposal: Proposal, what: str) -> None:
    try:
        space.point(proposal.config, what)
    except SpecError as error:
        raise AssertionError(f"{what}: no configuration of the space: {error}") from None
    for part, value in (("configuration", proposal.config), ("state", proposal.state)):
        try:
            same = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            same = False
        assert same, f"{what}: its {part} is not JSON: {value}"


def _course(result: Result) -> list[Result]:
    """Return a trial's results: some pause before they end, some fail and are retried."""
    ended = replace(result, status="failed") if result.number % 7 == 5 else _valued(result)
    if ended.number % 14 == 5:
        again = replace(result, revived=1)
        return [replace(ended, intermediate=[(1, 0.5)]), again, _valued(again)]
    if ended.number % 4 != 2 or ended.status == "failed":
        return [ended]
    first = ended.intermediate[:1]
    return [replace(ended, status="paused", value=first[0][1], intermediate=first), ended]


def _valued(result: Result) -> Result:
    numbers = [
        float(v)
        for v in result.config.values()
        if isinstance(v, int | float) and not isinstance(v, bool)
    ]
    final = round(sum(numbers) / 10 + math.sin(result.number), 6)
    stopped = result.number % 3 == 1
    curve = [(step, final + 1 / step) for step in range(1, 4 if stopped else 10)]
    return replace(
        result, status="stopped" if stopped else "done", value=curve[-1][1], intermediate=curve
    )


def check_scheduler(
    schedule: object,
    *,
    search: object = "random",
    trials: int = 12,
    max_steps: int = 9,
    function: Callable[[dict[str, Json], int], float] | None = None,
    space: Mapping[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Check a scheduler: simulate experiments with one to three workers, workers that come and go,
    trials that fail, and ties.

    Checks that each experiment ends with every trial ended, also if failed trials are retried; that
    queries change nothing; that the log can be verified (every decision follows from the events
    before it); and that an experiment that was killed at any event and resumed decides the same as
    the uninterrupted one. `function`: the objective of a nested configuration and a step, None for
    one with noise. `changes`: other keys of the specification.
    """
    given = {
        "name": "check",
        "trainable": "check.py:train",
        "metric": "score",
        "mode": "max",
        "space": dict(space or _SPACE),
        "search": search,
        "schedule": schedule,
        "trials": trials,
        "max_steps": max_steps,
        **changes,
    }
    spec = Spec.parse(given)
    spec.check_imports()
    objective = FunctionObjective(function=function or _noisy, spec=spec)
    level = FunctionObjective(function=lambda _config, _step: 1.0, spec=spec)
    comes_and_goes = availability([1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1], 2.5, 3)
    for one, workers, machines in (
        (objective, 1, ()),
        (objective, 3, ()),
        (objective, 3, comes_and_goes),
        (level, 2, ()),
    ):
        run = _to_the_end(spec, one, workers, machines)
        check_log(run.events)
        planner = Planner()
        for place, event in enumerate(run.events):
            if is_decision(event):
                first, second = planner.next(event.t), planner.next(event.t)
                assert first == second == event, (
                    f"event {place + 1}: asked twice, it is {first}, then {second}"
                )
            planner.apply(event)
    check_resumes(spec, objective)
    _check_failures(spec, objective)


def check_log(events: Sequence[AnyEvent]) -> None:
    """Check that every decision of a log follows from the events before it alone."""
    found = verify(decode(encode(event)) for event in events)
    assert found.difference is None, f"event {found.difference.position}: {found.difference}"
    for place, event in enumerate(events):
        if is_decision(event):
            planner = Planner()
            for before in events[:place]:
                planner.apply(before)
            again = planner.next(event.t)
            assert again == event, (
                f"event {place + 1}: replayed from the log, it is {again}, not {event}"
            )


def check_resumes(spec: Spec, objective: Objective) -> None:
    """Check that an experiment on one worker that is killed at any event and resumed from its log
    takes the same decisions.

    If trials take over others' checkpoints, it is not killed between a step and the checkpoint of
    that step: what was not saved cannot be taken over, so such a decision may legitimately differ.
    """
    whole = _to_the_end(spec, objective, 1, ())
    wanted = decisions(whole.events)
    clones = any(isinstance(event, Decided) and event.source is not None for event in whole.events)
    for place in range(1, len(whole.events)):
        if clones and _unsaved(whole.events[:place]):
            continue
        run = Simulation(spec=spec, objective=objective, workers=1).open(whole.events[:place])
        run.run(most_events=50 * len(whole.events))
        found = decisions(run.events)
        different = next(
            (n for n, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b),
            min(len(found), len(wanted)),
        )
        assert found == wanted, (
            f"killed after event {place}, decision {different + 1} differs: {found[different:][:1]}"
        )


def _unsaved(events: Iterable[AnyEvent]) -> bool:
    """Return whether a running attempt has done a step without a checkpoint."""
    planner = Planner()
    for event in events:
        planner.apply(event)
    trials = [planner.history.trials[number] for number in planner.history.running]
    return any(trial.step > max(trial.checkpoints, default=0) for trial in trials)


def _to_the_end(
    spec: Spec, objective: Objective, workers: int, machines: Sequence[Availability]
) -> Simulation:
    run = Simulation(spec=spec, objective=objective, workers=workers, availability=machines)
    try:
        run.open().run(most_events=200 * spec.total * (spec.max_steps or 1))
    except (SpecError, IllegalMove, RuntimeError) as error:
        planner = Planner()
        for event in run.events:
            planner.apply(event)
        message = f"with {workers} workers, at {run.now:g} s: {error}"
        if isinstance(error, RuntimeError):
            again = planner.next(run.now) or planner.next(run.now)
            also = "; a query changed something: replayed and asked twice, it continues with"
            message += "" if again is None else f"{also} {again}"
        raise AssertionError(message) from error
    assert run.history.closed is not None, (
        f"it does not come to an end with {workers} workers: {run.history.counts}"
    )
    left = [trial.number for trial in run.history.trials if not trial.state.final]
    assert not left or run.history.closing is not None, (
        f"with {workers} workers, trials {left} never ended"
    )
    return run


def decisions(events: Iterable[AnyEvent]) -> list[tuple[object, ...]]:
    """Return the decisions without times, attempts and checkpoints, which repeats change."""
    found: list[tuple[object, ...]] = []
    for event in events:
        match event:
            case Proposed():
                found.append(("proposed", event.trial, event.config))
            case Decided():
                which = ("decided", event.trial, event.step, event.verdict, event.until)
                found.append((*which, event.why, event.source, event.config))
            case Retired():
                found.append(("retired", event.trial))
            case _:
                pass
    return found


def _check_failures(spec: Spec, objective: Objective) -> None:
    """Check that all end if every third trial fails, and so do the failed ones when retried."""
    run = Simulation(spec=spec, objective=objective, workers=2)
    run.open()
    failed: set[int] = set()
    budget = 200 * spec.total * (spec.max_steps or 1)
    while run.history.closed is None and len(run.events) < budget:
        run.run(most_events=len(run.events) + 1)
        for running in run.running:
            if running.trial % 3 == 0 and running.step >= 2 and running.trial not in failed:
                failed.add(running.trial)
                run.fail(running.trial, "made to fail")
    assert run.history.closed is not None, (
        f"with failing trials it does not come to an end: {run.history.counts}"
    )
    again = Simulation(spec=spec, objective=objective, workers=2).open(
        run.events, retry_failed=True
    )
    again.run(most_events=len(run.events) + budget)
    history = again.history
    assert history.closed is not None, (
        f"with failed trials that are tried again it does not come to an end: {history.counts}"
    )
    left = failed & history.by_state[TrialState.FAILED]
    assert not left or not history.closing, f"trials {sorted(left)} were not tried again"
    check_log(again.events)


def _noisy(config: dict[str, Json], step: int) -> float:
    """Return a rising curve whose height depends on the configuration, with reproducible noise."""
    x, lr, n = (float(config.get(name, 0.5)) for name in ("x", "lr", "n"))
    height = x - 0.1 * abs(math.log10(lr) + 2) + 0.02 * n
    noise = random.Random(f"{sorted(config.items(), key=str)}:{step}").uniform(-0.05, 0.05)  # noqa: S311 - reproducible noise, not a secret
    return round(height * (1 - math.exp(-step / 3)) + noise, 6)
