"""Who may import whom, and what may not be loaded early; read from the source of every module.

The checker is at the top, then the rules on our own modules, then the checker on modules that break
each rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest

from docs.site import rooms
from regrow.infra.ray.joining import TRIAL_MODULES
from tests.unit.foreign import PRIVATE, used
from tests.unit.fresh import printed

LAYERS = ("search", "tasks", "infra", "show", "flows", "apps", "face", "integrations")
"""From below: each may import from those before it. The face is all that is in none of the
others.
"""
NAMES = {"regrow", "regrow.cli.tune", "regrow.optuna", "regrow.torch", "regrow.tune"}
"""Names of the face behind which an integration is, imported when it is asked for."""
APART = {
    "regrow.search.samplers": "regrow.search.schedulers",
    "regrow.search.schedulers": "regrow.search.samplers",
}
"""What does not know the other: what both need lies beside them in search/."""
ROOMS = {
    "search": ("", "space", "samplers", "schedulers", "spec", "history", "planning"),
    "tasks": (
        "",
        "process",
        "ports",
        "output",
        "media",
        "checkpoint",
        "trial",
        "program",
        "attempt",
        "group",
    ),
    "infra": (
        "",
        "machine",
        "stores",
        "log",
        "state",
        "mlflow",
        "ray",
        "prefect",
        "local",
        "clusters",
    ),
    "show": ("", "web", "views", "exports", "figures", "live", "report", "estimate"),
    "apps": ("", "serving", "station", "page", "agent"),
}
"""The rooms of a folder, from below: each may import from those before it. The first is the folder
itself.
"""
NOT_IN_SEARCH = {
    "asyncio",
    "fsspec",
    "glob",
    "io",
    "logging",
    "mlflow",
    "os",
    "pathlib",
    "prefect",
    "ray",
    "requests",
    "s3fs",
    "secrets",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}
"""What gives I/O, a clock, randomness of its own, or another process: decisions must not depend on
it.
"""
NOT_IN_TASKS = {"optuna", "prefect", "ray"}
"""An attempt knows the ports alone: it runs as well in a thread of a test."""
SEEDED = {
    "BitGenerator",
    "Generator",
    "PCG64",
    "Philox",
    "Random",
    "RandomState",
    "SeedSequence",
    "default_rng",
}
"""What of `random` and `numpy.random` is a generator with a seed given to it; all else draws from a
global one.
"""
CLOCKS = {"now", "today", "utcnow"}

HEAVY = (
    "matplotlib",
    "mlflow",
    "optuna",
    "pandas",
    "plotly",
    "pyarrow",
    "ray.rllib",
    "ray.tune",
    "sklearn",
    "tensorboardX",
    "torch",
)
"""Slow to import: mlflow and ray.rllib 4 s, torch 2 s, sklearn 1.5 s, pandas 0.6 s, optuna and
plotly 0.5 s.
"""
HEAVY_ALLOWED = {
    "regrow.show.exports.optuna_database",
    "regrow.show.exports.optuna_private",
    "regrow.show.figures.embedded",
    "regrow.show.exports.tensorboard",
    "regrow.infra.mlflow.bulk",
    "regrow.infra.mlflow.experiment",
    "regrow.infra.mlflow.in_trial_runs",
    "regrow.infra.mlflow.server",
    "regrow.infra.mlflow.public",
    "regrow.infra.mlflow.register",
    "regrow.show.exports.optuna_study",
    "regrow.search.samplers.define_by_run_model",
    "regrow.search.samplers.optuna_private",
    "regrow.search.samplers.optuna_study_model",
    "regrow.search.samplers.tpe_axes",
    "regrow.search.samplers.tpe_model",
}
"""The adapters themselves: imported only inside of the functions that need them. So are all modules
of integrations.
"""


SERVED = {"fastapi", "jinja2", "starlette", "uvicorn"}
"""What serves pages: above infra, only the page and serving need it. No command waits for its
import.
"""
SERVING = (
    "regrow.apps.page",
    "regrow.apps.station.triggers.hooks",  # a route of the page
    # of the processes that answer, not of their supervisor
    "regrow.apps.serving.app",
    "regrow.apps.serving.on_ray",
    "regrow.apps.serving.replica",
)


def layer(module: str) -> str:
    """Which of the layers `regrow.…` belongs to."""
    part = module.partition(".")[2].partition(".")[0]
    return part if part in LAYERS else "face"


def integration(module: str) -> str | None:
    """The library that a module of regrow.integrations is for; None for what serves several of
    them, and for other modules.
    """
    parts = module.split(".")
    if (
        parts[:2] != ["regrow", "integrations"]
        or len(parts) == 2
        or parts[2] in ("installed", "reports", "torch")
    ):
        return None
    return parts[2]


def room(module: str, folder: str) -> str | None:
    """Which of a folder's rooms a module is in, "" for what stands in none; None for a module of
    another folder.
    """
    _, own, *below = module.split(".")[:3] if "." in module else ("", "")
    if own != folder:
        return None
    return below[0] if below and below[0] in ROOMS[folder] else ""


def climbs(module: str, name: str) -> bool:
    """Whether `module` imports from a room above its own."""
    for folder, order in ROOMS.items():
        here, there = room(module, folder), room(name, folder)
        if here is not None and there is not None:
            return order.index(there) > order.index(here)
    return False


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement may import: for `from a import b` both `a` and `a.b`, as b may
    be a module.
    """
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            below = [f"{module}.{alias.name}" for alias in names]
            return below if module == "regrow" else [module, *below]
        case ast.Call(
            func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [name]
    return []


def within(module: str, packages: tuple[str, ...]) -> bool:
    """Whether `module` is one of the packages or below one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def broken(module: str, source: str) -> list[str]:
    """What in the source breaks the rules on imports, at whatever depth: a line for each."""
    own = layer(module)
    found: list[tuple[ast.AST, str]] = []
    tree = ast.parse(source)
    if module not in PRIVATE:
        found += [
            (node, f"a private name of another library ({name})") for node, name in used(tree)
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append((node, "a relative import"))
        ours = [name for name in imported(node) if within(name, ("regrow",))]
        above = LAYERS[LAYERS.index(own) + 1 :] if module not in NAMES else ()
        found += [
            (node, f"{own} imports {layer(name)} ({name})") for name in ours if layer(name) in above
        ]
        found += [
            (node, f"{module} imports from a room above ({name})")
            for name in ours
            if climbs(module, name)
        ]
        apart = tuple(other for part, other in APART.items() if within(module, (part,)))
        found += [
            (node, f"{module} imports {name}, of which it does not know")
            for name in ours
            if within(name, apart)
        ]
        if own == "search":
            found += [(node, reason) for reason in impure(node)]
        if own in ("flows", "apps", "face") and not within(module, SERVING):
            found += [(node, f"only the page and serving serve ({name})") for name in served(node)]
        if own != "integrations":
            found += [
                (node, f"only integrations know PyTorch ({name})")
                for name in imported(node)
                if within(name, ("torch",))
            ]
        if (of := integration(module)) is not None:
            others = [name for name in ours if integration(name) not in (None, of)]
            found += [
                (node, f"the integration of {of} imports another one ({name})") for name in others
            ]
        if own == "tasks":
            foreign = {name.partition(".")[0] for name in imported(node)} & NOT_IN_TASKS
            found += [(node, f"tasks imports {package}") for package in foreign]
    return [f"{module}:{getattr(node, 'lineno', 0)}: {reason}" for node, reason in found]


def served(node: ast.AST) -> set[str]:
    """What a node imports of the libraries that serve pages."""
    return {name.partition(".")[0] for name in imported(node)} & SERVED


def impure(node: ast.AST) -> Iterator[str]:
    """Why a node of a module in search/ makes a decision depend on more than its arguments."""
    match node:
        case ast.ImportFrom(module="random" | "numpy.random", names=names):
            for alias in names:
                if alias.name not in SEEDED:
                    yield f"search draws from a global generator (random.{alias.name})"
        case ast.Import() | ast.ImportFrom():
            for package in {name.partition(".")[0] for name in imported(node)} & NOT_IN_SEARCH:
                yield f"search imports {package}"
        case ast.Call(func=ast.Name(id="open" | "print" | "input" as name)):
            yield f"search calls {name}()"
        case ast.Attribute(
            value=ast.Name(id="random") | ast.Attribute(attr="random"), attr=name
        ) if name not in SEEDED:
            yield f"search draws from a global generator (random.{name})"
        case ast.Call(
            func=ast.Attribute(attr="default_rng" | "Random" | "RandomState" as name),
            args=[],
            keywords=[],
        ):
            yield f"search makes a generator without a seed ({name})"
        case ast.Attribute(
            value=ast.Name(id="datetime" | "date") | ast.Attribute(attr="datetime" | "date"),
            attr=name,
        ):
            if name in CLOCKS:
                yield f"search reads the clock ({name})"


def loaded_early(source: str) -> set[str]:
    """What is imported when the module is: not inside of functions, nor for type checkers only."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        found.update(imported(node))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)
    return found


def heavy(sources: Mapping[str, str]) -> dict[str, str]:
    """The modules that are slow to import, and by what, directly or through one another; parent
    packages count.
    """
    early = {}
    for module, source in sources.items():
        parts = module.split(".")
        parents = {".".join(parts[:n]) for n in range(1, len(parts))}
        names = loaded_early(source)
        early[module] = (
            names | parents | {p for name in names for p in (name.rpartition(".")[0],) if p}
        )
    reached = {
        m: name for m, names in early.items() for name in sorted(names) if within(name, HEAVY)
    }
    before = -1
    while before != len(reached):
        before = len(reached)
        for module, names in early.items():
            through = sorted(names & reached.keys())
            if module not in reached and through:
                reached[module] = f"{through[0]} -> {reached[through[0]]}"
    return reached


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The source of each of our modules, by its name."""
    return {name.removesuffix(".__init__"): source for name, source in rooms.sources().items()}


def test_every_part_is_looked_at(sources: dict[str, str]) -> None:
    assert {layer(module) for module in sources} == set(LAYERS)
    assert {
        "regrow",
        "regrow.search.spec",
        "regrow.tasks.trial.trial",
        "regrow.flows.run",
        "regrow.infra.log.log",
    } <= sources.keys()
    for folder, all_rooms in ROOMS.items():
        assert {room(module, folder) for module in sources if layer(module) == folder} == set(
            all_rooms
        )
    for folder in ("infra", "show", "apps"):
        assert [module for module in sources if room(module, folder) == ""] == [
            f"regrow.{folder}"
        ], "a module in no room"
    assert sources.keys() >= HEAVY_ALLOWED | PRIVATE | NAMES, (
        "an exception for a module that is gone"
    )


def test_our_modules_keep_the_rules(sources: dict[str, str]) -> None:
    assert [
        line for module, source in sorted(sources.items()) for line in broken(module, source)
    ] == []


def test_only_adapters_are_slow_to_import(sources: dict[str, str]) -> None:
    slow = {
        module: through for module, through in heavy(sources).items() if module not in HEAVY_ALLOWED
    }
    assert {
        module: through
        for module, through in slow.items()
        if layer(module) != "integrations" and module not in NAMES
    } == {}


def test_starting_up_loads_nothing_heavy() -> None:
    """The same on the running thing: what the command line and a worker import."""
    modules = "regrow.cli, regrow.infra.ray.executor, regrow.flows.coordinator.coordinator, regrow.flows.recording.recorder, regrow.flows.run"
    code = f"import sys, {modules}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    assert printed(code).split() == []


def test_workers_load_nothing_of_prefect() -> None:
    """Trials, the coordinator and the recorder: 1.5 s of CPU and 100 MB each, and news of a
    zombie.
    """
    modules = ", ".join(
        (*TRIAL_MODULES, "regrow.flows.coordinator.actor", "regrow.flows.recording.recorder")
    )
    code = f"import sys, {modules}; print(*(name for name in sys.modules if name.partition('.')[0] == 'prefect'))"
    assert printed(code).split() == []


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        (
            "regrow.search.space",
            "from regrow.tasks.trial.trial import Trial",
            "search imports tasks",
        ),
        ("regrow.search.space", "import regrow", "search imports face"),
        (
            "regrow.search.space",
            "def f():\n    import regrow.infra.log.log",
            "search imports infra",
        ),
        (
            "regrow.search.space",
            "import importlib\nimportlib.import_module('regrow.flows.run')",
            "search imports flows",
        ),
        ("regrow.search.space", "from os import environ", "search imports os"),
        ("regrow.search.space", "import time as clock", "search imports time"),
        ("regrow.search.space", "import prefect.context", "search imports prefect"),
        ("regrow.search.space", "def f():\n    from ray import tune", "search imports ray"),
        ("regrow.search.space", "import logging", "search imports logging"),
        ("regrow.search.space", "import fsspec", "search imports fsspec"),
        ("regrow.search.space", "def f():\n    return open('x').read()", "search calls open()"),
        (
            "regrow.search.space",
            "import random\nx = random.random()",
            "global generator (random.random)",
        ),
        ("regrow.search.space", "from random import choice", "global generator (random.choice)"),
        (
            "regrow.search.space",
            "import numpy as np\nnp.random.seed(0)",
            "global generator (random.seed)",
        ),
        (
            "regrow.search.space",
            "import numpy as np\nr = np.random.default_rng()",
            "without a seed (default_rng)",
        ),
        (
            "regrow.search.space",
            "import datetime\nt = datetime.datetime.now()",
            "reads the clock (now)",
        ),
        (
            "regrow.search.space",
            "from datetime import date\nt = date.today()",
            "reads the clock (today)",
        ),
        (
            "regrow.search.samplers.dehb",
            "from regrow.search.schedulers import hyperband",
            "of which it does not know",
        ),
        (
            "regrow.search.schedulers.pbt",
            "def f():\n    import regrow.search.samplers.grid",
            "of which it does not know",
        ),
        ("regrow.tasks.trial.trial", "from regrow.infra.log.log import Log", "tasks imports infra"),
        ("regrow.tasks.trial.trial", "from regrow import experiment", "tasks imports face"),
        (
            "regrow.tasks.trial.trial",
            "def f():\n    from prefect import task",
            "tasks imports prefect",
        ),
        ("regrow.infra.log.log", "from regrow.flows import run", "infra imports flows"),
        ("regrow.infra.log.log", "from regrow.infra.state import places", "a room above"),
        (
            "regrow.search.options",
            "from regrow.search.spec.foreign import algorithm",
            "a room above",
        ),
        (
            "regrow.search.history.fold",
            "from regrow.search.planning.planner import Planner",
            "a room above",
        ),
        (
            "regrow.show.figures.style",
            "def f():\n    from regrow.show.report.table import rows",
            "a room above",
        ),
        (
            "regrow.tasks.trial.trial",
            "from regrow.tasks.attempt.attempt import run_attempt",
            "a room above",
        ),
        ("regrow.show.report.table", "from regrow.flows import launch", "show imports flows"),
        ("regrow.flows.run", "import regrow as rg", "flows imports face"),
        ("regrow.flows.run", "from regrow import Trial", "flows imports face"),
        ("regrow.flows.run", "from .attempts import Attempts", "a relative import"),
        ("regrow.cli.app", "from . import show", "a relative import"),
        (
            "regrow.cli.app",
            "def f():\n    from fastapi import FastAPI",
            "only the page and serving serve (fastapi)",
        ),
        (
            "regrow.flows.run",
            "def f():\n    import torch.nn",
            "only integrations know PyTorch (torch.nn)",
        ),
        (
            "regrow.flows.run",
            "def f():\n    from regrow.integrations.torch.state import State",
            "flows imports integrations",
        ),
        (
            "regrow.integrations.keras",
            "def f():\n    from regrow.integrations.flax import State",
            "keras imports another one",
        ),
        (
            "regrow.flows.launch",
            "from regrow.integrations.keras import Report",
            "flows imports integrations",
        ),
        (
            "regrow.experiment",
            "from regrow.integrations.keras import Report",
            "face imports integrations",
        ),
        *(
            (module, source, f"a private name of another library ({name})")
            for module, source, name in (
                (
                    "regrow.infra.ray.nodes",
                    "from ray._private import worker",
                    "ray._private:worker",
                ),
                (
                    "regrow.infra.ray.nodes",
                    "def f():\n    import ray.core.generated.autoscaler_pb2",
                    "ray.core.generated.autoscaler_pb2",
                ),
                (
                    "regrow.infra.ray.nodes",
                    "import importlib\nw = importlib.import_module('ray._private.worker')",
                    "ray._private.worker",
                ),
                (
                    "regrow.infra.ray.nodes",
                    "import ray\nx = ray._private.worker.global_worker",
                    "._private",
                ),
                (
                    "regrow.infra.ray.nodes",
                    "CODE = 'from ray._raylet import GcsClient; GcsClient()'",
                    "ray._raylet:GcsClient",
                ),
                (
                    "regrow.infra.ray.host",
                    "import ray\ndef f():\n    c = ray.get_runtime_context()\n    return c._x",
                    "._x",
                ),
                (
                    "regrow.infra.ray.cluster",
                    "import ray\nray.init(**{'_node_ip_address': 'a'})",
                    "._node_ip_address",
                ),
                ("regrow.infra.ray.cluster", "import ray\nray.init(_temp_dir='a')", "._temp_dir"),
                (
                    "regrow.tasks.process.running",
                    "import threading\nthreading._threading_atexits.clear()",
                    "._threading_atexits",
                ),
                (
                    "regrow.infra.machine.processes",
                    "import sys\nif (u := sys.modules.get('multiprocessing.util')):\n    u._run_finalizers()",
                    "._run_finalizers",
                ),
                ("regrow.tasks.output.traces", "import sys\nf = sys._getframe(1)", "._getframe"),
                (
                    "regrow.flows.run",
                    "from prefect.task_engine import run_task_async",
                    "prefect.task_engine:run_task_async",
                ),
                ("regrow.flows.run", "from prefect import server", "prefect:server"),
                (
                    "regrow.flows.run",
                    "from prefect.tasks import Task\nclass A(Task):\n    def f(self):\n        return self._b",
                    "._b",
                ),
                (
                    "regrow.infra.mlflow.sink",
                    "from mlflow import MlflowClient\ndef f(c: MlflowClient):\n    c._store",
                    "._store",
                ),
                (
                    "regrow.infra.mlflow.sink",
                    "from mlflow.store.tracking.dbmodels import models",
                    "mlflow.store.tracking.dbmodels:models",
                ),
                (
                    "regrow.show.exports.table",
                    "from optuna.storages._rdb import models",
                    "optuna.storages._rdb:models",
                ),
                (
                    "regrow.search.samplers.optuna_study",
                    "import optuna\ndef f(s: optuna.Study):\n    return s._storage",
                    "._storage",
                ),
            )
        ),
    ],
)
def test_a_module_that_breaks_a_rule_is_found(module: str, source: str, reason: str) -> None:
    assert reason in "\n".join(broken(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "regrow.search.space",
            "import math, random\nfrom regrow.search import errors\nr = random.Random(3).random()",
        ),
        (
            "regrow.search.space",
            "from random import Random\nimport numpy as np\nr = np.random.default_rng(3)",
        ),
        ("regrow.tasks.trial.trial", "import time, logging\nfrom regrow.search.events import Row"),
        (
            "regrow.infra.log.log",
            "from regrow.tasks.ports.store import Store\nfrom regrow.infra.stores import keys",
        ),
        (
            "regrow.flows.run",
            "from regrow.infra.ray import cluster\nfrom regrow.flows.attempts import Attempts",
        ),
        ("regrow.infra.ray.private", "from ray._private import worker"),
        (
            "regrow.infra.ray.nodes",
            "import ray\nclass A(ray.X):\n    def __init__(self):\n        self._a = ray.nodes()\n        self._a",
        ),
        (
            "regrow.cli.app",
            "import regrow\nfrom regrow import flows, views\nfrom regrow.cli import text",
        ),
        (
            "regrow.integrations.torch.state",
            "import torch\nfrom torch import nn\nfrom regrow.tasks.errors import UserError",
        ),
    ],
)
def test_a_module_that_keeps_the_rules_passes(module: str, source: str) -> None:
    assert broken(module, source) == []


@pytest.mark.parametrize(
    ("source", "is_heavy"),
    [
        ("import mlflow", True),
        ("from ray import tune", True),
        ("try:\n    import torch.nn\nexcept ImportError:\n    pass", True),
        ("class A:\n    from sklearn.svm import SVC", True),
        ("import regrow.infra.sink", True),
        ("from regrow.infra import sink", True),
        ("from regrow.infra.sink import Sink", True),
        ("from regrow.deep.module import x", True),
        ("def f():\n    import mlflow", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mlflow", False),
        ("import ray", False),
        ("import torchless", False),
    ],
)
def test_what_is_slow_to_import_is_found_through_other_modules(source: str, is_heavy: bool) -> None:
    others = {
        "regrow.infra.sink": "from mlflow import MlflowClient",
        "regrow.deep": "import optuna",
        "regrow.deep.module": "",
    }
    assert ("regrow.new" in heavy({**others, "regrow.new": source})) is is_heavy
