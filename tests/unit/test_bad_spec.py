"""Keys and values that are refused before anything is started: the exact line that says what was
wrong, where, and what to do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from regrow import Experiment
from tests.unit.refusing import Refused, spec


def unplaced(said: str) -> str:
    """A message without its line: JSON has one line, and places are tested below."""
    return re.sub(r"^s\.yaml:1: ", "s.yaml: ", said)


KNOWN = (
    "name, trainable, command, rllib, report, metric, mode, step_metric, score, space, search, schedule, trials, budget, max_steps, concurrency, constraints, points, enqueue, repeats, duplicates, warm_start, learn_from, resources, retries, on_oom, checkpoint, "
    "lease, stall, stop, seed, market, price_per_hour, store_prices, mlflow, register, notify, when, serve, event, state, env, working_dir"
)
NAME = (
    "is no name; write 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit"
)
FUNCTION = "names no function or class; write file.py:function or package.module:Class"
METRIC = "write a name, or a list of {name: ..., mode: ...}"
CHOSEN = "write NAME or {NAME: {option: value}}"
WHOLE = "is not a whole number; write a whole number"
SOMETHING = "give cpu, gpu, memory or custom"
FAR = 'stop.deadline: "{}": is too far away; write a time, such as 2026-12-04T08:00 (of this machine\'s time zone), "2026-12-04T08:00 Europe/Berlin" or 2026-12-04T08:00+01:00, or a span from the creation, such as 8h'
SECRET = "looks like a secret, which would be stored; write `{}: null`, which forwards it from your environment"


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        # unknown keys, at the top and below
        ({"trails": 3}, "trails: 3: unknown key; did you mean 'trials'?"),
        ({"max-steps": 3}, "max-steps: 3: unknown key; did you mean 'max_steps'?"),
        ({"trails": 3, "trials": ...}, "trails: 3: unknown key; did you mean 'trials'?"),
        ({"metrc": "a", "metric": ...}, "metrc: \"a\": unknown key; did you mean 'metric'?"),
        ({"zzz": 1}, f"zzz: 1: unknown key; known: {KNOWN}"),
        ({"api_key": "abc"}, f'api_key: "***": unknown key; known: {KNOWN}'),
        ({"a\nb": 1}, f'"a\\nb": 1: unknown key; known: {KNOWN}'),
        ({"resources": {"gpus": 1}}, "resources.gpus: 1: unknown key; did you mean 'gpu'?"),
        ({"retries": {"eror": 1}}, "retries.eror: 1: unknown key; did you mean 'error'?"),
        (
            {"checkpoint": {"every_step": 1}},
            "checkpoint.every_step: 1: unknown key; did you mean 'every_steps'?",
        ),
        ({"stop": {"hour": 1}}, "stop.hour: 1: unknown key; did you mean 'hours'?"),
        (
            {"metric": [{"name": "a", "mod": "max"}], "mode": ...},
            "metric.0.mod: \"max\": unknown key; did you mean 'mode'?",
        ),
        # nested beyond what Python's own calls reach
        (
            {"space": {"lr": {"uniform": [0, 1]}, "c": {"constant": nested(200)}}},
            'space: ["lr", "c"]: has more than 100 maps and lists inside of each other; make it flatter',
        ),
        # missing
        ({"name": ...}, "name: is missing; add `name:`"),
        (
            {"trainable": ...},
            "trainable: is missing; write trainable: file.py:function, or command: [python, file.py, ...]",
        ),
        ({"metric": ...}, "metric: is missing; add `metric:`"),
        ({"mode": ...}, "mode: is missing; write mode: max or mode: min"),
        ({"space": ...}, "space: is missing; add `space:`"),
        (
            {"trials": ...},
            "trials: is missing; write the total number of trials, or budget (30: as many steps as 30 full trainings), stop.dollars or stop.deadline",
        ),
        ({"metric": [{"name": "a"}], "mode": ...}, "metric.0.mode: is missing; add `mode:`"),
        # name
        ({"name": 1}, "name: 1: is not text; put quotes around it"),
        ({"name": None}, "name: null: is empty; give it a value, or leave the key out"),
        ({"name": ["a"]}, 'name: ["a"]: is not text; write text'),
        ({"name": "a/b"}, f'name: "a/b": {NAME}'),
        ({"name": ".."}, f'name: "..": {NAME}'),
        ({"name": "../a"}, f'name: "../a": {NAME}'),
        ({"name": ""}, f'name: "": {NAME}'),
        ({"name": "a" * 64}, f'name: "{"a" * 64}": {NAME}'),
        # trainable
        ({"trainable": 1}, "trainable: 1: is not text; put quotes around it"),
        ({"trainable": "train"}, f'trainable: "train": {FUNCTION}'),
        (
            {"trainable": "work.py:"},
            'trainable: "work.py:": names no function or class; write work.py:Half or work.py:train',
        ),
        (
            {"trainable": "work.py"},
            'trainable: "work.py": names no function or class; write work.py:Half or work.py:train',
        ),
        ({"trainable": ":train"}, f'trainable: ":train": {FUNCTION}'),
        ({"trainable": "work.py:a-b"}, f'trainable: "work.py:a-b": {FUNCTION}'),
        (
            {"trainable": "pickled"},
            'trainable: "pickled": is for experiments from Python; write file.py:function',
        ),
        (
            {"trainable": "wrk.py:train"},
            'trainable: "wrk.py:train": there is no file HERE/wrk.py; write it relative to the specification\'s folder',
        ),
        (
            {"trainable": "work.py:trian"},
            "trainable: \"work.py:trian\": work.py has no 'trian'; did you mean 'train'?",
        ),
        (
            {"trainable": "work.py:fit"},
            "trainable: \"work.py:fit\": work.py has no 'fit'; known: Half, train",
        ),
        (
            {"trainable": "nosuch.module:train"},
            (
                "trainable: \"nosuch.module:train\": there is no module 'nosuch.module' on the import path "
                "(working_dir: HERE); install it, or write file.py:function"
            ),
        ),
        (
            {"working_dir": "nope"},
            'working_dir: "nope": there is no folder HERE/nope; write it relative to the specification\'s folder',
        ),
        # metric, mode
        ({"metric": 1}, "metric: 1: is not text; put quotes around it"),
        ({"metric": ""}, 'metric: "": is empty; write a name'),
        ({"metric": []}, "metric: []: is empty; name at least one metric"),
        ({"metric": ["a"]}, 'metric.0: "a": is not a map; its keys are: name, mode'),
        (
            {"metric": {"name": "a"}},
            'metric: {"name": "a"}: is a map; write `metric: a` and `mode: min` (or max)',
        ),
        (
            {"metric": [{"name": "a", "mode": "max"}]},
            'mode: "max": belongs to each metric here; give each its mode',
        ),
        ({"mode": "maximum"}, "mode: \"maximum\": is not 'min' or 'max'; did you mean 'max'?"),
        ({"mode": 1}, "mode: 1: is not 'min' or 'max'; known: min, max"),
        # numbers
        ({"trials": "3"}, 'trials: "3": is text, not a number; write 3, without quotes'),
        ({"trials": "1e2"}, 'trials: "1e2": is text, not a number; write 100, without quotes'),
        ({"trials": 0}, "trials: 0: is below 1; write 1 or more"),
        ({"trials": 1.5}, f"trials: 1.5: {WHOLE}"),
        ({"trials": 3.0}, "trials: 3.0: is not a whole number; write 3"),
        ({"trials": True}, f"trials: true: {WHOLE}"),
        ({"trials": [1]}, f"trials: [1]: {WHOLE}"),
        ({"max_steps": 0}, "max_steps: 0: is below 1; write 1 or more"),
        ({"max_steps": "a"}, f'max_steps: "a": {WHOLE}'),
        ({"concurrency": 0}, "concurrency: 0: is below 1; write 1 or more"),
        ({"concurrency": {}}, f"concurrency: {{}}: {WHOLE}"),
        ({"seed": -1}, "seed: -1: is below 0; write 0 or more"),
        ({"seed": 0.5}, f"seed: 0.5: {WHOLE}"),
        ({"state": 1}, "state: 1: is not text; put quotes around it"),
        (
            {"state": "s3://a/b"},
            "s3://a/b: 'a' is no name of a bucket; write s3://bucket/prefix, or s3://bucket/prefix?endpoint_url=http://host:port",
        ),
        ({"working_dir": 1}, "working_dir: 1: is not text; put quotes around it"),
        # resources
        (
            {"resources": 1},
            "resources: 1: is not a map; its keys are: cpu, gpu, accelerator, memory, custom, gpu_memory, workers, reduce, children",
        ),
        (
            {"resources": {"cpu": "1"}},
            'resources.cpu: "1": is text, not a number; write 1, without quotes',
        ),
        ({"resources": {"cpu": -1}}, "resources.cpu: -1: is below 0; write 0 or more"),
        ({"resources": {"gpu": True}}, "resources.gpu: true: is not a number; write a number"),
        (
            {"resources": {"memory": "lots"}},
            'resources.memory: "lots": is not a whole number; write a number of bytes, or text such as "2GiB"',
        ),
        ({"resources": {"custom": 1}}, "resources.custom: 1: is not a map; write {key: value}"),
        (
            {"resources": {"custom": {"a": 0}}},
            "resources.custom.a: 0: is not above 0; write a number above 0",
        ),
        (
            {"resources": {"custom": {"GPU": 1}}},
            "resources.custom.GPU: 1.0: is no custom resource; write resources: {gpu: ...}",
        ),
        (
            {"resources": {"cpu": 0}},
            "resources.cpu: 0.0: a trial that needs nothing fits any number of times; give cpu, or concurrency",
        ),
        # amounts that Ray has no form for
        *(
            (
                {"resources": {kind: 1e-5}},
                f"resources.{kind}: 1e-05: is finer than Ray divides resources; write 0.0001 or more",
            )
            for kind in ("cpu", "gpu")
        ),
        (
            {"resources": {"custom": {"a": 1e-300}}},
            "resources.custom.a: 1e-300: is finer than Ray divides resources; write 0.0001 or more",
        ),
        (
            {"resources": {"children": {"gpu": 1.5}}},
            "resources.children.gpu: 1.5: is more than one GPU and not whole, which no trial can have; write 1 or 2",
        ),
        # as many as no cluster has; a list of so many would fill the memory
        (
            {"resources": {"workers": 10**9}},
            "resources.workers: 1000000000: is above 10000; write 10000 or less",
        ),
        (
            {"resources": {"children": {"count": 10**9}}},
            "resources.children.count: 1000000000: is above 10000; write 10000 or less",
        ),
        # workers, children
        ({"resources": {"workers": 0}}, "resources.workers: 0: is below 1; write 1 or more"),
        (
            {"resources": {"workers": "4"}},
            'resources.workers: "4": is text, not a number; write a whole number, or [least, most]',
        ),
        (
            {"resources": {"workers": 2.5}},
            "resources.workers: 2.5: is not a whole number; write a whole number, or [least, most]",
        ),
        (
            {"resources": {"workers": [4, 2]}},
            "resources.workers: [4, 2]: bounds are reversed; write [2, 4]",
        ),
        (
            {"resources": {"workers": [4]}},
            "resources.workers: [4]: is no range; write [least, most], or one number",
        ),
        ({"resources": {"workers": [0, 2]}}, "resources.workers.0: 0: is below 1; write 1 or more"),
        ({"resources": {"worker": 2}}, "resources.worker: 2: unknown key; did you mean 'workers'?"),
        (
            {"resources": {"workers": 2, "cpu": 0}},
            f"resources.cpu: 0.0: a worker needs something; {SOMETHING}",
        ),
        (
            {"resources": {"workers": 2}, "command": ["true"], "trainable": ...},
            "resources.workers: 2: is for a trainable; leave it out; a command is one process, and may start others by itself",
        ),
        (
            {"resources": {"workers": 2}, "schedule": {"resource_changing": {"interval": 1}}},
            (
                "resources.workers: 2: leaves the schedule resource_changing nothing to change; "
                "write workers: [1, 4], or another schedule"
            ),
        ),
        (
            {"resources": {"reduce": "sum"}},
            "resources.reduce: \"sum\": is not 'rank0' or 'mean'; known: rank0, mean",
        ),
        (
            {"resources": {"children": 2}},
            "resources.children: 2: is not a map; its keys are: cpu, gpu, accelerator, memory, custom, count",
        ),
        (
            {"resources": {"children": {"cont": 2}}},
            "resources.children.cont: 2: unknown key; did you mean 'count'?",
        ),
        (
            {"resources": {"children": {"count": 0}}},
            "resources.children.count: 0: is below 1; write 1 or more",
        ),
        (
            {"resources": {"children": {"cpu": 0, "count": 2}}},
            f"resources.children.cpu: 0.0: asks for nothing; {SOMETHING}, or leave children out",
        ),
        (
            {"resources": {"children": {}, "cpu": 0}},
            f"resources.cpu: 0.0: a trial with children needs something of its own; {SOMETHING}",
        ),
        (
            {"resources": {"children": {"custom": {"GPU": 1}}}},
            "resources.children.custom.GPU: 1.0: is no custom resource; write resources: {children: {gpu: ...}}",
        ),
        # retries, checkpoint, stop
        (
            {"retries": 1},
            "retries: 1: is not a map; its keys are: preempted, infrastructure, error, stalled, oom, no_progress, spot, anew",
        ),
        (
            {"retries": {"error": "some"}},
            'retries.error: "some": is not a whole number; write a whole number, or unlimited',
        ),
        ({"retries": {"error": -1}}, "retries.error: -1: is below 0; write 0 or more"),
        (
            {"checkpoint": {"every_steps": 0}},
            "checkpoint.every_steps: 0: is below 1; write 1 or more",
        ),
        (
            {"checkpoint": {"every_seconds": 0}},
            "checkpoint.every_seconds: 0: is not above 0; write a number above 0",
        ),
        (
            {"checkpoint": {"every_steps": 1, "every_seconds": 1}},
            "checkpoint.every_seconds: 1.0: excludes every_steps; give one of them",
        ),
        ({"checkpoint": {"keep_last": "two"}}, f'checkpoint.keep_last: "two": {WHOLE}'),
        (
            {"stop": {"target": "0.9"}},
            'stop.target: "0.9": is text, not a number; write 0.9, without quotes',
        ),
        (
            {"stop": {"hours": "1e-3"}},
            'stop.hours: "1e-3": is text, not a number; write 1.0e-3, without quotes',
        ),
        ({"stop": {"hours": 0}}, "stop.hours: 0: is not above 0; write a number above 0"),
        # spans and moments that no clock has
        *(
            (change, f"{key}: is longer than 100 years; write a shorter span, or leave it out")
            for change, key in (
                ({"stop": {"deadline": 1e300}}, "stop.deadline: 1e+300"),
                ({"stop": {"deadline": "99999999999d"}}, 'stop.deadline: "99999999999d"'),
                ({"market": {"first": "spot", "deadline": 1e10}}, "market.deadline: 10000000000.0"),
                ({"market": {"first": "spot", "after": "9999999h"}}, 'market.after: "9999999h"'),
                ({"stall": 1e300}, "stall: 1e+300"),
                ({"when": {"every": 1e300}}, "when.every: 1e+300"),
            )
        ),
        ({"lease": 1e300}, "lease: 1e+300: is above 3.15576e+09; write 3.15576e+09 or less"),
        ({"stop": {"hours": 1e306}}, "stop.hours: 1e+306: is above 1e+09; write 1e+09 or less"),
        ({"stop": {"deadline": "9999-12-31T23:59"}}, FAR.format("9999-12-31T23:59")),
        ({"stop": {"deadline": "0001-01-01T00:00+14:00"}}, FAR.format("0001-01-01T00:00+14:00")),
        (
            {"stop": 1},
            "stop: 1: is not a map; its keys are: target, hours, dollars, deadline, plateau, trials, failures, all, trial",
        ),
        # environment: no value is ever shown
        ({"env": ["A=hunter2"]}, 'env: "***": is not a map; write NAME: value, one a line'),
        ({"env": {"A": 1}}, 'env.A: "***": is not text; put quotes around it'),
        (
            {"env": {"A=B": "1"}},
            "env.A=B: \"***\": is no name of a variable; write letters, digits and '_'",
        ),
        ({"env": {"HF_TOKEN": "hunter2"}}, f'env.HF_TOKEN: "***": {SECRET.format("HF_TOKEN")}'),
        ({"env": {"DB": "postgresql://me:hunter2@db/x"}}, f'env.DB: "***": {SECRET.format("DB")}'),
        (
            {"env": {"NOT_SET": None}},
            "env.NOT_SET: null: is not set here; export NOT_SET, or give it a value",
        ),
        # search and schedule
        ({"search": "tpee"}, "search: \"tpee\": is not known; did you mean 'tpe'?"),
        ({"search": 1}, f"search: 1: is not text; {CHOSEN}"),
        (
            {"search": {"tpe": {}, "random": {}}},
            f'search: {{"tpe": {{}}, "random": {{}}}}: is not a name; {CHOSEN}',
        ),
        ({"search": {"tpe": 1}}, f"search.tpe: 1: is not a map; {CHOSEN}"),
        (
            {"search": {"tpe": {"multivariat": True}}},
            "search.tpe.multivariat: true: unknown option; did you mean 'multivariate'?",
        ),
        (
            {"search": {"tpe": {"n_startup_trials": "5"}}},
            'search.tpe.n_startup_trials: "5": is not a whole number; the default is 10',
        ),
        (
            {"search": {"tpe": {"group": 1}}},
            "search.tpe.group: 1: is not true or false; the default is false",
        ),
        ({"search": {"random": {"a": 1}}}, "search.random.a: 1: unknown option; it has no options"),
        ({"schedule": "ashaa"}, "schedule: \"ashaa\": is not known; did you mean 'asha'?"),
        ({"schedule": "asha"}, "max_steps: is missing, asha needs it; write max_steps: 27"),
        (
            {"schedule": {"asha": {"grace_perod": 1}}, "max_steps": 9},
            "schedule.asha.grace_perod: 1: unknown option; did you mean 'grace_period'?",
        ),
        (
            {"schedule": {"asha": {"reduction_factor": 1}}, "max_steps": 9},
            "schedule.asha.reduction_factor: 1: is below 2; 3 is usual",
        ),
        (
            {"schedule": {"asha": {"grace_period": 10}}, "max_steps": 9},
            "schedule.asha.grace_period: 10: is not between 1 and max_steps (9); it is the number of steps that every trial gets",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_to_write(
    changes: dict[str, Any], line: str, refused: Refused
) -> None:
    Path("s.yaml").write_text(spec(**changes))
    place = "" if "s3://" in line else "s.yaml: "
    assert unplaced(refused("run", "s.yaml")) == place + line


@pytest.mark.parametrize(
    ("space", "line"),
    [
        (1, "space: 1: is not a map of parameters; write name: domain, one a line"),
        (
            {"lr": {"uniform": [1, 0]}},
            "space.lr.uniform: [1, 0]: bounds are reversed; write [low, high]",
        ),
        (
            {"m": {"lr": {"uniform": [1, 0]}}},
            "space.m.lr.uniform: [1, 0]: bounds are reversed; write [low, high]",
        ),
        (
            {"lr": {"loguniform": [0, 1]}},
            "space.lr.loguniform: [0, 1]: a logarithm needs bounds above 0; raise low, or drop the log",
        ),
        (
            {"lr": {"logint": [-1, 1]}},
            "space.lr.logint: [-1, 1]: a logarithm needs bounds above 0; raise low, or drop the log",
        ),
        (
            {"lr": {"choice": []}},
            "space.lr.choice: []: there is nothing to choose from; give at least one value",
        ),
        (
            {"lr": {"unifrom": [0, 1]}},
            "space.lr.unifrom: [0, 1]: unknown domain 'unifrom'; did you mean {uniform: [0, 1]}?",
        ),
        (
            {"lr": {"uniform": {"low": 0, "high": 1}}},
            'space.lr.uniform: {"low": 0, "high": 1}: is a map, not a list; write lr: {uniform: [0, 1]}',
        ),
        (
            {"lr": {"uniform": ["1e-3", 1]}},
            'space.lr.uniform: ["1e-3", 1]: "1e-3" is text, not a number; write 1.0e-3, without quotes',
        ),
        (
            {"lr": {"int": [1, 2.5]}},
            "space.lr.int: [1, 2.5]: 2.5 is not a whole number; use uniform or quniform for real numbers",
        ),
        (
            {"lr": {"uniform": [0, 1], "wen": {}}},
            "space.lr.wen: {}: unknown option of uniform; did you mean 'when'?",
        ),
    ],
)
def test_a_wrong_search_space_is_named_by_its_parameter(
    space: Any, line: str, refused: Refused
) -> None:
    Path("s.yaml").write_text(spec(space=space))
    assert unplaced(refused("run", "s.yaml")) == f"s.yaml: {line}"


def test_a_grid_has_only_so_many_trials(refused: Refused) -> None:
    Path("s.yaml").write_text(spec(search="grid", space={"a": {"grid": [1, 2]}}, trials=2))
    assert (
        refused("run", "s.yaml", "--trials", 3)
        == "s.yaml:1: trials: 3: the grid has only 2 cells; write 2"
    )


def test_another_name_on_the_command_line_is_checked_as_well(refused: Refused) -> None:
    Path("s.yaml").write_text(spec())
    assert refused("run", "s.yaml", "--name", "a/b") == f's.yaml:1: name: "a/b": {NAME}'


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "MONKEY", "KEYBOARD_LAYOUT"]
)
def test_a_harmless_variable_is_not_taken_for_a_secret(name: str) -> None:
    Experiment(lambda trial: None, space={}, metric="a", mode="max", trials=1, env={name: "1"})
