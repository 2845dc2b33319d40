"""Which checkpoint is served: by the log, by what can be restored, by what the processes take; and
what is said where none can be.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.apps.serving import following as module
from regrow.apps.serving.choosing import Checkpoints, candidates, config_of
from regrow.apps.serving.following import Following, ServeTarget
from regrow.apps.serving.messages import Chosen, Refused
from regrow.search.events import Began, Decided, Ended, Proposed, Saved, Started
from regrow.search.rollout import Gate
from regrow.tasks.errors import UserCodeError, UserError
from regrow.tasks.ports.store import Store, Unavailable
from tests.memory_store import MemoryStore
from tests.unit.kept import Kept
from tests.unit.stores import corrupt

NEVER = threading.Event()


class Taking:
    """Takes what it is offered, but for what it is told to refuse; it looks into the files, as a
    model does.
    """

    def __init__(self, *refuses: str, trace: str = "") -> None:
        self.refuses, self.trace = set(refuses), trace
        self.offered: list[tuple[str, int, int]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def offer(self, chosen: Chosen) -> Refused | None:
        self.meanwhile()
        self.offered.append((chosen.role, chosen.trial, chosen.step))
        told = json.loads((Path(chosen.folder) / "model.json").read_text())
        assert (told["trial"], told["step"]) == (chosen.trial, chosen.step)
        return (
            Refused(manifest=chosen.manifest, why="broken", trace=self.trace)
            if chosen.manifest in self.refuses
            else None
        )


@pytest.fixture
def kept() -> Kept:
    return Kept(MemoryStore())


def following(
    kept: Kept,
    tmp_path: Path,
    taking: Taking,
    *wanted: ServeTarget,
    store: Store | None = None,
    gate: Gate | None = None,
) -> Following:
    return Following(
        name="kept",
        store=(kept_in := store or kept.store),
        source=Checkpoints(kept_in),
        replicas=taking,
        wanted=wanted or (ServeTarget(role="main"),),
        scratch=tmp_path,
        gate=gate,
    )


def order(kept: Kept, trial: int | None = None) -> list[tuple[int, int]]:
    return [(one.trial, one.step) for one in candidates(kept.history, trial)]


# ---- the choice


def test_the_best_checkpoint_is_that_of_the_best_value_at_its_own_step() -> None:
    kept = Kept(MemoryStore())
    first, second = kept.trial(), kept.trial()
    kept.save(first, 0.2, 0.6)
    kept.save(first, 0.5)
    kept.save(second, 0.4)
    kept.report(second, 0.99)  # the best value of all, of which nothing is saved
    assert kept.history.best == second
    assert order(kept) == [(first, 2), (first, 3), (second, 1)]


def test_where_less_is_better_the_least_comes_first() -> None:
    kept = Kept(MemoryStore(), mode="min")
    for score in (0.5, 0.1, 0.3):
        kept.best(score)
    assert order(kept) == [(1, 1), (2, 1), (0, 1)]


def test_of_equal_values_the_first_trial_and_step_comes_first(kept: Kept) -> None:
    first, second = kept.trial(), kept.trial()
    kept.save(second, 0.5)
    kept.save(first, 0.5)
    kept.save(first, 0.5)
    assert order(kept) == [(first, 1), (first, 2), (second, 1)]


def test_only_the_named_trial_counts(kept: Kept) -> None:
    kept.best(0.9)
    kept.best(0.1)
    assert order(kept, 1) == [(1, 1)]
    assert order(kept, 7) == []


def test_a_step_that_breaks_a_constraint_does_not_count() -> None:
    kept = Kept(MemoryStore(), constraints=["seconds <= 1"])
    trial = kept.trial()
    kept.report(trial, 0.9, seconds=2.0)
    kept.save(trial)
    kept.report(trial, 0.5, seconds=0.5)
    kept.save(trial)
    assert order(kept) == [(trial, 2)]


def test_what_was_dropped_does_not_count(kept: Kept) -> None:
    best = kept.best(0.9)
    kept.best(0.5)
    kept.drop(best)
    assert order(kept) == [(1, 1)]


def test_another_trials_files_do_not_count_with_this_ones_values(kept: Kept) -> None:
    source = kept.best(0.3)
    trial = kept.trial()
    step = kept.report(trial, 0.8)
    kept.say(
        Saved(
            t=1.0,
            trial=trial,
            attempt=1,
            step=step,
            manifest="manifests/1/1/0000000001.json",
            size=1,
            source=source.manifest,
        )
    )
    assert order(kept) == [(source.trial, 1)]


def test_the_configuration_is_that_of_the_checkpoints_step_and_nested(kept: Kept) -> None:
    kept.best(0.3)
    kept.best(0.8)
    assert config_of(kept.history, candidates(kept.history)[0]) == {"model": {"size": 2}}


def test_the_configuration_is_the_one_that_earned_the_value_where_it_was_changed_since() -> None:
    kept = Kept(MemoryStore(), schedule={"pbt": {"perturbation_interval": 1}})
    now = time.time()
    kept.say(
        Proposed(t=now, trial=0, config={"model.size": 1}),
        Started(t=now, trial=0, attempt=1, until=1),
    )
    kept.say(_began(0, 1, 0))
    kept.save(0, 0.9)
    kept.say(
        Decided(t=now, trial=0, attempt=1, step=1, verdict="restart", config={"model.size": 500})
    )
    kept.say(Ended(t=now, trial=0, attempt=1, outcome="paused", step=1))
    kept.say(
        Started(t=now, trial=0, attempt=2, checkpoints=["manifests/0/1/0000000001.json"]),
        _began(0, 2, 1),
    )
    assert kept.history.trials[0].config == {"model.size": 500}
    assert config_of(kept.history, candidates(kept.history)[0]) == {"model": {"size": 1}}


def _began(trial: int, attempt: int, restored: int) -> Began:
    return Began(t=time.time(), trial=trial, attempt=attempt, node="n", restored=restored)


# ---- following


def test_it_moves_to_what_is_better_and_never_to_what_is_worse(kept: Kept, tmp_path: Path) -> None:
    taking = Taking()
    found = following(kept, tmp_path, taking)
    for score in (0.5, 0.7, 0.6, 0.7, 0.8):
        kept.best(score)
        found.read()
        found.settle(NEVER)
    assert [trial for _, trial, _ in taking.offered] == [0, 1, 4]


def test_it_stays_where_the_served_checkpoint_is_dropped(kept: Kept, tmp_path: Path) -> None:
    taking = Taking()
    found = following(kept, tmp_path, taking)
    best = kept.best(0.9)
    found.once(NEVER)
    kept.best(0.5)
    kept.drop(best)
    found.read()
    found.settle(NEVER)
    assert [trial for _, trial, _ in taking.offered] == [0]
    assert (Path(found.serving["main"].folder) / "model.json").is_file()


def test_one_that_is_dropped_before_it_is_restored_gives_way_to_the_next_best(
    kept: Kept, tmp_path: Path
) -> None:
    best, damaged = kept.best(0.9), kept.best(0.8)
    kept.best(0.7)
    kept.drop(best, said=False)
    corrupt(kept.store, kept.store.list(f"blobs/{damaged.trial}/")[0])
    taking = Taking()
    found = following(kept, tmp_path, taking)
    found.once(NEVER)
    assert taking.offered == [("main", 2, 1)]
    assert found.refused == {best.manifest, damaged.manifest}


def test_one_that_is_refused_is_not_tried_again_and_the_next_best_is(
    kept: Kept, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.best(0.5)
    broken = kept.best(0.9)
    kept.best(0.7)
    taking = Taking(broken.manifest)
    found = following(kept, tmp_path, taking)
    with caplog.at_level("INFO", logger="regrow.apps.serving"):
        found.once(NEVER)
        found.settle(NEVER)
    assert taking.offered == [("main", 1, 1), ("main", 2, 1)]
    assert caplog.messages == [
        "refused trial 1, step 1, score 0.9: broken",
        "serving trial 2, step 1, score 0.7",
    ]


def test_a_class_that_refuses_one_after_the_other_in_the_same_way_shows_its_traceback_once(
    kept: Kept, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.best(0.5)
    broken = [kept.best(value).manifest for value in (0.9, 0.8)]
    found = following(kept, tmp_path, Taking(*broken, trace="Traceback:\n  line 7"))
    found.once(NEVER)
    assert [one.getMessage().replace("\n", "|") for one in caplog.records] == [
        "refused trial 1, step 1, score 0.9: broken|Traceback:|  line 7",
        "refused trial 2, step 1, score 0.8: broken, as the one before; the code is read anew when the server is started again",
    ]


def test_a_class_that_refuses_all_in_the_same_way_is_not_asked_of_each_by_a_server_that_does_not_wait_for_others(
    kept: Kept, tmp_path: Path
) -> None:
    broken = [kept.best(value).manifest for value in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)]
    taking = Taking(*broken, trace="Traceback:\n  line 7")
    wanted = r"nothing to serve: .*: broken; those of 4 trials were refused in the same way, 2 others were not tried"
    with pytest.raises(UserCodeError, match=wanted):
        following(kept, tmp_path, taking).once(NEVER)
    assert [trial for _, trial, _ in taking.offered] == [5, 4, 3, 2]
    damaged = Taking(*broken)  # each is another fault
    with pytest.raises(UserError, match=r"nothing to serve: .*: broken"):
        following(kept, tmp_path / "other", damaged).once(NEVER)
    assert len(damaged.offered) == 6


class Away(MemoryStore):
    """Another's store, whose checkpoints are out of reach for now."""

    def __init__(self, behind: Store) -> None:
        super().__init__()
        self.behind, self.away, self.asked = behind, True, 0

    def read(self, key: str) -> bytes:
        if self.away and key.startswith("manifests/"):
            self.asked += 1
            raise Unavailable(key, "away")
        return self.behind.read(key)

    def fetch(self, key: str, path: Path) -> None:
        self.behind.fetch(key, path)

    def list(self, prefix: str) -> list[str]:
        return self.behind.list(prefix)


def test_a_store_that_is_away_refuses_nothing(kept: Kept, tmp_path: Path) -> None:
    kept.best(0.5)
    store, taking = Away(kept.store), Taking()
    found = following(kept, tmp_path, taking, store=store)
    found.read()
    with pytest.raises(Unavailable):
        found.settle(NEVER)
    store.away = False
    found.settle(NEVER)
    assert taking.offered == [("main", 0, 1)]


def test_files_of_the_last_two_checkpoints_are_kept(kept: Kept, tmp_path: Path) -> None:
    found = following(kept, tmp_path, Taking())
    for score in (0.1, 0.2, 0.3, 0.4):
        kept.best(score)
        found.read()
        found.settle(NEVER)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["3", "4"]


def test_the_canary_is_followed_apart_from_the_best(kept: Kept, tmp_path: Path) -> None:
    taking = Taking()
    found = following(
        kept, tmp_path, taking, ServeTarget(role="main"), ServeTarget(role="canary", trial=1)
    )
    kept.best(0.5)
    kept.best(0.2)
    found.once(NEVER)
    kept.save(1, 0.3)
    found.read()
    found.settle(NEVER)
    assert taking.offered == [("main", 0, 1), ("canary", 1, 1), ("canary", 1, 2)]


def test_it_reads_on_from_where_it_was_and_writes_nothing(kept: Kept, tmp_path: Path) -> None:
    kept.best(0.5)
    before = kept.store.list("")
    found = following(kept, tmp_path, Taking())
    assert (found.read(), found.read()) == (True, False)
    found.settle(NEVER)
    assert kept.store.list("") == before


# ---- where nothing can be served


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            (ServeTarget(role="main"),),
            "nothing to serve: no trial of 'kept' has saved a checkpoint yet; --follow waits for one",
        ),
        (
            (ServeTarget(role="main", trial=0),),
            "nothing to serve: trial 0 of 'kept' has saved no checkpoint that is kept; --follow waits for one",
        ),
        ((ServeTarget(role="main", trial=5),), "--trial: 'kept' has no trial 5 (it has 1)"),
        (
            (ServeTarget(role="main"), ServeTarget(role="canary", trial=9)),
            "--canary: 'kept' has no trial 9 (it has 1)",
        ),
    ],
)
def test_nothing_to_serve_is_told_in_a_line(
    kept: Kept, tmp_path: Path, wanted: tuple[ServeTarget, ...], said: str
) -> None:
    kept.trial()
    with pytest.raises(UserError) as told:
        following(kept, tmp_path, Taking(), *wanted).once(NEVER)
    assert str(told.value) == said


def test_a_model_that_is_refused_at_once_is_told_with_its_traceback(
    kept: Kept, tmp_path: Path
) -> None:
    broken = kept.best(0.5)
    with pytest.raises(UserCodeError) as told:
        following(kept, tmp_path, Taking(broken.manifest, trace="Traceback ...\n")).once(NEVER)
    assert str(told.value) == f"nothing to serve: {broken.manifest}: broken"
    assert told.value.trace == "Traceback ...\n"


def test_a_store_that_is_away_is_told_once_and_asked_again(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TROUBLE_SECONDS", 0.01)
    kept.best(0.5)
    store, taking, stop = Away(kept.store), Taking(), threading.Event()
    found = following(kept, tmp_path, taking, store=store)
    thread = threading.Thread(target=found.follow, args=(stop,), kwargs={"metered": False})
    with caplog.at_level("WARNING", logger="regrow.apps.serving"):
        thread.start()
        while store.asked < 5:
            assert thread.is_alive()
            time.sleep(0.005)
        store.away = False
        while not found.serving:
            assert thread.is_alive()
            time.sleep(0.005)
        stop.set()
        thread.join(10)
    assert caplog.messages == [
        "kept: manifests/0/1/0000000001.json is out of reach for now: away; waiting"
    ]


def test_it_waits_for_the_first_checkpoint_in_silence(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", (0.01, 0.01))
    taking, stop = Taking(), threading.Event()
    found = following(kept, tmp_path, taking)
    kept.best(0.5, said=False)
    thread = threading.Thread(target=found.follow, args=(stop,), kwargs={"metered": False})
    with caplog.at_level("WARNING", logger="regrow.apps.serving"):
        thread.start()
        taken = threading.Event()
        taking.meanwhile = taken.set
        kept.best(0.6)
        assert taken.wait(10)
        stop.set()
        thread.join(10)
    assert taking.offered == [("main", 1, 1)]
    assert not thread.is_alive()
    assert caplog.records == []


def test_an_experiment_that_was_removed_is_served_on_and_another_of_its_name_is_followed(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(module, "TROUBLE_SECONDS", 0.01)
    taking, stop = Taking(), threading.Event()
    kept.best(0.9)
    kept.report(0, 0.1)
    found = following(kept, tmp_path, taking)
    thread = threading.Thread(target=found.follow, args=(stop,), kwargs={"metered": False})
    with caplog.at_level("WARNING", logger="regrow.apps.serving"):
        thread.start()
        while not found.serving:
            time.sleep(0.005)
        kept.store.delete(kept.store.list(""))
        while not caplog.records:
            time.sleep(0.005)
        assert found.serving["main"].trial == 0
        Kept(kept.store).best(0.2)
        while len(taking.offered) < 2:
            time.sleep(0.005)
        stop.set()
        thread.join(10)
    assert caplog.messages == ["kept: its log is not there any more; what is served stays"]


def test_rows_that_were_superseded_do_not_count(kept: Kept) -> None:
    trial = kept.trial()
    kept.save(trial, 0.3)
    kept.save(trial, 0.9)
    now = time.time()
    kept.say(
        Ended(
            t=now,
            trial=trial,
            attempt=1,
            outcome="lost",
            cause="infrastructure",
            step=2,
            by="driver",
        )
    )
    kept.say(
        Started(t=now, trial=trial, attempt=2, checkpoints=["manifests/0/1/0000000001.json"]),
        _began(trial, 2, 1),
    )
    assert order(kept) == [(trial, 1)]
