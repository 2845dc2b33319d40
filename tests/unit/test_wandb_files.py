"""What a program written for W&B keeps, and continues from: real programs with `import wandb`, run by
an attempt.
"""

from __future__ import annotations

import pytest

from regrow.show.views import media
from tests.unit.programs import Programs
from tests.unit.test_wandb_standin import table


@pytest.fixture(autouse=True)
def _sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_WANDB_PACKAGE", "standin")


RESUMES = """
    import json, os
    import wandb

    run = wandb.init(project="p", resume=True)
    epoch, total = 0, 0.0
    if wandb.run.resumed:
        state = json.load(wandb.restore("./state.json"))
        epoch, total = state["epoch"], state["total"]
    killed = wandb.run.resumed
    while epoch < 5:
        epoch, total = epoch + 1, total + 0.5
        LOOP
        if epoch == 4 and not killed:
            os.kill(os.getpid(), 9)
    wandb.finish()
"""
LOG, SAVE = (
    'wandb.log({"score": total, "epoch": epoch}STEP)',
    'json.dump({"epoch": epoch, "total": total}, open("state.json", "w")); wandb.save("state.json")',
)


@pytest.mark.parametrize(
    ("loop", "step"),
    [
        ((SAVE, LOG), ""),
        ((SAVE, LOG), ", step=epoch"),
        ((LOG, SAVE), ", step=epoch"),
        (("if epoch % 2: " + SAVE, LOG), ", step=epoch"),
        ((LOG, "if epoch % 2: " + SAVE), ", step=epoch"),
    ],
)
def test_what_is_saved_is_gone_on_from_and_every_row_is_there_once(
    programs: Programs, loop: tuple[str, str], step: str
) -> None:
    lines = [part.replace("STEP", step) for part in loop]
    office = programs.office(RESUMES.replace("LOOP", "\n        ".join(lines)))
    assert programs.attempt(office).ended.cause == "infrastructure"
    second = programs.attempt(office)
    assert second.ended.outcome == "done", second.ended.message
    assert second.restored >= 1, "it began anew"
    assert table(office) == [{"score": n / 2, "epoch": float(n)} for n in range(1, 6)]


def test_a_program_that_does_not_say_that_it_resumes_begins_anew_and_its_files_are_kept_at_its_end(
    programs: Programs,
) -> None:
    office = programs.office("""
        import os
        import wandb
        run = wandb.init()
        assert not run.resumed
        for epoch in range(4):
            path = os.path.join(run.dir, "model.txt")
            open(path, "w").write(str(epoch))
            wandb.save(path)
            run.log({"score": epoch})
            if epoch == 2 and not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), 9)
        artifact = wandb.Artifact("final", type="model")
        with artifact.new_file("notes/a.txt") as file:
            file.write("a")
        run.log_artifact(artifact).wait()
    """)
    assert programs.attempt(office).ended.cause == "infrastructure"
    second = programs.attempt(office)
    assert (second.ended.outcome, second.restored) == ("done", 0)
    assert table(office) == [{"score": float(n)} for n in (0, 1, 2, 3, 3)]
    manifest = office.store.read(office.history.trials[0].checkpoints[5].manifest).decode()
    assert '"model.txt"' in manifest
    assert '"notes/a.txt"' in manifest


def test_a_program_that_begins_anew_after_its_files_were_kept_says_nothing_twice(
    programs: Programs,
) -> None:
    office = programs.office("""
        import os
        import wandb
        run = wandb.init()
        open("model.txt", "w").close()
        for epoch in range(2):
            run.log({"score": epoch, "rows": wandb.Table(["a"], [[epoch]])})
        run.save("model.txt")
        wandb.finish()
        if not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)
        wandb.init().log({"score": 9})
    """)
    assert programs.attempt(office).ended.cause == "infrastructure"
    second = programs.attempt(office)
    assert (second.ended.outcome, second.restored) == ("done", 3)
    assert [row["score"] for row in table(office)] == [0.0, 1.0, 1.0, 9.0]
    items = media.of_trial(office.store, office.history.trials[0])
    assert [(item.attempt, item.step) for item in items] == [(1, 1), (1, 2)]


def test_what_is_linked_is_kept_as_what_is_logged_is(programs: Programs) -> None:
    office = programs.done("""
        import wandb
        run = wandb.init()
        run.log({"score": 1})
        open("model.txt", "w").close()
        artifact = wandb.Artifact("final", type="model")
        artifact.add_file("model.txt")
        run.link_artifact(artifact, "registry/final")
    """)
    assert (
        '"model.txt"'
        in office.store.read(office.history.trials[0].checkpoints[2].manifest).decode()
    )
