"""A scheduler that draws its verdicts, while drivers, attempts and checkpoints are lost: what holds
all the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from regrow.search.events import AnyEvent, Closing, Decided, Dropped, Ended, Saved, Started
from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.search.planning.simulator import FunctionObjective, availability
from regrow.search.planning.simulator import Simulation as Simulated
from regrow.search.planning.verify import verify
from regrow.search.schedulers.base import Candidate, Scheduler, Verdict
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Killed, sent
from tests.unit.simulated import SPEC, score
from tests.unit.stores import corrupt
from tests.unit.works import MakeWorks, writing


class Chaos(Scheduler):
    """Draws each verdict from trial and step: on, pause, restart, clone (a running or an ended one,
    itself), stop.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.known: list[int] = []
        self.paused: dict[int, int] = {}

    def draw(self, *what: object) -> random.Random:
        return random.Random(f"{self.setting.seed}:{what}")

    def first(self, trial: int, after: int) -> int | None:
        step = after + self.draw("first", trial, after).randint(1, 3)
        return step if step < (self.setting.max_steps or 0) else None

    def added(self, candidate: Candidate) -> None:
        self.known.append(candidate.trial)

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        chance = self.draw("decide", trial, len(values))
        action: Any = chance.choice(["continue", "continue", "pause", "pause", "restart", "stop"])
        if action in ("continue", "stop"):
            return Verdict(
                action=action,
                until=self.first(trial, len(values)) if action == "continue" else None,
            )
        source = chance.choice([None, chance.choice(self.known)])
        config = chance.choice([None, {"x": chance.random()}])
        return Verdict(action=action, source=source, config=config, why="as drawn")

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        if verdict.action == "pause":
            self.paused[trial] = len(values)

    def started(self, trial: int) -> None:
        self.paused.pop(trial, None)

    def dropped(self, trial: int) -> None:
        self.paused.pop(trial, None)

    def ended(self, trial: int, how: Any) -> None:
        self.paused.pop(trial, None)

    def promote(self, *, complete: bool) -> int | None:
        willing = [
            trial
            for trial, step in self.paused.items()
            if complete or self.draw("promote", trial, step).random() < 0.5
        ]
        return min(willing, default=None)

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        gone = [
            trial
            for trial, step in self.paused.items()
            if self.draw("surplus", trial, step).random() < 0.2
        ]
        return (min(gone), "as drawn") if gone else None

    def width(self, trial: int) -> int:
        return self.draw("width", trial).randint(0, 4)


def check_promises(events: Sequence[AnyEvent], slots: int) -> None:
    """Slots are never exceeded; no checkpoint that a trial may still continue from is dropped;
    decisions are taken once.
    """
    history = History()
    wide: dict[tuple[int, int], int] = {}
    dropped: set[str] = set()
    decided: set[tuple[int, int]] = set()
    for event in events:
        match event:
            case Started():
                wide[event.trial, event.attempt] = event.width
                assert sum(wide.values()) <= slots
                assert not dropped & set(event.checkpoints), "it may restore what was dropped"
            case Ended():
                del wide[event.trial, event.attempt]
            case Dropped():
                dropped |= set(event.manifests)
                needed = {
                    m
                    for trial in history.trials
                    if trial.clone is not None
                    for m in trial.clone.manifests
                }
                assert not dropped & needed, "a clone needs it"
            case Decided():
                assert (event.trial, event.step) not in decided, "decided twice"
                decided.add((event.trial, event.step))
            case _:
                pass
        history.apply(event)
        assert history.occupied == sum(wide.values())
        assert history.held == {t.number for t in history.trials if t.held}
        assert all(
            history.trials[number].state in (TrialState.PAUSED, TrialState.RUNNING)
            for number in history.held
        )
        assert not history.pinned or any(trial.clone for trial in history.trials)
        for trial in history.trials:
            assert len(list(trial.curve.lineage())) == len(trial.curve.times) == trial.step
            assert all(step <= trial.step for step in trial.checkpoints)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_decided_and_lost_the_total_is_exact_and_nothing_is_decided_twice(
    seed: int,
) -> None:
    chance = random.Random(seed)
    spec = Spec.parse(
        {
            **SPEC,
            "schedule": f"{__name__}:Chaos",
            "trials": 8,
            "seed": seed,
            "retries": {"error": 2},
            "checkpoint": {
                "every_steps": chance.randint(1, 3),
                "keep_last": chance.randint(1, 2),
                "keep_best": chance.randint(0, 1),
            },
        }
    )
    workers = chance.randint(1, 4)
    machines = [[], availability([4, 2, 4, 0, 1, 3, 1, 4], 3.5, workers)][seed % 2]
    objective = FunctionObjective(function=score, spec=spec)
    run = Simulated(spec=spec, objective=objective, workers=workers, availability=machines).open()
    while run.history.closed is None or run.history.closed.status == "interrupted":
        run.run(most_events=len(run.events) + chance.randint(1, 40))
        what = chance.random()
        # the driver is killed, or comes after an interruption
        if run.history.closed is not None or what < 0.1:
            run = Simulated(
                spec=spec, objective=objective, workers=workers, availability=machines
            ).open(run.events)
        elif what < 0.2 and run.history.closing is None:
            run.record(Closing(t=run.now, status="interrupted", why="by the user", by="user"))
        elif what < 0.3 and run.running:
            run.fail(run.running[0].trial, "made to fail")
        assert len(run.events) < 20_000, "it does not come to an end"
    assert verify(run.events).difference is None
    assert len(run.history.trials) == 8
    assert all(trial.state.final for trial in run.history.trials)
    check_promises(run.events, workers)
    most = spec.checkpoint.keep_last + spec.checkpoint.keep_best
    assert all(len(trial.checkpoints) <= most for trial in run.history.trials), (
        "nothing is kept for nobody"
    )


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_step_is_done_on_the_weights_that_the_log_says(
    works: MakeWorks, seed: int
) -> None:
    """Attempts are killed, coordinators come back, checkpoints rot. Weights are the list of steps
    that made them.
    """
    chance = random.Random(seed)
    at = works(
        {},
        trials=5,
        slots=1,
        max_steps=9,
        seed=seed,
        schedule=f"{__name__}:Chaos",
        retries={"infrastructure": 1000},
        checkpoint={"every_steps": chance.randint(1, 3), "keep_last": 1, "keep_best": 0},
    )
    office, final, driver = at.office, dict[int, str](), "driver-1"

    def train(trial: Trial) -> None:
        weights = (trial.restored / "weights").read_text() if trial.restored else ""
        fatal = chance.choice([None, None, chance.randint(1, 9)])
        for step in trial.steps():
            weights += f" {trial.number}.{step}"
            trial.report({"score": chance.random()}, checkpoint=writing(weights))
            if step == fatal:
                sent(trial)
                raise Killed
        final[trial.number] = weights

    while (told := office.instructions()).finished is None:
        assert len(office.events) < 2000, "it does not come to an end"
        for assignment in told.submit:
            if assignment.checkpoints and chance.random() < 0.2:
                newest = assignment.checkpoints[0]
                if newest in office.store.list("manifests/"):
                    corrupt(office.store, newest)
            try:
                at.run(assignment, train)
            except Killed:
                office.lost(assignment.trial, assignment.attempt)
            if chance.random() < 0.2:
                driver = chance.choice([driver, f"driver-{len(office.events)}"])
                office.open(driver)
    history = office.history
    assert all(trial.state.final for trial in history.trials)
    check_promises(office.events, 1)
    for trial in history.trials:
        if trial.state is TrialState.DONE and trial.number in final:
            taken = [
                e.step
                for e in office.events
                if isinstance(e, Saved) and e.trial == trial.number and e.source is not None
            ]
            own = [
                f"{trial.number}.{step}"
                for step in range(max([0, *(s for s in taken if s <= trial.step)]) + 1, 10)
            ]
            assert final[trial.number].split()[-len(own) :] == own or not own
            if not taken:
                assert final[trial.number].split() == own
