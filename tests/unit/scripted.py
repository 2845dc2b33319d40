"""A scheduler that does what a test says, and a planner with its log. No test lives here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Ended,
    Opened,
    Reported,
    Row,
    Saved,
    Started,
)
from regrow.search.planning.planner import Planner
from regrow.search.planning.verify import verify
from regrow.search.schedulers.base import Scheduler, Verdict
from regrow.search.space.setting import Setting
from tests.unit.simulated import SPEC


class Scripted(Scheduler):
    """Does what the specification says: `script` has a verdict by "trial:step". Paused trials continue
    lowest first.

    `last`: only once no new trial comes. `widths`: by trial.
    """

    needs_max_steps = False

    def __init__(
        self,
        setting: Setting,
        *,
        script: dict[str, Any] | None = None,
        last: bool = False,
        widths: dict[str, int] | None = None,
    ) -> None:
        super().__init__(setting)
        self.script = {
            tuple(map(int, key.split(":"))): verdict for key, verdict in (script or {}).items()
        }
        self.last, self.widths = last, widths or {}
        self.paused: set[int] = set()
        self.told: list[tuple[object, ...]] = []

    def first(self, trial: int, after: int) -> int | None:
        return min(
            (step for number, step in self.script if number == trial and step > after), default=None
        )

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        verdict: Mapping[str, Any] = self.script[trial, len(values)]
        return Verdict(**{"until": self.first(trial, len(values)), **verdict})

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        self.told.append((verdict.action, trial, len(values), verdict.source))
        if verdict.action == "pause":
            self.paused.add(trial)

    def started(self, trial: int) -> None:
        self.told.append(("started", trial))
        self.paused.discard(trial)

    def dropped(self, trial: int) -> None:
        self.told.append(("dropped", trial))
        self.paused.discard(trial)

    def ended(self, trial: int, how: Any) -> None:
        self.told.append(("ended", trial, how))
        self.paused.discard(trial)

    def promote(self, *, complete: bool) -> int | None:
        return min(self.paused, default=None) if complete or not self.last else None

    def width(self, trial: int) -> int:
        return self.widths.get(str(trial), 1)


PAUSE = {"action": "pause", "why": "its turn is over"}
RESTART = {"action": "restart", "why": "more resources"}


def clone(source: int, x: float | None = None, action: str = "restart") -> dict[str, Any]:
    return {"action": action, "why": "exploits", "source": source} | (
        {} if x is None else {"config": {"x": x}}
    )


def scripted(script: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {f"{__name__}:Scripted": {"script": script, **options}}


class Desk:
    """A planner with its log; every decision is checked by folding the log anew."""

    def __init__(
        self,
        script: dict[str, Any],
        *,
        slots: int = 1,
        trials: int = 3,
        options: Any = None,
        **changes: Any,
    ) -> None:
        self.events: list[AnyEvent] = []
        self.planner = Planner()
        self.t = 0.0
        spec = {
            **SPEC,
            "schedule": scripted(script, **(options or {})),
            "trials": trials,
            **changes,
        }
        self.tell(Created(t=0.0, id="i", spec=spec))
        self.open(slots=slots, trials=trials)

    def tell(self, *events: AnyEvent) -> list[AnyEvent]:
        """Observations; the decisions after the last one."""
        decided: list[AnyEvent] = []
        for event in events:
            self.planner.apply(event)
            self.events.append(event)
            decided = []
            while (decision := self.planner.next(event.t)) is not None:
                self.planner.apply(decision)
                self.events.append(decision)
                decided.append(decision)
        found = verify(self.events)
        assert found.difference is None, found.difference
        return decided

    def cut(self, count: int) -> None:
        """The last `count` events never reached the log: a new planner over the others."""
        self.events = self.events[:-count]
        self.planner = Planner()
        for event in self.events:
            self.planner.apply(event)

    def open(self, *, slots: int = 1, trials: int = 3) -> list[AnyEvent]:
        self.t += 1
        return self.tell(
            Opened(t=self.t, by="driver", driver=f"d{self.t}", slots=slots, trials=trials)
        )

    def begin(self, trial: int, restored: int = 0) -> list[AnyEvent]:
        return self.tell(
            Began(t=self.t, trial=trial, attempt=self.attempt(trial), node="n", restored=restored)
        )

    def report(self, trial: int, *steps: int, value: float = 1.0) -> list[AnyEvent]:
        rows = [Row(step, self.t, {"score": value}) for step in steps]
        return self.tell(Reported(t=self.t, trial=trial, attempt=self.attempt(trial), rows=rows))

    def save(self, trial: int, step: int, source: str | None = None) -> list[AnyEvent]:
        number = self.attempt(trial)
        return self.tell(
            Saved(
                t=self.t,
                trial=trial,
                attempt=number,
                step=step,
                manifest=f"m{trial}.{number}.{step}",
                size=1,
                source=source,
            )
        )

    def end(
        self, trial: int, outcome: Any = "paused", cause: Any = "", step: int = 0
    ) -> list[AnyEvent]:
        return self.tell(
            Ended(
                t=self.t,
                trial=trial,
                attempt=self.attempt(trial),
                outcome=outcome,
                cause=cause,
                step=step,
            )
        )

    def attempt(self, trial: int) -> int:
        return len(self.planner.history.trials[trial].attempts)

    def of(self, trial: int) -> Any:
        return self.planner.history.trials[trial]

    @property
    def scheduler(self) -> Any:
        return self.planner._scheduler


def started(events: Sequence[AnyEvent]) -> list[tuple[int, int]]:
    return [(event.trial, event.attempt) for event in events if isinstance(event, Started)]
