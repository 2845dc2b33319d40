"""Runs a program as a trainable: starts it, reads its reports, and ends it with its attempt.

The program reports by lines of JSON on its standard output, by a file, or through `regrow.report`
(`script.py`). The n-th report of an attempt is the n-th step after the restored one. Everything is
done in one thread: output that the program writes meanwhile waits in its pipe.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

from regrow.search.events import Cause
from regrow.search.spec.command import ENV, arguments
from regrow.tasks.errors import RegrowError, ReportError, UserError
from regrow.tasks.media.content import Content
from regrow.tasks.output.traces import one_line, printable
from regrow.tasks.ports.messages import Job
from regrow.tasks.process import cgroup, gpu_memory, temporary
from regrow.tasks.program import supervisor
from regrow.tasks.program.reported import ReportFile, numbers
from regrow.tasks.program.saved_folder import SavedFolder
from regrow.tasks.program.script import ADDRESS
from regrow.tasks.trial.trial import Trial, TrialEnd

GRACE_SECONDS = 10.0
"""Seconds of a program between SIGTERM and SIGKILL."""
LOOK_SECONDS = 0.2
"""Seconds between two checks of the report file, and of whether the attempt has to end."""
NOTICE_SECONDS = 1.0
"""Seconds to wait for the attempt's notice after the program got a SIGTERM: one for the whole
machine may reach the program first.
"""
INTERPRETERS = ("python", "python3")
"""At the front of a command, these stand for the interpreter that runs the trial."""
_READ_BYTES = 1 << 16
_MOST_REPORT_BYTES = 16 << 20
_TAIL_LINES = 40
_MOST_LINE = 1_000_000
"""Characters of an unfinished line; a longer one is no report."""


class CommandFailed(RegrowError):
    """The program failed. `trace` is the end of its standard error."""

    def __init__(self, message: str, cause: Cause, trace: str) -> None:
        super().__init__(message, cause, trace)
        self.cause = cause
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


def run_command(job: Job, trial: Trial) -> None:
    """Run the job's program as one attempt. Raises ReportError, CommandFailed and TrialEnd."""
    if trial.complete:
        return
    scratch = temporary.made("command-")
    if len(os.fsencode(scratch)) > 90:  # the systems allow 104 to 108
        scratch.rmdir()
        scratch = Path(tempfile.mkdtemp(prefix="regrow-command-", dir="/tmp"))
    try:
        program = _Program(job, trial, scratch)
        try:
            program.follow()
        finally:
            program.close()
        program.judge()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def environment(job: Job, trial: Trial, scratch: Path) -> dict[str, str]:
    """Return the variables that describe the trial to a program, or to its command."""
    spec = job.spec
    variables = {
        "TRIAL": str(trial.number),
        "ATTEMPT": str(trial.attempt),
        "SEED": str(trial.seed),
        "NAME": spec.name,
        "METRIC": job.objective,
        "MAX_STEPS": "" if spec.max_steps is None else str(spec.max_steps),
        "STEP": str(trial.step),
        "CHECKPOINT": str(scratch / "checkpoint"),
        "RESTORED": "" if trial.restored is None else str(trial.restored),
        "SCRATCH": str(scratch),
        "CONFIG_FILE": str(scratch / "config.json"),
        "REPORT": "" if spec.report.file is None else str(scratch / spec.report.file),
        "EVENT": "" if trial.event is None else str(scratch / "event.json"),
    }
    return {f"REGROW_{name}": value for name, value in variables.items()} | {
        "REGROW_CONFIG": json.dumps(trial.config)
    }


def filled(job: Job, trial: Trial, variables: dict[str, str]) -> list[str]:
    """Return the command of this trial with its placeholders filled in."""
    ours = {name.removeprefix("REGROW_").lower(): value for name, value in variables.items()}
    ours |= {f"{ENV}{name}": value for name, value in os.environ.items()}
    command = arguments(job.spec.command, trial.config, ours)
    return [sys.executable, *command[1:]] if command[0] in INTERPRETERS else command


@cache
def _stand_ins() -> EntryPoints:
    return entry_points(group="regrow.stand_ins")  # takes 40 ms


def import_path() -> dict[str, str]:
    """Return PYTHONPATH with the folders of modules that replace other packages, each if its
    variable is set; empty for none.

    Each is an entry point of the group `regrow.stand_ins`, named after its variable.
    """
    folders = [str(point.load()) for point in _stand_ins() if os.environ.get(point.name)]
    if not folders:
        return {}
    own = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [*folders, own]))}


class _Program:
    """A running program and its output."""

    def __init__(self, job: Job, trial: Trial, scratch: Path) -> None:
        self._job, self._trial = job, trial
        self._saved = SavedFolder(scratch / "checkpoint")
        (scratch / "checkpoint").mkdir()
        (scratch / "config.json").write_bytes(json.dumps(trial.config, ensure_ascii=False).encode())
        self._file = None
        if (file := job.spec.report.file) is not None:
            self._file = ReportFile(scratch / file)
            (scratch / file).parent.mkdir(parents=True, exist_ok=True)
        self._seen: dict[str, None] = {}
        """Keys of JSON objects that were no reports, to help with a misspelt metric."""
        self._over = self._ending = False
        """Whether further reports are ignored; whether the program was asked to end."""
        self._rest = self._err_rest = ""
        """Unfinished lines of the standard output and error."""
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._err_tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._ready = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(scratch / "socket"))
        self._listener.listen()
        self._ready.register(self._listener, selectors.EVENT_READ, self._accept)
        variables = environment(job, trial, scratch)
        if variables["REGROW_EVENT"]:
            # a list of files is too long for a variable
            Path(variables["REGROW_EVENT"]).write_text(json.dumps(trial.event))
        self._command = filled(job, trial, variables)
        self._killed = cgroup.Killed()
        try:
            self._process = self._started(variables, scratch)
        except BaseException:
            self._listener.close()
            self._ready.close()
            raise
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes = 2
        self._listen(self._process.stdout, self._printed)
        self._listen(self._process.stderr, self._complained)

    def _started(self, variables: dict[str, str], scratch: Path) -> subprocess.Popen[bytes]:
        """Start the program. Raises UserError for parameters that no program can be given."""
        name, file = (
            shlex.join(self._job.spec.command[:2])[:200],
            "read the file $REGROW_CONFIG_FILE",
        )
        supervised = [sys.executable, "-I", "-S", supervisor.__file__, str(GRACE_SECONDS)]
        try:
            return subprocess.Popen(
                [*supervised, *self._command],
                cwd=self._job.folder,
                env={
                    "PYTHONUNBUFFERED": "1",
                    **os.environ,
                    **variables,
                    **import_path(),
                    ADDRESS: str(scratch / "socket"),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise UserError(
                f"{name}: its parameters, as arguments or in $REGROW_CONFIG, are longer than this"
                f" system takes; {file}, and keep other variables short"
            ) from None
        except ValueError:
            raise UserError(
                f"{name}: a parameter has a NUL, which no argument of a program can have; {file}"
            ) from None

    def follow(self) -> None:
        """Process the program's output until it ends. Raises ReportError."""
        while self._pipes:
            for key, _ in self._ready.select(LOOK_SECONDS):
                key.data()
            self._poll()
        self._process.wait()
        self._poll(final=True)

    def close(self) -> None:
        """Kill what is left of the program."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        for key in list(self._ready.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # pipes and sockets, not bare numbers
        self._ready.close()

    def judge(self) -> None:
        """Raise the error that the program's end means, unless it ended successfully."""
        code, trial = self._process.returncode, self._trial
        name = shlex.join(self._job.spec.command[:2])
        if code == -signal.SIGTERM and not self._ending:
            deadline = time.monotonic() + NOTICE_SECONDS
            while not trial.told and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS / 10)
        if self._ending or (code and trial.told):
            trial.end()
        if code == 0:
            if trial.step == 0:
                seen = "no line was a JSON object"
                if self._seen:
                    seen = f"seen were: {', '.join(self._seen)}"
                example = json.dumps({self._job.objective: 0.5})
                hint = f"print a line such as {example}, or call regrow.report"
                file = self._job.spec.report.file
                where = f"its file {file}" if file else "its output"
                raise ReportError(
                    f"{name} ended without ever reporting {self._job.objective!r} ({where}:"
                    f" {seen}); {hint}"
                )
            return
        tail = [*self._err_tail] or [*self._tail]
        trace = printable("".join(f"{line}\n" for line in tail))
        # or of a shell whose own program was killed
        if code < 0 or code in (128 + signal.SIGKILL, 128 + signal.SIGTERM):
            killer = signal.Signals(-code if code < 0 else code - 128)
            memory = self._killed.lately() if killer == signal.SIGKILL else ""
            why = f": {memory}" if memory else f" by {killer.name}"
            raise CommandFailed(f"{name} was killed{why}", "infrastructure", trace)
        cause: Cause = "error"
        last = next((line for line in reversed(tail) if line.strip()), "it said nothing")
        message = one_line(f"{name} exited with {code}: {last}")
        if gpu_memory.reports_full_gpu(tail):
            cause, message = "oom", f"{message}{gpu_memory.FULL}"
        raise CommandFailed(message, cause, trace)

    def _listen(self, pipe: Any, receive: Callable[[str, bool], None]) -> None:
        os.set_blocking(pipe.fileno(), False)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def read() -> None:
            data = os.read(pipe.fileno(), _READ_BYTES)
            receive(decoder.decode(data, final=not data), not data)
            if not data:
                self._ready.unregister(pipe)
                pipe.close()
                self._pipes -= 1

        self._ready.register(pipe, selectors.EVENT_READ, read)

    def _printed(self, text: str, last: bool) -> None:
        """Process standard output: reports, unless in a file, and other lines, in order."""
        *lines, self._rest = (self._rest + text).split("\n")
        if self._rest and (last or len(self._rest) > _MOST_LINE):
            lines, self._rest = [*lines, self._rest], ""
        found = [numbers(line) if self._file is None else None for line in lines]
        reports = [None if one is None else self._report_in(one) for one in found]
        latest = max(
            (place for place, report in enumerate(reports) if report is not None), default=-1
        )
        for place, (line, report) in enumerate(zip(lines, reports, strict=True)):
            if report is None:
                self._tail.append(line)
                sys.stdout.write(f"{line}\n")
            else:
                # Saved files belong to the last report: the program continued after earlier ones.
                self._report(report, saved=place == latest)

    def _complained(self, text: str, last: bool) -> None:
        """Pass standard error through unchanged, and keep its end."""
        sys.stderr.write(text)
        *lines, self._err_rest = (self._err_rest + text).split("\n")
        if self._err_rest and last:
            lines, self._err_rest = [*lines, self._err_rest], ""
        self._err_tail += [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        self._err_rest = self._err_rest[-_MOST_LINE:]

    def _poll(self, *, final: bool = False) -> None:
        """Poll the report file, and whether the attempt has to end."""
        if self._file is not None:
            before = None
            for one in self._file.new(final=final):
                if (report := self._report_in(one)) is not None:
                    if before is not None:
                        self._report(before, saved=False)
                    before = report
            if before is not None:
                self._report(before, saved=True)
        if self._trial.told and not final:
            self._end()

    def _report_in(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Return the object if it is a report, which means that it has the objective."""
        if self._job.objective in found:
            return found
        self._seen |= dict.fromkeys(map(str, list(found)[:20]))
        return None

    def _report(self, metrics: Any, *, saved: bool) -> None:
        if self._over:
            self._end()  # the program continues although all steps are done
            return
        save = self._saved.copy if saved and self._saved.changed() else None
        try:
            self._trial.report(metrics, checkpoint=save)
        except TrialEnd:
            self._over = True
            # the program cannot know this; after max_steps, it may finish its work
            if self._trial.enough is not None:
                self._end()

    def _log_media(self, about: dict[str, str]) -> None:
        """Keep what the program logs: a file of its own, as this process has no other rights."""
        kind, suffix, file = about["kind"], about["suffix"], Path(about["file"])
        self._trial.log_media(
            about["name"],
            lambda: Content(kind=kind, suffix=suffix, data=file),  # type: ignore[arg-type]  # a kind, as script.py writes it
        )

    def _end(self) -> None:
        """End the program by SIGTERM, after the grace by SIGKILL; at once if the lease is lost."""
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        with suppress(BrokenPipeError):
            if self._trial.told == "fenced":
                pipe.close()
            elif not self._ending:
                os.write(pipe.fileno(), b"t")
        self._ending = True

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        buffer = bytearray()

        def read() -> None:
            try:
                data = connection.recv(_READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                self._ready.unregister(connection)
                connection.close()
                return
            buffer.extend(data)
            if len(buffer) > _MOST_REPORT_BYTES:
                raise ReportError(
                    f"a report of more than {_MOST_REPORT_BYTES >> 20} MB came by the socket of"
                    " regrow.report"
                )
            while (end := buffer.find(b"\n")) >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                # Not by msgspec, which refuses a metric that is NaN.
                message = json.loads(line)
                if isinstance(message, list) and message[0] == "exact":
                    self._trial.keep_exactly(message[-1])
                elif isinstance(message, list):
                    self._log_media(message[-1])
                else:
                    self._report(message, saved=True)
                with suppress(OSError):
                    connection.sendall(b"ok\n")

        self._ready.register(connection, selectors.EVENT_READ, read)
