"""An experiment as TensorBoard event files: one run per trial, scalars by step, and the data of the
HParams page.

Files are written with tensorboardX's records and messages, without its SummaryWriter, which keeps a
thread for each run. Import this module inside of functions only.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from regrow.infra.log.rows import LogRows, Sorted
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.search.space import Parameter
from regrow.search.space.domains import Choice, Constant, Float, Int, Json
from regrow.show.exports.frames import config_at, numeric
from regrow.tasks.errors import UserError
from regrow.tasks.trial.names import task_name

try:
    from tensorboardX.proto import api_pb2, event_pb2, plugin_hparams_pb2, summary_pb2
    from tensorboardX.record_writer import RecordWriter
except ImportError:
    raise UserError(
        "TensorBoard's files need tensorboardX, which is not installed: pip install"
        " 'regrow[tensorboard]'"
    ) from None

MARK = ".regrow-export.json"
"""File that names the exported experiment, so that no other folder is ever overwritten."""
_SUFFIX = ".regrow"
_STATUS = {
    TrialState.DONE: api_pb2.STATUS_SUCCESS,
    TrialState.STOPPED: api_pb2.STATUS_SUCCESS,
    TrialState.FAILED: api_pb2.STATUS_FAILURE,
}

_Event: TypeAlias = Any  # protobuf messages, whose classes are created on import
_Message: TypeAlias = Any


def write(rows: LogRows, folder: str | Path) -> int:
    """Write the event files of all trials below `folder`; return how many trials.

    The folder must be absent or empty, or contain an earlier export of the same experiment. That is
    replaced run by run, so that a TensorBoard that shows it keeps working. Raises UserError for any
    other folder, and if it cannot be written.
    """
    if "://" in str(folder):
        raise UserError(f"{folder} is no local folder; TensorBoard's files are written to one")
    folder, history = Path(folder), rows.history
    try:
        _claim(history, folder)
        with rows.sorted() as found:
            for trial in history.trials:
                run = folder / task_name(trial.number)
                events = _events(history, trial, found)
                run.mkdir(exist_ok=True)
                before = [path for path in run.iterdir() if path.name.endswith(_SUFFIX)]
                fresh = (
                    run / f"unfinished{_SUFFIX}"
                )  # TensorBoard reads names that contain "tfevents"
                fresh.unlink(missing_ok=True)
                writer = RecordWriter(str(fresh))
                for event in events:
                    writer.write(event.SerializeToString())
                writer.close()
                os.replace(fresh, run / f"events.out.tfevents.{time.time_ns():020}{_SUFFIX}")
                for path in before:
                    path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    return len(history.trials)


def _claim(history: History, folder: Path) -> None:
    """Check that the folder is new or ours, and mark it."""
    mark = folder / MARK
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder for TensorBoard's files")
    if mark.exists():
        try:
            found = json.loads(mark.read_text())["id"]
        except (ValueError, KeyError, TypeError):
            found = None
        if found != history.id:
            raise UserError(f"{folder} holds the export of another experiment; name another folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UserError(
            f"{folder} is not empty, and not an export of this experiment; name a new folder"
        )
    mark.write_text(json.dumps({"experiment": history.spec.name, "id": history.id}))


def _events(history: History, trial: TrialRecord, found: Sorted) -> Iterator[_Event]:
    begun = trial.attempts[0].t_started if trial.attempts else history.t_created
    yield event_pb2.Event(wall_time=begun, file_version="brain.Event:2")
    # Makes a running TensorBoard discard an earlier export of this run.
    yield event_pb2.Event(
        wall_time=begun, step=0, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    )
    if trial.number == 0:  # one run describes it for all of them
        # parameters with domains, and metrics, of which the page shows the last values
        tags = [_best(history), *found.names]
        yield _plugin(
            begun,
            "experiment",
            api_pb2.Experiment(
                name=history.spec.name,
                time_created_secs=history.t_created,
                hparam_infos=[*map(_described, _parameters(history))],
                metric_infos=[
                    api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag)
                    for tag in tags
                ],
            ),
        )
    yield _plugin(begun, "session_start_info", _start(history, trial, begun))
    for _, row in found.of(trial.number):
        values = {n: math.nan if value is None else value for n, value in row.metrics.items()}
        yield _scalars(row.t, row.step, [*values.items(), *_changing(trial, row.step)])
    if trial.best is not None:
        value, step = trial.best
        yield _scalars(trial.curve.times[step - 1], step, [(_best(history), value)])
    if trial.state.final or trial.attempts:
        ended = max((a.t_ended for a in trial.attempts if a.t_ended is not None), default=begun)
        end = plugin_hparams_pb2.SessionEndInfo(
            status=_STATUS.get(trial.state, api_pb2.STATUS_RUNNING)
        )
        if trial.state.final:
            end.end_time_secs = ended
        yield _plugin(ended, "session_end_info", end)


def _best(history: History) -> str:
    return f"best/{history.objective.name}"


def _changing(trial: TrialRecord, step: int) -> list[tuple[str, float]]:
    """Return the parameters of a step if the scheduler changes them: they become curves."""
    if not trial.changes:
        return []
    now = config_at(trial, step)
    varied = {
        name
        for c in trial.changes
        for name in c.config
        if c.config[name] != trial.proposed.get(name)
    }
    return [
        (f"config/{name}", float(value))
        for name, value in now.items()
        if name in varied and numeric([value])
    ]


def _scalars(t: float, step: int, values: Iterable[tuple[str, float]]) -> _Event:
    made = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values]
    return event_pb2.Event(wall_time=t, step=step, summary=summary_pb2.Summary(value=made))


def _plugin(t: float, name: str, content: _Message) -> _Event:
    """Return data of the HParams page."""
    data = plugin_hparams_pb2.HParamsPluginData(version=0, **{name: content})
    plugin = summary_pb2.SummaryMetadata.PluginData(
        plugin_name="hparams", content=data.SerializeToString()
    )
    value = summary_pb2.Summary.Value(
        tag=f"_hparams_/{name}", metadata=summary_pb2.SummaryMetadata(plugin_data=plugin)
    )
    return event_pb2.Event(wall_time=t, step=0, summary=summary_pb2.Summary(value=[value]))


# ---- data of the HParams page


def _parameters(history: History) -> list[Parameter]:
    return [p for p in history.spec.space.parameters if not isinstance(p.domain, Constant)]


def _described(parameter: Parameter) -> _Message:
    info = api_pb2.HParamInfo(
        name=parameter.name, display_name=parameter.name, type=_type(parameter)
    )
    match parameter.domain:
        case Float() | Int() as domain:
            info.domain_interval.min_value, info.domain_interval.max_value = domain.low, domain.high
        case Choice() as domain:
            info.domain_discrete.extend([_plain(parameter, value) for value in domain.values])
    return info


def _type(parameter: Parameter) -> int:
    match parameter.domain:
        case Choice(values=values):
            if all(isinstance(value, bool) for value in values):
                return int(api_pb2.DATA_TYPE_BOOL)
            if not numeric(values):
                return int(api_pb2.DATA_TYPE_STRING)
    return int(api_pb2.DATA_TYPE_FLOAT64)


def _plain(parameter: Parameter, value: Json) -> Json:
    """Return the value for the page: text if a choice has values of several types."""
    if _type(parameter) == api_pb2.DATA_TYPE_STRING:
        return value if isinstance(value, str) else json.dumps(value)
    return value


def _start(history: History, trial: TrialRecord, begun: float) -> _Message:
    start = plugin_hparams_pb2.SessionStartInfo(start_time_secs=begun)
    for parameter in _parameters(history):
        if parameter.name in trial.config:
            value = _plain(parameter, trial.config[parameter.name])
            field = start.hparams[parameter.name]
            if isinstance(value, str):
                field.string_value = value
            elif isinstance(value, bool):
                field.bool_value = value
            else:
                field.number_value = value
    return start
