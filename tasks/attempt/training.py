"""Calls the trainable and returns the user's exceptions as values; none escapes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.spec import COMMAND
from regrow.tasks.attempt import frameworks
from regrow.tasks.attempt.trainable import adapt, as_a_script, find, unpickled
from regrow.tasks.errors import Interrupted, ReportError, UserError
from regrow.tasks.media.log import running
from regrow.tasks.output.traces import in_a_line, one_line, user_trace
from regrow.tasks.ports.messages import Assignment, Job, RecordsAway, Shared
from regrow.tasks.ports.ranks import AttemptVerdict, GroupBroken, RankFailed
from regrow.tasks.ports.store import Store, StoreError
from regrow.tasks.process import gpu_memory
from regrow.tasks.process.restored import restored
from regrow.tasks.program.command import CommandFailed, run_command
from regrow.tasks.trial.trial import Trial, TrialEnd


def recorded(
    shared: Shared, assignment: Assignment, trial: Trial, scratch: Path
) -> AbstractContextManager[object]:
    """Within the block, assign the training's own tracking calls to the attempt."""
    if shared.records is None:
        return nullcontext()
    return shared.records.own_calls(
        assignment.trial,
        assignment.attempt,
        scratch=scratch,
        reported=trial.metrics,
        system_metrics=shared.job.spec.mlflow.system_metrics,
        rank=trial.world.rank if trial.world.size > 1 else None,
    )


def train(
    shared: Shared, trial: Trial, own: AbstractContextManager[object]
) -> AttemptVerdict | None:
    """Run the trainable within `own` and return its failure; None if it returned, or ended as
    requested.

    RankFailed, GroupBroken and Interrupted pass through. A child process that the trainable has
    forked and that returns from it is ended here: it is no attempt.
    """
    process, status = os.getpid(), 1
    try:
        failure = _run(shared.job, shared.store, trial, own)
        if os.getpid() != process:
            trace = "" if failure is None else failure.trace
            status = int(bool(trace))
            sys.stderr.write(trace)
        return failure
    finally:
        if os.getpid() != process:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:  # the trainable may have closed them
                os._exit(status)


@contextmanager
def _own_errors_unwrapped() -> Iterator[None]:
    """Unwrap regrow's own exceptions from a group whose other tasks ended because of them."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split((TrialEnd, RankFailed, GroupBroken, Interrupted))
        if ours is None or others is not None:
            raise
        first: BaseException = ours
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def load(job: Job, store: Store) -> Callable[[Trial], object]:
    """Return the trainable of a job as a function of a Trial.

    Raises SpecError or UserError if it cannot be found. Exceptions of the user's module pass
    through unchanged.
    """
    if job.spec.command:
        return lambda trial: run_command(job, trial)
    found = None
    if job.spec.trainable != COMMAND:
        found = unpickled(store, *job.code) if job.code else find(job.spec.trainable, job.folder)
    return frameworks.trainable(job, found) or adapt(found, job.spec.trainable)


def _run(
    job: Job, store: Store, trial: Trial, own: AbstractContextManager[object]
) -> AttemptVerdict | None:
    spec, share = job.spec, job.spec.resources.gpu_share
    try:
        with _own_errors_unwrapped(), own, running(trial), as_a_script(spec.trainable, job.folder):
            if share is not None:
                gpu_memory.announce(share)
            function: Callable[[Trial], object] = load(job, store)
            if share is not None:
                gpu_memory.limit(share)
            if (enough := spec.stop.trial.function) is not None:
                trial.set_stop_function(find(enough, job.folder))
            with restored():  # what its module changes as it is imported stays
                trial.returned = function(trial)
    except TrialEnd:
        pass
    except (RankFailed, GroupBroken, Interrupted):
        raise
    except ReportError as error:
        trace = "" if spec.command else user_trace(error)
        return AttemptVerdict(message=one_line(str(error)), trace=trace)
    except (UserError, SpecError) as error:
        return AttemptVerdict(message=one_line(str(error)))
    except CommandFailed as error:
        return AttemptVerdict(cause=error.cause, message=str(error), trace=error.trace)
    except StoreError as error:
        return AttemptVerdict(cause="infrastructure", message=f"the store failed: {error}")
    except RecordsAway as error:
        return AttemptVerdict(cause="infrastructure", message=one_line(str(error)))
    except MemoryError as error:
        trace = user_trace(error)
        return AttemptVerdict(cause="infrastructure", message="out of memory", trace=trace)
    # Includes subclasses of BaseException only: a panic of a Rust library, CancelledError,
    # KeyboardInterrupt, groups of them.
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is an outcome
        # a script that exits with success
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            message = in_a_line(error)
            if gpu_memory.is_full(error):
                message = f"{message[:_SHOWN]}{gpu_memory.FULL}"
                return AttemptVerdict(cause="oom", message=message, trace=user_trace(error))
            return AttemptVerdict(message=message, trace=user_trace(error))
    return None


_SHOWN = 200
"""Characters of the exception's own message that are shown before what to do."""


def end_process_pools() -> None:
    """Shut down joblib's pool, if there is one.

    Otherwise the next attempt in this process would get a pool whose processes are gone:
    `cross_val_score(n_jobs=-1)` failed in the second trial.
    """
    kept: Any = sys.modules.get("joblib.externals.loky.reusable_executor")
    # The public function, get_reusable_executor, would start a pool if there is none.
    pool = None if kept is None else getattr(kept, "_executor", None)
    if pool is not None:
        with suppress(Exception):  # a broken pool may raise anything
            pool.shutdown(wait=True, kill_workers=True)
