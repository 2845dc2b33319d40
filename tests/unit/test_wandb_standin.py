"""What a program written for W&B sees in a trial: real programs with `import wandb`, run by an
attempt.
"""

from __future__ import annotations

import venv
from pathlib import Path
from typing import Any

import pytest

from regrow.integrations.wandb.config import Config
from regrow.integrations.wandb.saved import stored_as
from regrow.search.events import Reported
from regrow.show.views import media
from tests.unit.office import Office
from tests.unit.programs import Programs


@pytest.fixture(autouse=True)
def _sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_WANDB_PACKAGE", "standin")


def table(office: Office) -> list[dict[str, float | None]]:
    """The rows of trial 0 that count, by step."""
    found: dict[int, dict[str, float | None]] = {}
    for event in office.events:
        if isinstance(event, Reported):
            found = {step: row for step, row in found.items() if step < event.rows[0].step}
            found |= {row.step: row.metrics for row in event.rows}
    return [found[step] for step in sorted(found)]


def test_each_log_of_the_metric_is_a_step_and_what_has_none_goes_with_the_next(
    programs: Programs, capfd: Any
) -> None:
    office = programs.done(
        """
        import wandb
        with wandb.init(project="p", config={"epochs": 2}) as run:
            for epoch in range(run.config.epochs):
                for batch in range(3):
                    run.log({"batch": batch, "loss": {"train": batch / 10}})
                wandb.log({"epoch": epoch}, commit=False)
                wandb.log({"score": epoch, "done": True, "none": None})
            wandb.log({"test": 7})
            run.summary["best"] = 1.5
    """,
        max_steps=None,
    )
    step = {"batch": 2.0, "loss.train": 0.2}
    assert table(office) == [
        {**step, "epoch": 0.0, "score": 0.0},
        {**step, "epoch": 1.0, "score": 1.0},
        {"test": 7.0, "best": 1.5, "score": 1.0},
    ]
    said = capfd.readouterr().err
    (first, *_) = [event for event in office.events if isinstance(event, Reported)]
    told = first.reported(first.rows[0])
    assert told["_steps/batch"] == [[0, 0], [1, 1], [2, 2]]
    assert told["_steps/loss.train"] == [[0, 0.0], [1, 0.1], [2, 0.2]]
    assert "_steps/score" not in told
    assert (
        said.count("done: bool is not recorded")
        == said.count("none: NoneType is not recorded")
        == 1
    )


def test_with_steps_of_its_own_a_row_is_what_is_logged_for_one_step(
    programs: Programs, capfd: Any
) -> None:
    office = programs.done("""
        import wandb
        wandb.init()
        for epoch in range(0, 30, 10):
            wandb.log({"score": epoch}, step=epoch)
            wandb.log({"lr": epoch / 100}, step=epoch)
        wandb.log({"score": -1}, step=10)
        assert wandb.run.step == 20
        wandb.run.summary.update({"best": 20})
    """)
    assert table(office) == [
        {"score": 0.0, "lr": 0.0},
        {"score": 10.0, "lr": 0.1},
        {"score": 20.0, "lr": 0.2, "best": 20.0},
    ]
    assert "steps below 20 are recorded already" in capfd.readouterr().err


def test_single_numbers_of_any_kind_are_recorded_and_all_else_is_harmless_and_said_once(
    programs: Programs, capfd: Any
) -> None:
    office = programs.done("""
        import numpy as np, wandb
        wandb.login()
        wandb.init(mode="disabled", settings=wandb.Settings(start_method="thread"))
        wandb.define_metric("score", summary="max")
        wandb.watch(object(), log="all")
        for _ in range(2):
            table = wandb.Table(columns=["a"], data=[[1]])
            table.add_data(2)
            assert table.data == [[1], [2]]
            array = wandb.Table(columns=np.array(["a", "b"]), data=np.ones((1, 2)))
            assert (array.columns, array.data) == (["a", "b"], [[1.0, 1.0]])
            wandb.log({
                "score": 0.5, "numpy": np.float32(0.25), "single": np.array([2]), "whole": 3,
                "array": np.ones(3), "phase": "train", "none": None, "histogram": wandb.Histogram([1, 2]),
            })
        wandb.finish()
    """)
    assert table(office) == [{"score": 0.5, "numpy": 0.25, "single": 2.0, "whole": 3.0}] * 2
    said = capfd.readouterr().err
    for name in (
        "array: ndarray",
        "phase: str",
        "none: NoneType",
    ):
        assert said.count(f"{name} is not recorded, only single numbers and media are\n") == 1, said
    assert said.count("histogram: Histogram is not recorded\n") == 1
    assert said.count("watch: gradients are not recorded\n") == 1


def test_media_are_logged_at_the_step_of_their_row(programs: Programs, capfd: Any) -> None:
    office = programs.done(
        """
        import numpy as np, wandb
        from matplotlib.figure import Figure
        figure = Figure((1, 1))
        run = wandb.init()
        for epoch in range(2):
            wandb.log({"examples": [wandb.Image(np.ones((2, 2)), caption="a"), wandb.Image(figure)]}, step=epoch)
            wandb.log({"score": epoch, "curve": figure, "group": {"page": wandb.Html("<p>hello")}}, step=epoch)
        table = wandb.Table(columns=["a", "b"], data=[[1, wandb.Image(np.ones((2, 2)))]])
        wandb.log({"score": 2, "table": table, "plot": wandb.plot.line(table, "a", "b"),
                   "wrong": wandb.Image("none.png"), "none": wandb.plot.confusion_matrix(preds=[1])}, step=2)
    """,
        max_steps=3,
    )
    items = media.of_trial(office.store, office.history.trials[0])
    assert [(item.name, item.step, item.kind, item.suffix) for item in items] == [
        *(("curve", step, "figure", ".png") for step in (1, 2)),
        *(("examples/0", step, "image", ".png") for step in (1, 2)),
        *(("examples/1", step, "figure", ".png") for step in (1, 2)),
        *(("group.page", step, "file", ".html") for step in (1, 2)),
        ("plot", 3, "table", ".json"),
        ("table", 3, "table", ".json"),
    ]
    assert office.store.read(items[-1].key) == b'{"columns": ["a", "b"], "data": [[1, "Image"]]}'
    said = capfd.readouterr().err
    assert (
        said.count("regrow: wandb: wrong is not recorded: log_image: there is no file none.png")
        == 1
    )
    assert "none: a plot is recorded only if it is made of a wandb.Table" in said
    assert "captions of images are not recorded" in said


def test_a_tensor_of_one_element_is_a_number_and_another_one_is_not(
    programs: Programs, capfd: Any
) -> None:
    pytest.importorskip("torch")
    office = programs.done("""
        import torch, wandb
        wandb.init().log({"score": torch.tensor(0.5, requires_grad=True), "single": torch.ones(1, 1), "tensor": torch.ones(2)})
    """)
    assert table(office) == [{"score": 0.5, "single": 1.0}]
    assert (
        "tensor: Tensor is not recorded, only single numbers and media are\n"
        in capfd.readouterr().err
    )


def test_the_sweep_decides_its_parameters_and_the_program_all_others(
    programs: Programs, capfd: Any
) -> None:
    office = programs.done(
        """
        import argparse, wandb
        wandb.config.update(argparse.Namespace(x=9, width=4))
        run = wandb.init(config={"x": 8, "epochs": 2})
        wandb.config.x = 7
        run.config["x"] = 6
        run.config.setdefaults({"width": 5, "depth": 3})
        swept = run.config["x"]
        assert swept not in (6, 7, 8, 9) and dict(run.config) == {"x": swept, "width": 4, "epochs": 2, "depth": 3}, run.config
        assert run.config.x == wandb.config["x"] and "x" in run.config and run.config.get("y") is None
        run.log({"score": swept})
    """,
        space={"x": {"uniform": [0.1, 1.0]}},
    )
    assert table(office) == [{"score": office.history.trials[0].config["x"]}]
    assert "config: x stays 0." in capfd.readouterr().err


def test_names_with_dots_are_keys_of_the_config(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_WANDB_DOTTED", '["net.width", "net.act.kind"]')
    space = {"x": {"uniform": [0.1, 1.0]}, "net": {"width": 3, "act": {"kind": "relu"}}}
    office = programs.done(
        """
        import wandb
        config = wandb.init().config
        assert list(config) == ["x", "net.width", "net.act.kind"], config
        wandb.log({"score": config["net.width"]})
    """,
        space=space,
    )
    assert table(office) == [{"score": 3.0}]


def test_of_several_processes_the_first_of_torchruns_reports_and_folds_after_one_another_do(
    programs: Programs,
) -> None:
    office = programs.done("""
        import os, subprocess, sys
        import wandb
        if "RANK" not in os.environ:
            for rank in "100":
                subprocess.run([sys.executable, __file__], env={**os.environ, "RANK": rank}, check=True)
        else:
            with wandb.init() as run:
                assert run.disabled == (os.environ["RANK"] == "1")
                run.log({"score": 1})
    """)
    assert table(office) == [{"score": 1.0}] * 2


def test_a_second_run_after_the_first_ones_end_is_further_steps_with_steps_and_a_summary_of_its_own(
    programs: Programs, capfd: Any
) -> None:
    office = programs.done("""
        import wandb
        from wandb.errors import UsageError
        from wandb.util import generate_id
        for fold in range(2):
            run = wandb.init(name=f"fold-{fold}")
            assert (run.name, wandb.run is run, dict(run.summary)) == (f"fold-{fold}", True, {})
            for epoch in range(2):
                wandb.log({"score": 10 * fold + epoch}, step=epoch)
            run.finish()
            assert wandb.run is None
            try:
                run.log({"score": -1})
            except UsageError as error:
                assert len({generate_id() for _ in range(9)}) == 9
                assert "the run is finished" in str(error)
            else:
                raise AssertionError("it was logged")
    """)
    assert table(office) == [{"score": 0.0}, {"score": 1.0}, {"score": 10.0}, {"score": 11.0}]
    assert (
        "what is logged after the first one's end are further steps of it" in capfd.readouterr().err
    )


@pytest.mark.parametrize("way", ["reinit", "raises", "with"])
def test_no_row_of_a_run_that_gives_way_to_the_next_is_lost(programs: Programs, way: str) -> None:
    office = programs.done(f"""
        import wandb
        way = {way!r}
        for fold in range(2):
            try:
                run = wandb.init(name=f"fold-{{fold}}", reinit=way == "reinit")
                assert (run.name, run.resumed, run.step) == (f"fold-{{fold}}", False, 0)
                for epoch in range(2):
                    run.log({{"score": 10 * fold + epoch}}, step=epoch)
                if way != "reinit":
                    with run:
                        if way == "raises":
                            raise ValueError(fold)
            except ValueError:
                assert wandb.run is None
    """)
    assert [row["score"] for row in table(office)] == [0.0, 1.0, 10.0, 11.0]


def test_runs_of_child_processes_beside_the_trials_own_are_harmless(
    programs: Programs, capfd: Any
) -> None:
    office = programs.done("""
        import multiprocessing, os, sys
        import wandb

        def fold(number):
            run = wandb.init(group="folds", reinit=True)
            run.log({"score": -number})
            run.save()
            wandb.join()
            assert run.disabled and run.get_sweep_url() == ""

        if __name__ == "__main__":
            run = wandb.init()
            for way in ("fork", "spawn"):
                child = multiprocessing.get_context(way).Process(target=fold, args=(1,))
                child.start()
                child.join()
                assert child.exitcode == 0
            run.log({"score": 1})
            run.log({"test": 2})
            if not os.fork():
                sys.exit()  # which ends as the parent will, with what is left
            os.wait()
    """)
    assert table(office) == [{"score": 1.0}, {"score": 1.0, "test": 2.0}]
    assert (
        "another process of this trial has the run; what this one logs is not recorded"
        in capfd.readouterr().err
    )


def test_a_program_may_have_an_interpreter_of_its_own(programs: Programs) -> None:
    venv.create(programs.folder / "own", with_pip=False)
    office = programs.done(
        """
        import importlib.util, sys
        import wandb
        assert sys.prefix.endswith("own") and importlib.util.find_spec("numpy") is None, sys.path
        wandb.init().log({"score": 1})
    """,
        run=("own/bin/python", "train.py"),
    )
    assert table(office) == [{"score": 1.0}]


def test_a_config_answers_as_a_map_does_and_names_what_it_has() -> None:
    config = Config({"lr": 1})
    assert {**config} == config.as_dict() == {"lr": 1}
    with pytest.raises(AttributeError, match="the config has no 'width'; it has: lr"):
        _ = config.width
    with pytest.raises(TypeError, match=r"the file 'defaults.yaml' is not read"):
        config.update("defaults.yaml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wandb.log({'score': 1})", "Error: You must call wandb.init() before wandb.log()"),
        (
            "wandb.init(); wandb.sweep({})",
            "wandb.sweep: `regrow run sweep.yaml` makes the sweep; REGROW_WANDB=real before",
        ),
        (
            "wandb.init().use_artifact('model:latest')",
            "a run has no use_artifact in regrow's stand-in for wandb; REGROW_WANDB=real",
        ),
        ("wandb.Api()", "wandb.Api: nothing is asked of W&B"),
        (
            "import wandb.sklearn",
            "No module named 'wandb.sklearn' in regrow's stand-in for wandb; REGROW_WANDB=real",
        ),
        ("wandb.init().log(3)", "wandb.log takes a map"),
        ("wandb.init(); wandb.restore('best.pt')", "no attempt of this trial has saved 'best.pt'"),
    ],
)
def test_what_is_not_here_is_an_error_of_the_program_that_says_so(
    programs: Programs, line: str, message: str
) -> None:
    office = programs.office(f"import wandb\n{line}")
    ended = programs.attempt(office).ended
    assert (ended.outcome, ended.cause) == ("failed", "error")
    assert message in ended.message


def test_a_metric_that_is_never_logged_is_told_with_those_that_were(programs: Programs) -> None:
    office = programs.office("""
        import wandb
        wandb.init()
        wandb.log({"loss": 1, "acc": 2})
    """)
    assert (
        "the metric 'score' was not reported; reported were: loss, acc"
        in programs.attempt(office).ended.message
    )


def test_what_is_logged_at_the_end_by_an_attempt_that_has_no_step_left_is_recorded(
    programs: Programs,
) -> None:
    office = programs.office("""
        import os
        import wandb
        with wandb.init(resume=True) as run:
            resumed = run.resumed
            if not resumed:
                open("model", "w").close()
                run.save("model")
                run.log({"score": 0.5}, step=3)
                run.log({"score": 0.25}, step=4)
                os.kill(os.getpid(), 9)
            assert run.step == run.starting_step == 4
            run.log({"test": 1})
    """)
    assert programs.attempt(office).ended.cause == "infrastructure"
    assert programs.attempt(office).restored == 1
    assert table(office) == [{"score": 0.5}, {"score": 0.5, "test": 1.0}]


def test_a_metric_of_the_summary_alone_is_the_trials_one_step(programs: Programs) -> None:
    office = programs.done("""
        import wandb
        with wandb.init() as run:
            run.log({"loss": 1})
            run.summary["score"] = 0.5
    """)
    assert table(office) == [{"loss": 1.0, "score": 0.5}]


def test_after_the_last_step_nothing_is_reported_and_the_program_comes_to_its_end(
    programs: Programs, capfd: Any
) -> None:
    office = programs.done(
        """
        import wandb
        with wandb.init() as run:
            for epoch in range(3):
                run.log({"score": epoch})
            run.log({"test": 1})
        open("end", "w").close()
    """,
        max_steps=3,
    )
    assert len(table(office)) == 3
    assert (programs.folder / "end").exists()
    assert "not recorded, as this was the last step (max_iter): test" in capfd.readouterr().err


def test_a_programs_traceback_stays_the_last_word(programs: Programs) -> None:
    office = programs.office("""
        import wandb
        wandb.init()
        wandb.log({"score": 1})
        wandb.log({"loss": 1})
        raise ValueError("no such optimizer")
    """)
    assert (
        programs.attempt(office).ended.message
        == "python train.py exited with 1: ValueError: no such optimizer"
    )
    assert len(table(office)) == 1


def test_without_the_sweep_the_stand_in_is_on_no_path(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGROW_WANDB_PACKAGE")
    office = programs.office(
        "import sys; print('{\"score\": %d}' % any('standin' in place for place in sys.path))"
    )
    programs.attempt(office)
    assert table(office) == [{"score": 0.0}]


@pytest.mark.parametrize(
    ("path", "base", "name"),
    [
        ("./a/b.pt", None, "a/b.pt"),
        ("/x/b.pt", None, "b.pt"),
        ("../b.pt", None, "b.pt"),
        ("/x/y/b.pt", "/x", "y/b.pt"),
        ("/x/y/b.pt", "/z", "b.pt"),
    ],
)
def test_a_saved_file_is_called_as_w_and_b_calls_it(path: str, base: str | None, name: str) -> None:

    assert stored_as(Path(path), None if base is None else Path(base)) == name
