"""`serve:` of an experiment or schedule: checked before anything runs (the class's file, the gate's
metrics, host and port), and recorded for the station that keeps the server running.

The form is checked in `search/spec/station.py`; everything else is checked by the server.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from regrow.apps.serving.gate import GateEvaluator
from regrow.infra.log.reading import stream_events
from regrow.infra.machine import addresses
from regrow.infra.prefect import home
from regrow.infra.state import served
from regrow.infra.state.places import Places
from regrow.infra.state.served import ServeRecord
from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.recurrence import experiments_of
from regrow.search.rollout import Gate
from regrow.search.spec import Spec
from regrow.tasks.attempt.trainable import check_syntax, locate, parsed
from regrow.tasks.errors import UserCodeError, UserError
from regrow.tasks.output.traces import in_a_line, user_trace


def checked(spec: Spec, places: Places) -> list[str]:
    """Return warnings about its `serve` for people, a line each. Raises SpecError, and
    UserCodeError for a syntax error in the class's file.
    """
    if (serve := spec.serve) is None:
        return []
    for other in served.names(places) if serve.port is not None else ():
        known = served.read(places, other)
        if other != spec.name and known is not None and known.serve.get("port") == serve.port:
            problem = f"is the port of {other}, which is served as well"
            hint = "write another one, or leave it out for a free one"
            raise SpecError("serve.port", serve.port, problem, hint)
    if serve.model is not None:
        _model(serve.model, spec.working_dir)
    try:
        addresses.beside_loopback(serve.host)
    except UserError:
        hint = "give one, or 0.0.0.0 for all that it has"
        raise SpecError(
            "serve.host", serve.host, "is no name or address of this machine", hint
        ) from None
    return [] if serve.gates is None else _gate(serve.gates, spec, places)


def of_experiment(places: Places, spec: Spec) -> list[str]:
    """Record `serve:` of an experiment that is started: it is served as specified from now on, or
    no longer.

    Returns instructions for people. If a schedule of that name exists, only the schedule decides.
    """
    existing = served.read(places, spec.name)
    if existing is not None and existing.schedule:
        return []
    return list(_written(places, spec, spec.name, schedule=False, series=False))


def of_schedule(places: Places, spec: Spec, name: str) -> list[str]:
    """Record `serve:` of a schedule that is made, or that runs; return instructions for people."""
    return list(
        _written(
            places, spec, name, schedule=True, series=spec.when is None or spec.when.each == "new"
        )
    )


def _written(
    places: Places, spec: Spec, name: str, *, schedule: bool, series: bool
) -> Iterator[str]:
    before = served.read(places, name)
    if spec.serve is None:
        if before is not None:
            served.remove(places, name)
            yield f"serve: {name} is served no more, as it was left out"
        return
    code = str(Path(spec.working_dir or ".").resolve())
    now = ServeRecord(
        name=name, folder=code, serve=spec.serve.to_json(), schedule=schedule, series=series
    )
    if now != before:
        served.write(places, now)
    what = f"the newest experiment of {name}" if series else name
    if home.has_station(places.prefect_home):
        yield f"serve: the station serves {what}; `{places.command('status', '')}` shows where"
    else:
        yield f"serve: with `{places.command('up', '')}`, a station serves {what}"
    yield (
        f"serve: its token is in {served.token_file(places)}, unless the station was started with"
        " REGROW_SERVE_TOKEN"
    )


def _model(path: str, folder: str | None) -> None:
    try:
        if (file := locate(path, folder)) is not None:
            check_syntax(file, path)
            _glance_at_class(file, path)
    except SpecError as error:
        raise SpecError(
            "serve.model",
            path,
            error.problem,
            error.hint.replace("file.py:function", "FILE.py:CLASS"),
        ) from None
    except (SyntaxError, ValueError) as error:  # the file is not text
        refused = SpecError("serve.model", path, f"cannot be imported: {in_a_line(error)}")
        raise UserCodeError(str(refused), user_trace(error)) from error


def _glance_at_class(file: Path, path: str) -> None:
    """Check a top-level class by its source, without running it; few errors are reported."""
    name = path.partition(":")[2]
    _, tree = parsed(file)
    found = [one for one in tree.body if getattr(one, "name", None) == name]
    if len(found) != 1 or _may_change(tree, name):
        return
    (one,) = found
    if not isinstance(one, ast.ClassDef):
        raise SpecError("serve.model", path, "is no class", f"write `class {name}(rg.Served):`")
    if one.keywords or one.decorator_list:
        return
    if not one.bases:
        raise SpecError(
            "serve.model", path, "is no subclass of rg.Served", f"write `class {name}(rg.Served):`"
        )
    if [ast.unparse(base).rpartition(".")[2] for base in one.bases] != ["Served"]:
        return  # other base classes may define what it lacks
    within = list(ast.walk(one))
    defined = {
        node.name
        for node in within
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    defined |= {
        node.id for node in within if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    defined |= {node.asname or node.name for node in within if isinstance(node, ast.alias)}
    if missing := [member for member in ("Input", "load", "predict") if member not in defined]:
        forms = {
            "Input": "class Input(pydantic.BaseModel)",
            "load": "def load(self, folder, config)",
            "predict": "def predict(self, inputs)",
        }
        hint = f"write `{'`, `'.join(forms[member] for member in missing)}` in it"
        raise SpecError("serve.model", path, f"has no {' and no '.join(missing)}", hint)


def _may_change(tree: ast.Module, name: str) -> bool:
    """Return whether a module may rebind the name or its attributes, or has its own `Served`."""
    for node in ast.walk(tree):
        bound = node.value if isinstance(node, ast.Attribute) else node
        if (
            isinstance(bound, ast.Name)
            and bound.id == name
            and isinstance(getattr(node, "ctx", None), ast.Store)
        ):
            return True
        if isinstance(node, ast.ClassDef) and node.name == "Served":
            return True
        if isinstance(node, ast.Name) and node.id in ("setattr", "globals", "exec"):
            return True
    return False


def _gate(gate: Gate, spec: Spec, places: Places) -> list[str]:
    """Check the gate's metrics. One that the file does not name may show in earlier runs."""
    named = {one.name for one in spec.metrics} | {one.metric for one in spec.limits}
    if not (unknown := [name for name in gate.metrics if name not in named]):
        return []
    experiments = places.experiments()
    newest = (
        spec.name
        if spec.name in experiments
        else next(iter(reversed(experiments_of(spec.name, experiments))), None)
    )
    if newest is not None:
        passing = GateEvaluator(gate=gate)
        for event in stream_events(places.store(newest)):
            passing.apply(event)
        if passing.seen:
            if wrong := [name for name in unknown if name not in passing.seen]:
                problem = f"no trial of {newest} has reported {wrong[0]!r}"
                raise SpecError(
                    "serve.gate",
                    gate.text,
                    problem,
                    nearest(wrong[0], sorted(passing.seen | named)),
                )
            return []
    near = f" ({hint})" if (hint := nearest(unknown[0], sorted(named))).startswith("did") else ""
    return [
        (
            f"serve.gate: the file names no metric {unknown[0]!r}{near}; if no trial reports it,"
            " nothing is served"
        )
    ]
