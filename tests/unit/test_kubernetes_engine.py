"""The engine's calls of kubectl: a program in its place notes what it is asked, and answers as a
Kubernetes cluster would.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray._private.runtime_env.packaging import create_package
from typer.testing import CliRunner

from regrow.cli.app import app
from regrow.flows.agents import in_words
from regrow.infra.clusters import project
from regrow.infra.clusters.agents import AgentWork
from regrow.infra.clusters.kubernetes import engine as under_test
from regrow.infra.clusters.kubernetes.engine import JobsEngine
from regrow.infra.clusters.kubernetes.kubectl import Kubectl
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserError
from tests.unit.kubernetes_clusters import FULL, described

_PROGRAM = """#!{python}
import json, sys
from pathlib import Path
here = Path({here!r})
words = [word for word in sys.argv[1:] if not word.startswith(("--context=", "--namespace="))]
taken = sys.stdin.read() if "--filename=-" in words or words[0] == "exec" else ""
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"words": sys.argv[1:], "stdin": taken}}) + "\\n")
answers = json.loads((here / "answers").read_text())
for begin, told in answers:
    if " ".join(words).startswith(begin):
        if told.get("once"):
            answers.remove([begin, told])
            (here / "answers").write_text(json.dumps(answers))
        if told.get("out"):
            print(told["out"], flush=True)
        print(told.get("err", ""), file=sys.stderr)
        if told.get("stay"):
            sys.stdin.read()
            import signal
            signal.pause()
        sys.exit(told.get("code", 0))
"""


class Office:
    """The program in kubectl's place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "kubectl"
        self.program.write_text(_PROGRAM.format(python=sys.executable, here=str(folder)))
        self.program.chmod(0o755)
        self.answer()

    def answer(self, *answers: tuple[str, Any]) -> None:
        """What is said to calls that begin so: text, an object, or {"out", "err", "code", "stay"};
        the first that fits.
        """
        told = [
            (
                begin,
                said
                if isinstance(said, dict) and not {"kind", "items"} & said.keys()
                else {"out": json.dumps(said)},
            )
            for begin, said in answers
        ]
        (self._folder / "answers").write_text(json.dumps(told))

    @property
    def calls(self) -> list[list[str]]:
        """The words of all calls, without context and namespace."""
        return [
            [word for word in call["words"] if not word.startswith(("--context=", "--namespace="))]
            for call in self._calls()
        ]

    @property
    def taken(self) -> list[dict[str, Any]]:
        """The objects that were applied."""
        return [
            made
            for call in self._calls()
            if "apply" in call["words"]
            for made in yaml.safe_load_all(call["stdin"])
        ]

    def raw(self) -> list[dict[str, Any]]:
        """All calls."""
        return self._calls()

    def _calls(self) -> list[dict[str, Any]]:
        file = self._folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.setenv("REGROW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", "hf-secret-4711")
    monkeypatch.setattr(under_test, "_LOOK_SECONDS", 0.01)
    (tmp_path / "bin").mkdir()
    return Office(tmp_path / "bin")


@pytest.fixture
def engine(office: Office) -> JobsEngine:
    return JobsEngine(described(FULL), Kubectl("lab", "ml", str(office.program)))


def items(*found: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "List", "items": list(found)}


def work(project: Path) -> AgentWork:
    return AgentWork(
        experiment="a", state="s3://bucket/x", project=project, words=("join", "a.yaml")
    )


def write_project(folder: Path) -> None:
    """Writes a cluster file, and an experiment with its code."""
    (folder / "cluster.yaml").write_text(yaml.safe_dump({**FULL, "secrets": []}))
    spec = {
        "name": "tried",
        "trainable": "work.py:train",
        "metric": "x",
        "mode": "max",
        "space": {"x": {"uniform": [0, 1]}},
        "trials": 2,
    }
    (folder / "work.py").write_text("def train(trial):\n    pass\n")
    (folder / "tried.yaml").write_text(yaml.safe_dump(spec))


def test_agents_come_as_jobs_and_go(
    office: Office, engine: JobsEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(office.program.parent), prepend=":")
    write_project(tmp_path)
    files = [str(tmp_path / name) for name in ("cluster.yaml", "tried.yaml")]
    where = ("--state", "s3://bucket/x")
    office.answer(("get jobs.batch", items()))
    done = CliRunner().invoke(app, ["cluster", "submit", *files, *where])
    assert done.exit_code == 0, done.output
    jobs = [made for made in office.taken if made["kind"] == "Job"]
    assert [job["metadata"]["name"] for job in jobs] == ["sweep-spot", "sweep-steady"]
    raw = office.raw()
    assert "hf-secret-4711" not in " ".join(word for call in raw for word in call["words"])
    assert {one["kind"] for one in office.taken} == {"Secret", "NetworkPolicy", "Job"}
    assert all({"--context=lab", "--namespace=ml"} <= {*call["words"]} for call in raw), (
        "in no other cluster"
    )
    command = jobs[1]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[3:] == ["join", "tried.yaml", *where, "--name", "tried"]
    written = tmp_path / "written"
    done = CliRunner().invoke(app, ["cluster", "export", *files, *where, "-o", str(written)])
    assert done.exit_code == 0, done.output
    text = (written / "agents.yaml").read_text()
    assert "hf-secret-4711" not in text
    assert "create secret generic sweep-env --from-env-file=FILE" in text
    kinds = [one["kind"] for one in yaml.safe_load_all(text)]
    assert kinds == ["Secret", "NetworkPolicy", "Job", "Job"]

    alive = {"kind": "Pod", "metadata": {"name": "p1"}, "spec": {"nodeName": "n7"}}
    alive["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    finished = {"state": {"terminated": {"finishedAt": "1970-01-01T00:00:09Z"}}}
    over = {"kind": "Pod", "metadata": {"name": "p2"}, "spec": {}}
    over["status"] = {"phase": "Failed", "containerStatuses": [finished]}
    steady = jobs[1] | {"status": {}}
    office.answer(
        ("get jobs.batch", items(steady)),
        ("get pods --selector=job-name=sweep-steady", items(alive, over)),
        ("logs p2", {"out": "first\nlast"}),
    )
    (submitted,) = engine.submissions()
    assert (submitted.experiment, submitted.state) == ("tried", "s3://bucket/x")
    most = steady["spec"]["parallelism"]
    told = in_words(engine.agents(submitted))
    assert told == ", ".join(["1 running", *[f"{most - 1} missing (sweep-steady)"] * (most > 1)])
    (said_last,) = [one for one in engine.outputs(submitted) if one.t]
    assert (said_last.title, said_last.lines, said_last.t) == ("p2", ["first", "last"], 9.0)
    again = CliRunner().invoke(app, ["cluster", "submit", *files, *where])
    assert "tried has Jobs already" in again.output

    office.answer(("get jobs.batch", items({"kind": "Job", "metadata": {"name": "sweep-spot"}})))
    with pytest.raises(RegrowError, match=r"^Job sweep-spot is under way"):
        engine.submit(work(tmp_path), lambda _: None)


def test_a_mistake_in_the_file_is_found_before_anything_is_asked(
    office: Office, tmp_path: Path
) -> None:
    wrong = JobsEngine(described(FULL, image="a b"), Kubectl("lab", "ml", str(office.program)))
    with pytest.raises(SpecError, match="is no name of an image"):
        wrong.submit(work(tmp_path), lambda _: None)
    assert office.calls == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "Pending"}, "pending"),
        ({"phase": "Running"}, "not ready"),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes",
                    }
                ]
            },
            "Unschedulable (0/3 nodes)",
        ),
        (
            {"initContainerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]},
            "PodInitializing",
        ),
    ],
)
def test_a_pod_that_is_not_ready_says_why(status: dict[str, Any], said: str) -> None:
    assert under_test._state({"metadata": {}, "status": status}) == said
    ending = {"metadata": {"deletionTimestamp": "now"}, "status": status}
    assert under_test._state(ending) == "ending"


def test_down_waits_until_nothing_of_it_is_left(engine: JobsEngine, office: Office) -> None:
    there = items({"kind": "Pod", "metadata": {"name": "one"}})
    office.answer(("get jobs.batch,", {"out": json.dumps(there), "once": True}), ("get", items()))
    said: list[str] = []
    engine.end(said.append)
    assert said == ["nothing of sweep is left in namespace ml"]
    looks = [call for call in office.calls if call[0] == "get"]
    ours = ["jobs.batch,networkpolicies,secrets", "--selector=regrow.io/cluster=sweep"]
    assert [call[1:3] for call in looks] == [[f"{ours[0]},pods", ours[1]]] * 2
    (deleted,) = [call for call in office.calls if call[0] == "delete"]
    assert deleted[1:3] == ours


def test_down_names_what_stays(
    engine: JobsEngine, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 1.0, 1e9))
    monkeypatch.setattr(
        under_test, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep)
    )
    office.answer(("get", items({"kind": "Pod", "metadata": {"name": "stuck"}})))
    with pytest.raises(RegrowError, match=r"^still in namespace ml: Pod stuck$"):
        engine.end(lambda _: None)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'error: context "lab" does not exist',
            "context: lab: kubectl knows no such context; see kubectl config get-contexts",
        ),
        (
            "E1123 11:54:24.866488 9319 memcache.go:265] dial\nThe connection to the server localhost:8080 was refused - did you?",
            "the Kubernetes cluster of the context lab cannot be reached: The connection to the server localhost:8080 was refused",
        ),
        (
            'Error from server (Forbidden): pods is forbidden: User "ada" cannot list',
            "the Kubernetes cluster of the context lab refuses: Error from server (Forbidden): pods is forbidden",
        ),
        (
            'error: error validating "STDIN": error validating data: ValidationError(Job.spec): unknown field "podFailurePolicy" in io.k8s.api.batch.v1.JobSpec; if you',
            "the Kubernetes cluster of the context lab does not know podFailurePolicy: Jobs of agents need Kubernetes 1.26 or later",
        ),
        (
            "error: failed to create typed patch object (ml/lab-steady; batch/v1, Kind=Job): .spec.podFailurePolicy: field not declared in schema",
            "the Kubernetes cluster of the context lab does not know spec.podFailurePolicy: Jobs of agents",
        ),
        ("", "the Kubernetes cluster of the context lab refuses: kubectl ended without a word"),
    ],
)
def test_what_kubectl_refuses_is_one_line(
    engine: JobsEngine, office: Office, said: str, told: str
) -> None:
    office.answer(("get", {"err": said, "code": 1}))
    with pytest.raises(RegrowError) as caught:
        engine.submissions()
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("said", ["", "a notice\n{}", "{}", '{"items": 5}', "[]"])
def test_what_kubectl_does_not_say_is_told(engine: JobsEngine, office: Office, said: str) -> None:
    office.answer(("get", {"out": said}))
    with pytest.raises(RegrowError, match=r"did not print the objects of .*is it kubectl itself"):
        engine.submissions()


def test_without_kubectl_it_is_said_what_to_install() -> None:
    with pytest.raises(
        UserError, match=r"^there is no command no-kubectl here; install it: https://"
    ):
        Kubectl(None, "ml", "no-kubectl").run("get", "pods")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize(
    ("context", "told"),
    [
        ("nowhere", "context: nowhere: kubectl knows no such context"),
        (None, "the Kubernetes cluster cannot be reached: "),
    ],
)
def test_the_real_kubectl_speaks_so(
    context: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_MASTER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RegrowError) as caught:
        Kubectl(context, "ml").run("get", "pods")
    assert str(caught.value).startswith(told)


def packed(folder: Path) -> bytes:
    return project.packed(folder, print, most=1_000_000, of="a test packs")


def test_a_project_is_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "src").mkdir(parents=True)
        (folder / ".git").mkdir()
        (folder / ".git" / "index").write_text(name)
        (folder / "src" / "train.py").write_text("pass\n")
        (folder / "run.sh").write_text("true\n")
        (folder / "run.sh").chmod(0o755 if name == "one" else 0o700)
    assert packed(tmp_path / "one") == packed(tmp_path / "two")
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path / "one"))) as tar:
        modes = {info.name: info.mode for info in tar}
    assert modes == {"run.sh": 0o755, "src": 0o755, "src/train.py": 0o644}


def test_a_project_has_what_ray_packs_also_of_what_links_lead_to(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for name, text in {
        "train.py": "",
        ".gitignore": "*.bin\n/data/\n!small.bin\nruns\n",
        "large.bin": "",
        "small.bin": "",
        "data/table.csv": "",
        "runs/1/log": "",
        "src/.gitignore": "made.py\n",
        "src/made.py": "",
        "src/data/model.py": "",
        "made.py": "",
        ".rayignore": "notes\n",
        "notes": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, text in {
        "common.py": "its text",
        "large.bin": "",
        "other.csv": "",
        ".gitignore": "*.csv\n",
    }.items():
        (other / name).write_text(text)
    (tmp_path / "linked").symlink_to(other)
    (tmp_path / "one.py").symlink_to(other / "common.py")
    (tmp_path / "gone.py").symlink_to(other / "gone.py")
    made = tmp_path_factory.mktemp("made") / "project.zip"
    create_package(str(tmp_path), made, include_gitignore=True)
    with zipfile.ZipFile(made) as zipped:
        sent = {one for one in zipped.namelist() if not one.endswith("/")}
    assert sent >= {"train.py", "small.bin", "made.py", "src/data/model.py", "linked/common.py"}
    assert sent.isdisjoint({"large.bin", "data/table.csv", "runs/1/log", "src/made.py", "notes"})
    assert sent.isdisjoint({"linked/other.csv", "linked/large.bin"})
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path))) as tar:
        files = {one.name for one in tar if one.isfile()}
        assert (files, tar.extractfile("one.py").read()) == (sent, b"its text")  # type: ignore[union-attr]  # a file


def test_a_project_that_is_too_large_for_a_secret_is_told_by_its_largest_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "data.bin").write_bytes(random.Random(0).randbytes(1_200_000))
    with pytest.raises(
        UserError,
        match=r"the 1 MB, packed, that a test packs; name .* in a .gitignore there, .*Its largest files: data.bin \(\d\.\d MB\)$",
    ):
        packed(tmp_path)
