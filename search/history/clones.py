"""Trials that continue from other trials' checkpoints: who waits, and for what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from regrow.search.events import Decided, Saved
from regrow.search.history.records import Change, Clone, TrialRecord


@dataclass(slots=True)
class Clones:
    """Clones among the `trials` of an experiment; the list is shared with the history."""

    trials: list[TrialRecord]
    borrowed: dict[str, int] = field(default_factory=dict)
    """By manifest of each kept clone, the trial whose attempts wrote its files."""
    _waiting: set[int] = field(default_factory=set)

    @property
    def pinned(self) -> set[str]:
        """Checkpoints from which another trial is about to continue."""
        return {
            m
            for number in self._waiting
            if (clone := self.trials[number].clone)
            for m in clone.manifests
        }

    def decided(self, trial: TrialRecord, event: Decided, step: int) -> None:
        """Note that a trial continues after `step` with another configuration or another trial's
        weights.
        """
        if event.config is not None or event.source is not None:
            self.changed(trial, step, event.config, event.source)
        if event.source is not None:
            self._waiting.add(trial.number)
            trial.clone = Clone(
                source=event.source,
                step=step,
                attempt=event.attempt,
                manifests=list(event.manifests),
            )

    def changed(
        self,
        trial: TrialRecord,
        step: int,
        config: dict[str, Any] | None,
        source: int | None = None,
    ) -> None:
        """Note that a trial continues after `step` with another configuration (None: with its own),
        or with the weights of the trial `source`.
        """
        trial.config = trial.config if config is None else config
        trial.changes.append(Change(step=step, config=trial.config, source=source))

    def began(self, trial: TrialRecord, restored: int) -> None:
        """Note that an attempt continued after step `restored`."""
        if trial.changes and trial.changes[-1].source is None:
            last = trial.changes[-1]
            trial.changes[-1] = replace(last, step=min(last.step, restored))
        if trial.clone is not None and restored < trial.clone.step:
            self.over(trial)  # none of the other trial's checkpoints could be read

    def saved(self, trial: TrialRecord, event: Saved) -> None:
        """Note that a trial saved a checkpoint, possibly one with another trial's files."""
        if event.source is not None:
            owner = trial.clone.source if trial.clone is not None else event.trial
            if trial.clone is not None and trial.changes:
                there = self.trials[trial.clone.source].checkpoints
                step = next(
                    (step for step, saved in there.items() if saved.manifest == event.source), None
                )
                trial.changes[-1] = replace(trial.changes[-1], source_step=step)
            self.borrowed[event.manifest] = self.borrowed.get(event.source, owner)
        if trial.clone is not None and event.attempt > trial.clone.attempt:
            # If no clone could be read, the trial continued from its own weights: these are not
            # stale.
            trial.stale = trial.stale if event.source is None else trial.clone.step
            self.over(trial)

    def over(self, trial: TrialRecord) -> None:
        """Note that a trial no longer waits for another trial's checkpoint."""
        trial.clone = None
        self._waiting.discard(trial.number)

    def forget(self, trial: TrialRecord, step: int) -> None:
        """Remove a trial's checkpoint."""
        self.borrowed.pop(trial.checkpoints.pop(step).manifest, None)

    def path(self, number: int, until: int) -> list[dict[str, Any]]:
        """Return, for each step that led to a trial's weights at step `until`, in order, the
        configuration with which it was done.

        The path may lead through clones into other trials, so its length may differ from `until`.
        """
        own: list[dict[str, Any]] = []
        for change in reversed([c for c in self.trials[number].changes if c.step < until]):
            own = [change.config] * (until - change.step) + own
            until = change.step
            if change.source is not None and change.source_step is not None:
                return self.path(change.source, change.source_step) + own
        return [self.trials[number].proposed] * until + own
