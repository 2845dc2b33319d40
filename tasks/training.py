"""Calls the trainable, and says as a value what its code raised: nothing of a user's escapes as an exception."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from regrow.search.errors import SpecError
from regrow.search.events import Cause
from regrow.tasks.command import CommandFailed
from regrow.tasks.errors import ReportError, UserError
from regrow.tasks.messages import Assignment, Job, Records, RecordsAway
from regrow.tasks.ports import Store, StoreError
from regrow.tasks.traces import in_a_line, one_line, user_trace
from regrow.tasks.trainable import Frameworks, as_a_script, find, load
from regrow.tasks.trial import Trial, TrialEnd


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trainable did not come to its end: as the log counts it, in one line, and the user's own traceback where there is
    one.
    """

    cause: Cause
    message: str
    trace: str = ""


def recorded(
    records: Records | None, job: Job, assignment: Assignment, trial: Trial, scratch: Path
) -> AbstractContextManager[object]:
    """Within the block, what the training logs by itself belongs to the attempt. `records` None: it is its own affair."""
    if records is None:
        return nullcontext()
    return records.own_calls(
        assignment.trial, assignment.attempt, scratch=scratch, reported=trial.metrics, system_metrics=job.system_metrics,
        rank=trial.world.rank if trial.world.size > 1 else None,
    )


def train(
    job: Job, store: Store, trial: Trial, own: AbstractContextManager[object], frameworks: Frameworks | None = None
) -> Failure | None:
    """Runs the trainable within `own`, which may be one of `frameworks`; None where it returned, or ended as it was told to.

    RankFailed and GroupBroken, which are nobody's here, pass. A child that the trainable has forked and that comes back from it
    is no attempt: it ends.
    """
    process, status = os.getpid(), 1
    try:
        failure = _run(job, store, trial, own, frameworks)
        if os.getpid() != process:
            trace = "" if failure is None else failure.trace
            status = int(bool(trace))
            sys.stderr.write(trace)
        return failure
    finally:
        if os.getpid() != process:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _run(
    job: Job, store: Store, trial: Trial, own: AbstractContextManager[object], frameworks: Frameworks | None
) -> Failure | None:
    try:
        with own, as_a_script(job.trainable, job.folder):
            function: Callable[[Trial], object] = load(job, store, frameworks)
            if job.enough is not None:
                trial.enough_if(find(job.enough, job.folder))
            function(trial)
    except TrialEnd:
        pass
    except (ReportError, UserError, SpecError) as error:
        return Failure("error", one_line(str(error)))
    except CommandFailed as error:
        return Failure(error.cause, str(error), error.trace)
    except StoreError as error:
        return Failure("infrastructure", f"the store failed: {error}")
    except RecordsAway as error:
        return Failure("infrastructure", one_line(str(error)))
    except MemoryError as error:
        return Failure("infrastructure", "out of memory", user_trace(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's code raises is an outcome
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):  # a script's way to say that it is done
            return Failure("error", in_a_line(error), user_trace(error))
    return None
