"""An experiment in a notebook: a real kernel, interrupted for real, and what nbconvert makes of its
figures.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("ipykernel") is None or find_spec("nbconvert") is None:
    pytest.skip(
        "no notebook is installed here: pip install ipykernel nbconvert", allow_module_level=True
    )

SETUP = """
import time
import regrow as rg

def train(trial):
    for step in trial.steps():
        time.sleep(0.1)
        trial.report({"score": trial.config["x"] * step}, checkpoint=lambda folder: (folder / "w").write_text("x"))

experiment = rg.Experiment(
    train, name="long", space={"x": {"uniform": [0.0, 1.0]}}, metric="score", mode="max", search="random", trials=2, max_steps=60, concurrency=2,
    checkpoint={"every_steps": 1},
)
"""


class Kernel:
    """A kernel and what its last cell sent: new outputs, renewals of them, text, and how it
    ended.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(
            cwd=str(folder), env={**os.environ, **environment}
        )

    def run(self, code: str, *, interrupt_at: str = "") -> dict[str, Any]:
        """Runs a cell; interrupts the kernel once a picture has something that matches this in
        it.
        """
        request = self.client.execute(code)
        found: dict[str, Any] = {"outputs": [], "updates": [], "errors": [], "text": ""}
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=200)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "display_data" | "execute_result":
                    found["outputs"].append(content["data"])
                case "update_display_data":
                    found["updates"].append(content["data"])
                    if interrupt_at and re.search(
                        interrupt_at, content["data"].get("text/html", "")
                    ):
                        interrupt_at = ""
                        self.manager.interrupt_kernel()
                case "stream":
                    found["text"] += content["text"]
                case "error":
                    found["errors"].append(content)
                case "status" if content["execution_state"] == "idle":
                    return found
        raise AssertionError(f"the cell does not end: {found}")

    def close(self) -> None:
        """Ends it."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path: Path, prefect_of_session: dict[str, str]) -> Iterator[Kernel]:
    started = Kernel(tmp_path, prefect_of_session)
    yield started
    started.close()


def test_an_interrupted_cell_saves_says_how_to_go_on_and_is_run_again(
    kernel: Kernel, tmp_path: Path
) -> None:
    assert kernel.run(SETUP)["errors"] == []

    # A step has been done: the table says so while the cell still runs.
    first = kernel.run("result = experiment.run()", interrupt_at=r"<td>running</td><td>\d")
    assert first["errors"] == []
    assert len(first["outputs"]) == 1
    assert len(first["updates"]) > 3
    last = first["updates"][-1]["text/html"]
    assert "<b>long</b> is interrupted" in last
    assert "continue with: regrow resume long\nor run this cell again</pre>" in last
    assert (
        kernel.run("print(6 * 7, result.status, all(t.checkpoints for t in result.trials))")["text"]
        == "42 interrupted True\n"
    )

    again = kernel.run("result = experiment.run()")
    assert again["errors"] == []
    assert "<b>long</b> is finished" in again["updates"][-1]["text/html"]
    assert (
        kernel.run("print(result.status, [len(t.attempts) for t in result.trials])")["text"]
        == "finished [2, 2]\n"
    )

    shown = kernel.run("result.figures.learning_curves()")["outputs"]
    assert len(shown) == 1
    nbconvert(shown[0], tmp_path)


def nbconvert(picture: dict[str, Any], folder: Path) -> None:
    """The figure is drawn in the page that nbconvert writes, in a browser without a network."""
    import nbformat
    from nbconvert import HTMLExporter

    from tests.system.browser import empty_page

    output = nbformat.v4.new_output("display_data", data=picture)
    cell = nbformat.v4.new_code_cell("figure", outputs=[output])
    (folder / "page.html").write_text(
        HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))[0]
    )
    with empty_page(height=900) as page:
        page.context.set_offline(True)
        page.goto((folder / "page.html").as_uri())
        page.wait_for_selector(".js-plotly-plot .scatterlayer path")
