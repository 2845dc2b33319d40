"""The engine's calls of kubectl: a program in its place notes what it is asked, and answers as a
Kubernetes cluster would.
"""

from __future__ import annotations

import base64
import io
import json
import random
import shutil
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from regrow.cli.app import app
from regrow.flows.agents import in_words
from regrow.infra.clusters import project
from regrow.infra.clusters.kubernetes import engine as under_test
from regrow.infra.clusters.kubernetes.agents import JobsEngine
from regrow.infra.clusters.kubernetes.engine import KubernetesEngine, state
from regrow.infra.clusters.kubernetes.kubectl import Kubectl
from regrow.infra.clusters.provider import Machine, Provider
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
def engine(office: Office) -> KubernetesEngine:
    return KubernetesEngine(described(FULL), Kubectl("lab", "ml", str(office.program)))


def pod(name: str, role: str, *, ready: bool = True, **status: Any) -> dict[str, Any]:
    labels = {
        "ray.io/node-type": role,
        "ray.io/market-type": "on-demand",
        "regrow.io/instance-type": role,
    }
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "status": {"conditions": conditions, **status},
    }


def items(*found: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "List", "items": list(found)}


TOKEN = {"kind": "Secret", "data": {"auth_token": base64.b64encode(b"made-elsewhere").decode()}}
UP = (("get pods", items(pod("sweep-head", "head"))), ("get secrets sweep-token", TOKEN))


def test_it_is_an_engine(engine: KubernetesEngine) -> None:
    taken: Provider = engine
    assert [(one.role, one.type, one.market, one.most, one.price) for one in taken.plan()] == [
        ("head", "head", "on-demand", 1, None),
        ("workers", "spot", "spot", 30, None),
        ("workers", "steady", "on-demand", 8, None),
    ]


def test_up_makes_the_cluster_with_the_token_that_is_kept_here(
    engine: KubernetesEngine, office: Office
) -> None:
    office.answer(*UP)
    engine.up(lambda _: None)
    assert [(made["kind"], made["metadata"]["name"]) for made in office.taken] == [
        ("Secret", "sweep-token"),
        ("Secret", "sweep-env"),
        ("NetworkPolicy", "sweep-network"),
        ("RayCluster", "sweep"),
    ]
    assert base64.b64decode(office.taken[0]["data"]["auth_token"]).decode() == engine.folder.token


def test_the_token_of_a_cluster_that_was_brought_up_elsewhere_is_taken_over(
    engine: KubernetesEngine, office: Office
) -> None:
    office.answer(("get rayclusters", {"kind": "RayCluster", "metadata": {}, "spec": {}}), *UP)
    engine.up(lambda _: None)
    assert engine.folder.token == "made-elsewhere"
    assert engine.folder.token_file.stat().st_mode & 0o077 == 0


def test_no_secret_is_in_a_command_line(engine: KubernetesEngine, office: Office) -> None:
    office.answer(*UP)
    engine.up(lambda _: None)
    kept = ("hf-secret-4711", engine.folder.token)
    assert not [
        word
        for call in office.raw()
        for word in call["words"]
        if any(secret in word for secret in kept)
    ]
    (secret,) = [made for made in office.taken if made["metadata"]["name"] == "sweep-env"]
    assert base64.b64decode(secret["data"]["HF_TOKEN"]) == b"hf-secret-4711"


def test_each_call_names_context_and_namespace(engine: KubernetesEngine, office: Office) -> None:
    office.answer(*UP)
    engine.up(lambda _: None)
    assert all(call["words"][:2] == ["--context=lab", "--namespace=ml"] for call in office.raw())


def test_a_second_up_changes_nothing_that_runs(engine: KubernetesEngine, office: Office) -> None:
    office.answer(*UP)
    engine.up(lambda _: None)
    there = office.taken[-1]
    before = len(office.calls)
    office.answer(("get rayclusters", there), *UP)
    said: list[str] = []
    engine.up(said.append)
    assert {call[0] for call in office.calls[before:]} == {"get"}
    assert said == []


def test_a_changed_file_is_said_and_not_applied_to_a_cluster_that_is_up(
    engine: KubernetesEngine, office: Office
) -> None:
    there = {
        "kind": "RayCluster",
        "metadata": {"annotations": {"regrow.io/file": "another"}},
        "spec": {},
    }
    office.answer(("get rayclusters", there), *UP)
    said: list[str] = []
    engine.up(said.append)
    assert said == [
        "the cluster file has changed since; what is up stays as it is until `down` and `up`"
    ]
    assert {call[0] for call in office.calls} == {"get"}


def test_a_cluster_that_suspended_itself_goes_on(engine: KubernetesEngine, office: Office) -> None:
    office.answer(
        ("get rayclusters", {"kind": "RayCluster", "metadata": {}, "spec": {"suspend": True}}), *UP
    )
    engine.up(lambda _: None)
    (patch,) = [call for call in office.calls if call[0] == "patch"]
    assert patch == [
        "patch",
        "rayclusters.ray.io",
        "sweep",
        "--type=merge",
        '--patch={"spec": {"suspend": false}}',
    ]


def test_a_head_that_cannot_start_ends_the_wait_with_the_reason(
    engine: KubernetesEngine, office: Office
) -> None:
    waiting = {
        "containerStatuses": [
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
        ]
    }
    office.answer(("get pods", items(pod("sweep-head", "head", ready=False, **waiting))))
    with pytest.raises(
        RegrowError,
        match=r"^the head's pod does not start: ImagePullBackOff \(no such image\); see kubectl describe",
    ):
        engine.up(lambda _: None)


def test_a_mistake_in_the_file_is_found_before_anything_is_asked(office: Office) -> None:
    wrong = KubernetesEngine(
        described(FULL, setup=["apt update"]), Kubectl("lab", "ml", str(office.program))
    )
    with pytest.raises(SpecError):
        wrong.up(lambda _: None)
    assert office.calls == []


def test_an_experiment_comes_as_a_job_with_the_projects_files(
    engine: KubernetesEngine, office: Office, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "sweep.yaml").write_text("trials: 3\n")
    engine.start(
        ("regrow", "run", "sweep.yaml", "--state", "s3://bucket/prefix"), folder, lambda _: None
    )
    assert [made["kind"] for made in office.taken] == [
        "Secret",
        "Secret",
        "Secret",
        "NetworkPolicy",
        "RayJob",
    ]
    files = base64.b64decode(office.taken[2]["data"]["project.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(files)) as tar:
        assert tar.getnames() == ["sweep.yaml"]


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


def test_the_command_makes_a_job_that_needs_nobody(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(office.program.parent), prepend=":")
    write_project(tmp_path)
    words = [
        "cluster",
        "submit",
        str(tmp_path / "cluster.yaml"),
        str(tmp_path / "tried.yaml"),
        "--state",
        "s3://bucket/x",
    ]
    done = CliRunner().invoke(app, [*words, "--job", "--trials", "5"])
    assert done.exit_code == 0, done.output
    job = office.taken[-1]
    assert job["kind"] == "RayJob"
    command = "regrow run tried.yaml --state s3://bucket/x --trials 5 --prefect-port 4200"
    assert job["spec"]["entrypoint"].endswith(f" -- {command}")
    assert "REGROW_SLOTS=38" in job["spec"]["entrypoint"]
    assert job["spec"]["metadata"] == {
        "regrow.experiment": "tried",
        "regrow.state": "s3://bucket/x",
    }


def test_agents_come_as_jobs_and_go_where_no_operator_is(
    office: Office, engine: KubernetesEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(office.program.parent), prepend=":")
    write_project(tmp_path)
    files = [str(tmp_path / name) for name in ("cluster.yaml", "tried.yaml")]
    where = ("--state", "s3://bucket/x")
    office.answer(("get jobs.batch", items()))
    done = CliRunner().invoke(app, ["cluster", "submit", *files, *where, "--agents"])
    assert done.exit_code == 0, done.output
    jobs = [made for made in office.taken if made["kind"] == "Job"]
    assert [job["metadata"]["name"] for job in jobs] == ["sweep-spot", "sweep-steady"]
    command = jobs[1]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[3:] == ["join", "tried.yaml", *where, "--name", "tried"]
    written = tmp_path / "written"
    done = CliRunner().invoke(app, ["cluster", "export", *files, *where, "-o", str(written)])
    assert done.exit_code == 0, done.output
    text = (written / "agents.yaml").read_text()
    kinds = [one["kind"] for one in yaml.safe_load_all(text)]
    assert kinds == ["Secret", "NetworkPolicy", "Job", "Job"]
    secrets = {one["metadata"]["name"] for one in office.taken if one["kind"] == "Secret"}
    assert secrets == {"sweep-env", "sweep-project"}, "agents have a token of their own"
    assert "sweep-env --from-env-file=FILE" in text
    assert "sweep-token" not in text

    alive = {"kind": "Pod", "metadata": {"name": "p1"}, "spec": {"nodeName": "n7"}}
    alive["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    finished = {"state": {"terminated": {"finishedAt": "1970-01-01T00:00:09Z"}}}
    over = {"kind": "Pod", "metadata": {"name": "p2"}, "spec": {}}
    over["status"] = {"phase": "Failed", "containerStatuses": [finished]}
    begins = {"state": {"waiting": {"reason": "PodInitializing"}}}
    young = {"kind": "Pod", "metadata": {"name": "p3"}, "spec": {"nodeName": "n7"}}
    young["status"] = {"phase": "Pending", "containerStatuses": [begins]}
    steady = jobs[1] | {"status": {}}
    office.answer(
        ("get jobs.batch", items(steady)),
        ("get pods --selector=job-name=sweep-steady", items(alive, over, young)),
        ("logs p2", {"out": "first\nlast"}),
    )
    by_jobs = JobsEngine(engine.cluster, engine)
    (submitted,) = by_jobs.submissions()
    assert (submitted.experiment, submitted.state) == ("tried", "s3://bucket/x")
    most = steady["spec"]["parallelism"]
    told = in_words(by_jobs.agents(submitted))
    missing = [f"{most - 2} missing (sweep-steady)"] * (most > 2)
    assert told == ", ".join(["1 running", "1 starting", *missing])
    (said_last,) = [one for one in by_jobs.outputs(submitted) if one.t]
    assert (said_last.title, said_last.lines, said_last.t) == ("p2", ["first", "last"], 9.0)
    again = CliRunner().invoke(app, ["cluster", "submit", *files, *where, "--agents"])
    assert "tried has Jobs already" in again.output

    office.answer(("get jobs.batch", items({"kind": "Job", "metadata": {"name": "sweep-spot"}})))
    with pytest.raises(RegrowError, match=r"^Job sweep-spot is under way"):
        engine.start_agents(("join", "tried.yaml"), tmp_path, lambda _: None)

    unknown = 'error: the server doesn\'t have a resource type "rayclusters"'
    office.answer(("get rayclusters", {"err": unknown, "code": 1}), ("get", items()))
    said: list[str] = []
    engine.down(said.append)
    assert said == ["nothing of sweep is left in namespace ml"]


def test_a_job_that_is_under_way_is_not_replaced(
    engine: KubernetesEngine, office: Office, tmp_path: Path
) -> None:
    office.answer(("get rayjobs", {"kind": "RayJob", "status": {"jobDeploymentStatus": "Running"}}))
    with pytest.raises(RegrowError, match=r"^RayJob sweep is under way \(Running\)"):
        engine.start(("regrow", "run", "sweep.yaml"), tmp_path, lambda _: None)
    assert office.taken == []


def test_a_job_that_has_ended_makes_room(
    engine: KubernetesEngine, office: Office, tmp_path: Path
) -> None:
    office.answer(
        ("get rayjobs", {"kind": "RayJob", "status": {"jobDeploymentStatus": "Complete"}})
    )
    engine.start(("regrow", "run", "sweep.yaml"), tmp_path / "bin", lambda _: None)
    assert ["delete", "rayjobs.ray.io", "sweep", "--wait"] in office.calls


def test_status_is_the_pods_with_the_head_first(engine: KubernetesEngine, office: Office) -> None:
    office.answer(
        (
            "get pods --selector=regrow.io/cluster=sweep",
            items(pod("a", "worker"), pod("b", "head", ready=False)),
        )
    )
    assert engine.status() == [
        Machine(address="b", role="head", type="head", market="on-demand", state="unknown"),
        Machine(address="a", role="worker", type="worker", market="on-demand", state="running"),
    ]


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
    assert state({"metadata": {}, "status": status}) == said
    assert state({"metadata": {"deletionTimestamp": "now"}, "status": status}) == "ending"


def test_a_command_runs_in_the_heads_container_with_its_exit_code(
    engine: KubernetesEngine, office: Office
) -> None:
    office.answer(
        ("get pods", items(pod("sweep-head", "head"))), ("exec", {"out": "said", "code": 3})
    )
    done = engine.command(("regrow", "show"))
    assert (done.returncode, done.stdout) == (3, b"said\n")
    assert office.calls[-1] == [
        "exec",
        "--stdin",
        "sweep-head",
        "--container=ray-head",
        "--",
        "/bin/sh",
        "-c",
        'PATH=/opt/venv/bin:$PATH exec "$@"',
        "sh",
        "regrow",
        "show",
    ]


def test_a_command_is_held_as_long_as_the_block_lasts(
    engine: KubernetesEngine, office: Office
) -> None:
    office.answer(("get pods", items(pod("sweep-head", "head"))))
    with engine.hold(("regrow", "ui", "a b")):
        pass
    assert office.calls[-1][-1] == "regrow ui 'a b' & child=$!; cat > /dev/null; kill $child"


def test_a_tunnel_leads_to_the_port_that_kubectl_took(
    engine: KubernetesEngine, office: Office
) -> None:
    forwarding = {"out": "Forwarding from 127.0.0.1:40123 -> 8265", "stay": True}
    office.answer(("get pods", items(pod("sweep-head", "head"))), ("port-forward", forwarding))
    with engine.tunnel(8265) as port:
        assert port == 40123
    assert office.calls[-1] == ["port-forward", "--address=127.0.0.1", "pod/sweep-head", ":8265"]


def test_a_tunnel_that_cannot_be_made_says_why(engine: KubernetesEngine, office: Office) -> None:
    office.answer(
        ("get pods", items(pod("sweep-head", "head"))),
        ("port-forward", {"err": "error: pod is not running", "code": 1}),
    )
    with (
        pytest.raises(
            RegrowError,
            match="the Kubernetes cluster of the context lab refuses: pod is not running",
        ),
        engine.tunnel(1),
    ):
        pass


def test_without_a_head_that_stays_there_is_nothing_to_talk_to(
    engine: KubernetesEngine, office: Office
) -> None:
    ending = pod("old", "head")
    ending["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    office.answer(("get pods", items(pod("a", "worker"), ending)))
    with pytest.raises(RegrowError, match=r"^sweep has no head; see regrow cluster status$"):
        engine.command(("true",))


def test_down_waits_until_nothing_of_it_or_of_what_was_made_of_it_is_left(
    engine: KubernetesEngine, office: Office
) -> None:
    gone = items()
    office.answer(
        (
            "get rayclusters.ray.io --selector=regrow.io/cluster=sweep",
            items({"kind": "RayCluster", "metadata": {"name": "sweep-x1"}}),
        ),
        ("get pods,services", {"out": json.dumps(items(pod("sweep-head", "head"))), "once": True}),
        ("get", gone),
    )
    said: list[str] = []
    engine.down(said.append)
    assert said == ["nothing of sweep is left in namespace ml"]
    looks = [
        call
        for call in office.calls
        if call[:2] == ["get", "pods,services,secrets,serviceaccounts,roles,rolebindings,jobs"]
    ]
    assert [call[2] for call in looks] == ["--selector=ray.io/cluster in (sweep-x1)"] * 2
    (deleted,) = [call for call in office.calls if call[0] == "delete"]
    assert deleted[1:3] == [
        "rayjobs.ray.io,rayclusters.ray.io,jobs.batch,networkpolicies,secrets",
        "--selector=regrow.io/cluster=sweep",
    ]


def test_down_names_what_stays(
    engine: KubernetesEngine, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_DOWN_SECONDS", 10.0)
    clock = iter((0.0, 1.0, 11.0))
    monkeypatch.setattr(
        under_test, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=time.sleep)
    )
    office.answer(("get rayclusters.ray.io --", items()), ("get", items(pod("stuck", "worker"))))
    with pytest.raises(RegrowError, match=r"^still in namespace ml: Pod stuck$"):
        engine.down(lambda _: None)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'error: context "lab" does not exist',
            "context: lab: kubectl knows no such context; see kubectl config get-contexts",
        ),
        (
            'error: the server doesn\'t have a resource type "rayclusters"',
            "the Kubernetes cluster of the context lab has no KubeRay operator, or an old one; have one of 1.7 or later installed: ",
        ),
        (
            'error: resource mapping not found: no matches for kind "RayCluster" in version "ray.io/v1"',
            "the Kubernetes cluster of the context lab has no KubeRay operator, or an old one",
        ),
        (
            'RayCluster in version "v1" cannot be handled as a RayCluster: strict decoding error: unknown field "spec.upgradeStrategy"',
            "the Kubernetes cluster of the context lab has no KubeRay operator, or an old one",
        ),
        (
            'error: error validating "STDIN": error validating data: ValidationError(Job.spec): unknown field "podFailurePolicy" in io.k8s.api.batch.v1.JobSpec; if you',
            "the Kubernetes cluster of the context lab does not know podFailurePolicy: Jobs of agents need Kubernetes 1.26 or later",
        ),
        (
            "error: failed to create typed patch object (ml/lab-steady; batch/v1, Kind=Job): .spec.podFailurePolicy: field not declared in schema",
            "the Kubernetes cluster of the context lab does not know spec.podFailurePolicy: Jobs of agents",
        ),
        (
            "E1123 11:54:24.866488 9319 memcache.go:265] dial\nThe connection to the server localhost:8080 was refused - did you?",
            "the Kubernetes cluster of the context lab cannot be reached: The connection to the server localhost:8080 was refused",
        ),
        (
            'Error from server (Forbidden): pods is forbidden: User "ada" cannot list',
            "the Kubernetes cluster of the context lab refuses: Error from server (Forbidden): pods is forbidden",
        ),
        ("", "the Kubernetes cluster of the context lab refuses: kubectl ended without a word"),
    ],
)
def test_what_kubectl_refuses_is_one_line(
    engine: KubernetesEngine, office: Office, said: str, told: str
) -> None:
    office.answer(("get", {"err": said, "code": 1}))
    with pytest.raises(RegrowError) as caught:
        engine.status()
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


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


def test_what_is_exported_has_no_value_of_a_variable_and_says_how_to_make_the_secret(
    engine: KubernetesEngine,
) -> None:
    (text,) = engine.files().values()
    assert text == engine.files()["kubernetes.yaml"]
    assert b"hf-secret-4711" not in text
    assert b"offline-4711" not in text
    assert b"create secret generic sweep-env --from-env-file=FILE" in text
    assert [one["kind"] for one in yaml.safe_load_all(text)] == ["NetworkPolicy", "RayCluster"]


def test_a_project_is_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "src").mkdir(parents=True)
        (folder / ".git").mkdir()
        (folder / ".git" / "index").write_text(name)
        (folder / "src" / "train.py").write_text("pass\n")
        (folder / "run.sh").write_text("true\n")
        (folder / "run.sh").chmod(0o755 if name == "one" else 0o700)
    assert project.packed(tmp_path / "one") == project.packed(tmp_path / "two")
    with tarfile.open(fileobj=io.BytesIO(project.packed(tmp_path / "one"))) as tar:
        assert {info.name: info.mode for info in tar} == {"run.sh": 0o755, "src/train.py": 0o644}


def test_a_project_that_is_too_large_for_a_secret_is_told_by_its_largest_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "data.bin").write_bytes(random.Random(0).randbytes(1_200_000))
    with pytest.raises(
        UserError,
        match=r"1 MB at most; put data into a bucket.*Its largest files: data.bin \(\d\.\d MB\)$",
    ):
        project.packed(tmp_path)
