"""The pages of the documentation, as far as they can be judged without running anything:
tests/system/test_docs.py types them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import regrow
from docs.site import command_line, diagrams, events, hooks, python_api, reference, specification
from regrow.infra.clusters.description import Cluster
from regrow.infra.state.yaml_file import read_map
from regrow.integrations.wandb.sweeps import OURS, is_sweep, translated
from regrow.search.events import AnyEvent
from regrow.search.space import Space
from regrow.search.spec import Spec
from tests.system.reader import ROOT, Block, Page, compare, is_typed, pages, pattern, read

PAGES = pages()
CLUSTERS = ("cluster.yaml", "slurm.yaml", "gcp.yaml", "azure.yaml")
"""Titles of cluster files."""
DOCUMENT = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
BASE: dict[str, Any] = {
    "name": "page",
    "trainable": "train.py:train",
    "metric": "accuracy",
    "mode": "max",
    "trials": 1,
    "max_steps": 30,
    "space": {
        "lr": {"loguniform": [1e-4, 1e-1]},
        "hidden": {"int": [16, 128]},
        "alpha": {"loguniform": [1e-6, 1e-2]},
    },
}


def blocks(*languages: str) -> list[Any]:
    """Blocks of these languages on all pages, each with its place as the test's name."""
    return [
        pytest.param(block, id=f"{page.name}:{block.line}")
        for page in PAGES
        for block in page.blocks
        if block.language in languages
    ]


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_specification_and_part_of_one_is_valid(block: Block) -> None:
    if block.mark("skip") is not None or block.title in (
        "wrong.yaml",
        "automation.yaml",
        *CLUSTERS,
    ):
        # shown because it is refused, or not a specification; what the page says of it is tested
        # where it is typed
        return
    written = yaml.safe_load(block.body)
    written = translated(written, "page")[0] if is_sweep(written) else written.get(OURS, written)
    Spec.parse(
        written if {"trainable", "command", "rllib"} & written.keys() else {**BASE, **written}
    )


@pytest.mark.parametrize(
    "block", [one for one in blocks("yaml") if one.values[0].title in CLUSTERS]
)
def test_every_cluster_is_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(block.body)
    Cluster.parse(read_map(file, "cluster", ""))


@pytest.mark.parametrize(
    "block", [one for one in blocks("yaml") if one.values[0].title == "agents.yaml"]
)
def test_a_deployment_of_agents_is_what_kubernetes_takes(block: Block) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    ).validate
    validate(yaml.safe_load(block.body), "1.30", strict=True)


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    section = (ROOT / "README.md").read_text().split("## Beside Ray Tune")[1].split("\n## ")[0]
    measured = (ROOT / "benchmarks" / "README.md").read_text()
    figures = re.findall(r"(?<![\d.,-])\d[\d.,-]*\d(?![\d.])", section)
    assert len(figures) > 9
    assert [
        figure
        for figure in figures
        if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|\.\d)", measured)
    ] == []


def test_every_variable_of_ours_is_on_the_page_of_the_environment() -> None:
    folders = ("search", "tasks", "infra", "flows", "regrow")
    files = {file.resolve() for folder in folders for file in (ROOT / folder).rglob("*.py")}
    source = "\n".join(file.read_text() for file in files)
    told = set(re.findall(r'^        "([A-Z_]+)": ', source, re.MULTILINE))  # of a program
    used = {f"REGROW_{name}" for name in told} | set(re.findall(r"\bREGROW_[A-Z_]+\b", source))
    page = (ROOT / "docs/reference/environment.md").read_text()
    known = set(re.findall(r"`(REGROW_[A-Z_]+)`", page))
    assert sorted(known - used) == []
    unknown = set(re.findall(r"\bREGROW_[A-Z_]+\b", source)) - known
    assert [name for name in unknown if not any(one.startswith(f"{name}_") for one in known)] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 740


@pytest.mark.parametrize("block", blocks("python"))
def test_every_script_compiles(block: Block) -> None:
    compile(block.body, block.title or "script", "exec")


def commands(page: Page) -> Iterator[str]:
    """What stands behind `regrow` wherever it is mentioned: in commands, in texts and in tables."""
    text = re.sub(r"<!--.*?-->", "", page.path.read_text(), flags=re.DOTALL)
    for block in page.blocks:
        text = text.replace(block.body, "")
        if is_typed(block) and block.language == "sh":
            yield from (
                m[1]
                for m in re.finditer(
                    r"(?:^|[ (])regrow ((?:[a-z]|--)[^\n#|;)]*)", block.body, re.MULTILINE
                )
            )
    yield from (m[1] for m in re.finditer(r"`regrow ((?:[a-z]|--)[^`]*)`", text))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_command_that_is_named_exists_with_its_options(page: Page) -> None:
    known = {
        name: set(
            re.findall(
                r"(?<![\w-])--?[a-z][a-z0-9-]*",
                " ".join(p.written for p in command_line.parameters(function)),
            )
        )
        for name, function in command_line.commands().items()
    }
    for said in commands(page):
        verb, *rest = shlex.split(re.sub(r"[\[\]]", "", said).replace("'", ""))
        if verb == "cluster" and rest:
            verb = f"{verb} {rest.pop(0)}"
        if verb in ("--help", "COMMAND"):
            continue
        assert verb in known, f"{page.name}: regrow {said}"
        options = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert options <= known[verb] | {"--help"}, f"{page.name}: regrow {said}"


def test_what_is_not_typed_has_a_reason() -> None:
    for page in PAGES:
        for block in page.blocks:
            reason = block.mark("skip")
            assert reason is None or len(reason) > 10, f"{page.name}:{block.line}"


def test_the_reference_has_every_key_with_its_type_and_a_description() -> None:
    page, schema = specification.page(), Spec.model_json_schema()
    for model in (schema, *schema["$defs"].values()):
        for key in model.get("properties", {}):
            row = next(line for line in page.splitlines() if line.startswith(f"| `{key}` |"))
            said, form = row.split(" | ", 1)[1].split("<br>")
            assert said, row
            assert re.fullmatch(r"<small>.+; (required|default .+)</small> \|", form), row
    assert "<small>any" not in page


def test_the_reference_has_every_domain_in_a_form_that_is_read() -> None:
    page = specification.domains()
    for make, example in specification.DOMAINS.items():
        row = next(line for line in page.splitlines() if f"`rg.{make.__name__}(" in line)
        (written,) = Space.parse({"x": yaml.safe_load(row.split("`")[1])}).parameters
        assert written.domain == make(*example)
    assert {make.__name__ for make in specification.DOMAINS} <= set(regrow.__all__)


def test_the_reference_has_every_command_and_every_option_with_its_help() -> None:
    page = command_line.page()
    for name, function in command_line.commands().items():
        section = page.split(f"## regrow {name}\n")[1].split("\n## ")[0]
        for parameter in command_line.parameters(function):
            assert parameter.help, f"regrow {name}: {parameter.written}"
            assert f"`{parameter.written.split(', ')[0]}`" in section
    assert "\nregrow tune [OPTIONS] SCRIPT [ARGUMENTS...]\n" in page, "options first"


def test_the_reference_has_every_event_and_field() -> None:
    page = events.page()
    for one in AnyEvent.__args__:
        section = page.split(f"### `{one.__struct_config__.tag}`\n")[1].split("\n### ")[0]
        for field in one.__struct_fields__:
            assert field == "t" or f"| `{field}` |" in section


@pytest.mark.parametrize("page", reference.pages(), ids=lambda page: page.name)
def test_the_references_can_be_read_in_the_repository_and_are_current(page: Path) -> None:
    written = page.read_text()
    assert written == reference.anew(written), "python -m docs.site.reference writes it"
    assert not re.search(r"^:::", written, re.MULTILINE), "a code host would show no more than this"


def test_the_reference_of_python_has_signatures_and_docstrings() -> None:
    page = python_api.page("regrow.Experiment")
    assert "### Experiment\n\n```py\nclass Experiment(\n    trainable: " in page
    assert "#### run\n\n```py\nrun(\n    *,\n    trials: int | None = None,\n" in page
    assert "* `quiet` (`bool`): print no progress." in page
    assert "_object" not in page
    assert "#### keep" in python_api.page("regrow.TrialResult {members: [drop, keep]}")
    assert "####" not in python_api.page("regrow.AttemptResult {members: false}")


def test_the_site_has_the_references_made_anew() -> None:
    page = "# A\n\n<!-- generated: {} -->\nold\n<!-- /generated -->\n\nafter\n"
    shown = hooks.on_page_markdown(page.format("python regrow.Trial {members: [step]}"), DOCUMENT)
    assert shown == "# A\n\n::: regrow.Trial\n    options: {members: [step]}\n\n\nafter\n"
    told = hooks.on_page_markdown(page.format("prefect events"), DOCUMENT)
    assert "old" not in told
    assert events.of_prefect() in told
    with pytest.raises(KeyError):
        hooks.on_page_markdown(page.format("nothing of ours"), DOCUMENT)


def test_every_diagram_is_drawn_and_no_other() -> None:
    found = {
        diagrams.name(m[1])
        for page in PAGES
        for m in diagrams.FENCE.finditer(page.path.read_text())
    }
    drawn = {file.name for file in diagrams.DRAWN.glob("*.svg")}
    assert drawn == {f"{name}-{theme}.svg" for name in found for theme in diagrams.THEMES}


def test_a_diagram_that_was_not_drawn_is_told() -> None:
    with pytest.raises(FileNotFoundError, match=r"page.md: a diagram was not drawn yet"):
        diagrams.as_pictures("```mermaid\nflowchart\n```\n", "page.md")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("digits finished: 12 of 12 trials", "digits finished: 8 of 8 trials"),
        ("best: trial 7, accuracy 0.98", "best: trial 0, accuracy 1e-05"),
        ("a ... b", "a whatever stands there b"),
        ("trial   state", "trial state"),
        ("one\n...\ntwo", "zero\none\nbetween\ntwo\nthree"),
    ],
)
def test_what_a_page_shows_may_differ_in_numbers_and_blanks(shown: str, printed: str) -> None:
    compare(shown, printed, "page.md:1")


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("finished", "interrupted"),
        ("two\none", "one\ntwo"),
        ("3 done", "3 done, 1 failed"),
        ("lr: 1", "lr: null"),
        ("a1", "a2"),
    ],
)
def test_and_in_nothing_else(shown: str, printed: str) -> None:
    with pytest.raises(AssertionError, match=r"page.md:1: not printed"):
        compare(shown, printed, "page.md:1")


def test_a_pattern_takes_no_sign_of_the_page_for_its_own() -> None:
    assert re.fullmatch(pattern("a.b (c) [d]"), "a.b (c) [d]")
    assert not re.fullmatch(pattern("a.b"), "axb")


def test_a_page_is_read_as_blocks_with_their_marks(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(
        '<!-- test: after README.md -->\n\n```python title="a.py"\nx = 1\n```\n\n<!-- test: exit 3 -->\n'
        '<!-- test: instead 40 => 4 -->\n```sh\nrun 40\n```\n=== "tab"\n\n    ```text\n    deep\n      er\n    ```\n'
    )
    page = read(file)
    first, second, third = page.blocks
    assert page.after == "README.md"
    assert (first.language, first.title, first.body, first.marks) == (
        "python",
        "a.py",
        "x = 1\n",
        (),
    )
    assert (second.mark("exit"), second.mark("skip"), second.line) == ("3", None, 9)
    assert third.body == "deep\n  er\n"
