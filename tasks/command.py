"""A program as a trainable: started, listened to, and ended with its attempt.

The program reports by lines of JSON on its standard output, by a file, or through `regrow.report` (`script.py`). The n-th
report of an attempt is the n-th step after the one that it went on from. All is done in one thread: whatever the program
says meanwhile waits in its pipe.
"""

from __future__ import annotations

import codecs
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
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from regrow.search.events import Cause
from regrow.search.spec.command import ENV, arguments
from regrow.tasks import supervisor, temporary
from regrow.tasks.errors import RegrowError, ReportError
from regrow.tasks.messages import Job
from regrow.tasks.reported import ReportFile, numbers, report_in
from regrow.tasks.saved_folder import SavedFolder
from regrow.tasks.script import ADDRESS
from regrow.tasks.traces import one_line, printable
from regrow.tasks.trial import Trial, TrialEnd

GRACE_SECONDS = 10.0
"""What a program has between SIGTERM and SIGKILL."""
LOOK_SECONDS = 0.2
"""Between two looks at the reports' file, and at whether the attempt was told to end."""
NOTICE_SECONDS = 1.0
"""A SIGTERM for the whole machine may reach the program before the attempt hears of it."""
STANDIN = Path(__file__).parent / "standin"
"""A folder with nothing but a module `wandb`; on the import path of such programs only."""
INTERPRETERS = ("python", "python3")
"""At the front of a command: the interpreter that runs the trial."""
_READ_BYTES = 1 << 16
_TAIL_LINES = 40
_MOST_LINE = 1_000_000
"""Characters of a line that has not ended; what is longer is no report."""
_LONGEST_ADDRESS = 90
"""Bytes of a socket's path; the systems allow 104 to 108."""
_AS_KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""Exit codes of a shell whose own program was killed."""


class CommandFailed(RegrowError):
    """The program ended badly. `trace` is the end of what it wrote to its standard error."""

    def __init__(self, message: str, cause: Cause, trace: str) -> None:
        super().__init__(message, cause, trace)
        self.cause = cause
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


def run_command(job: Job, trial: Trial) -> None:
    """Runs the job's program as one attempt. Raises ReportError, CommandFailed, and TrialEnd where it was told to end."""
    if trial.complete:
        return
    scratch = Path(tempfile.mkdtemp(prefix="command-", dir=temporary.room()))
    if len(os.fsencode(scratch)) > _LONGEST_ADDRESS:
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


def written_out(command: Iterable[str]) -> str:
    """A command as it would be typed."""
    return shlex.join(command)


def environment(job: Job, trial: Trial, scratch: Path) -> dict[str, str]:
    """What a program learns of its trial: variables, of which the placeholders of a command are some."""
    told = {
        "TRIAL": str(trial.number), "ATTEMPT": str(trial.attempt), "SEED": str(trial.seed), "NAME": job.experiment,
        "METRIC": job.objective,
        "MAX_STEPS": "" if job.max_steps is None else str(job.max_steps), "STEP": str(trial.step),
        "CHECKPOINT": str(scratch / "checkpoint"), "RESTORED": "" if trial.restored is None else str(trial.restored),
        "SCRATCH": str(scratch), "REPORT": "" if job.report is None else str(scratch / job.report),
        "EVENT": "" if trial.event is None else str(scratch / "event.json"),
    }
    return {f"REGROW_{name}": value for name, value in told.items()} | {"REGROW_CONFIG": json.dumps(trial.config)}


def filled(job: Job, trial: Trial, variables: dict[str, str]) -> list[str]:
    """The command of this trial, as it is started."""
    ours = {name.removeprefix("REGROW_").lower(): value for name, value in variables.items()}
    ours |= {f"{ENV}{name}": value for name, value in os.environ.items()}
    command = arguments(job.command, trial.config, ours)
    return [sys.executable, *command[1:]] if command[0] in INTERPRETERS else command


def standing_in() -> dict[str, str]:
    """The import path with our `wandb` on it, where the specification asks for it; that of a sweep file does."""
    if not os.environ.get("REGROW_WANDB_PACKAGE"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(STANDIN), os.environ.get("PYTHONPATH")]))}


class _Program:
    """A program that runs, and what it says."""

    def __init__(self, job: Job, trial: Trial, scratch: Path) -> None:
        self._job, self._trial = job, trial
        self._saved = SavedFolder(scratch / "checkpoint")
        (scratch / "checkpoint").mkdir()
        self._file = None if job.report is None else ReportFile(scratch / job.report)
        if job.report is not None:
            (scratch / job.report).parent.mkdir(parents=True, exist_ok=True)
        self._seen: dict[str, None] = {}
        """Keys of what was no report, for who misspelt one."""
        self._over = self._ending = False
        """Whether it is to report no more; whether it was told to end."""
        self._rest = self._err_rest = ""
        """Of a line that has not ended yet, on its standard output and error."""
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._err_tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._ready = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(scratch / "socket"))
        self._listener.listen()
        self._ready.register(self._listener, selectors.EVENT_READ, self._accept)
        variables = environment(job, trial, scratch)
        if variables["REGROW_EVENT"]:
            Path(variables["REGROW_EVENT"]).write_text(json.dumps(trial.event))  # a list of files is too long for a variable
        self._command = filled(job, trial, variables)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(GRACE_SECONDS), *self._command], cwd=job.folder,
            env={"PYTHONUNBUFFERED": "1", **os.environ, **variables, **standing_in(), ADDRESS: str(scratch / "socket")},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes = 2
        self._listen(self._process.stdout, self._printed)
        self._listen(self._process.stderr, self._complained)

    def follow(self) -> None:
        """Returns when it has ended. Raises ReportError."""
        while self._pipes:
            for key, _ in self._ready.select(LOOK_SECONDS):
                key.data()
            self._look()
        self._process.wait()
        self._look(final=True)

    def close(self) -> None:
        """Kills what is left of it."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        for key in list(self._ready.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # pipes and sockets, not bare numbers
        self._ready.close()

    def judge(self) -> None:
        """Raises what its end means, unless it ended well."""
        code, trial, name = self._process.returncode, self._trial, written_out(self._job.command[:2])
        if code == -signal.SIGTERM and not self._ending:
            deadline = time.monotonic() + NOTICE_SECONDS
            while not trial.told and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS / 10)
        if self._ending or (code and trial.told):
            trial.end()
        if code == 0:
            if trial.step == 0:
                seen = f"seen were: {', '.join(self._seen)}" if self._seen else "no line was a JSON object"
                hint = "print a line such as " + json.dumps({self._job.objective: 0.5}) + ", or call regrow.report"
                where = f"its file {self._job.report}" if self._job.report else "its output"
                raise ReportError(f"{name} ended without ever reporting {self._job.objective!r} ({where}: {seen}); {hint}")
            return
        tail = [*self._err_tail] or [*self._tail]
        trace = printable("".join(f"{line}\n" for line in tail))
        if code < 0 or code in _AS_KILLED:
            killer = signal.Signals(-code if code < 0 else code - 128).name
            raise CommandFailed(f"{name} was killed by {killer}", "infrastructure", trace)
        last = next((line for line in reversed(tail) if line.strip()), "it said nothing")
        raise CommandFailed(one_line(f"{name} exited with {code}: {last}"), "error", trace)

    def _listen(self, pipe: Any, tell: Callable[[str, bool], None]) -> None:
        os.set_blocking(pipe.fileno(), False)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def read() -> None:
            data = os.read(pipe.fileno(), _READ_BYTES)
            tell(decoder.decode(data, final=not data), not data)
            if not data:
                self._ready.unregister(pipe)
                pipe.close()
                self._pipes -= 1

        self._ready.register(pipe, selectors.EVENT_READ, read)

    def _printed(self, text: str, last: bool) -> None:
        """Standard output: reports, where there is no file of them, and other lines, in their order."""
        *lines, self._rest = (self._rest + text).split("\n")
        if self._rest and (last or len(self._rest) > _MOST_LINE):
            lines, self._rest = [*lines, self._rest], ""
        found = [numbers(line) if self._file is None else None for line in lines]
        reports = [None if one is None else self._report_in(one) for one in found]
        latest = max((place for place, report in enumerate(reports) if report is not None), default=-1)
        for place, (line, report) in enumerate(zip(lines, reports, strict=True)):
            if report is None:
                self._tail.append(line)
                sys.stdout.write(f"{line}\n")
            else:
                # What it saved belongs to the last report: it has gone on since the others.
                self._report(report, saved=place == latest)

    def _complained(self, text: str, last: bool) -> None:
        """Standard error, as it is."""
        sys.stderr.write(text)
        *lines, self._err_rest = (self._err_rest + text).split("\n")
        if self._err_rest and last:
            lines, self._err_rest = [*lines, self._err_rest], ""
        self._err_tail += [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        self._err_rest = self._err_rest[-_MOST_LINE:]

    def _look(self, *, final: bool = False) -> None:
        """At what says nothing by itself: the reports' file, and what the attempt was told."""
        if self._file is not None:
            reports = [report for one in self._file.new(final=final) if (report := self._report_in(one)) is not None]
            for place, report in enumerate(reports):
                self._report(report, saved=place == len(reports) - 1)
        if self._trial.told and not final:
            self._end()

    def _report_in(self, found: dict[str, Any]) -> dict[str, Any] | None:
        report = report_in(found, self._job.objective)
        if report is None:
            self._seen |= dict.fromkeys(map(str, list(found)[:20]))
        return report

    def _report(self, metrics: Any, *, saved: bool) -> None:
        if self._over:
            self._end()  # it goes on although it has done all its steps
            return
        save = self._saved.copy if saved and self._saved.changed() else None
        try:
            self._trial.report(metrics, checkpoint=save)
        except TrialEnd:
            self._over = True
            if self._trial.enough is not None:  # which the program cannot know; its last step it does, and may have more to do
                self._end()

    def _end(self) -> None:
        """Has it ended: SIGTERM, and SIGKILL after a while; at once where nothing that it does counts any more."""
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
            while (end := buffer.find(b"\n")) >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                self._report(json.loads(line), saved=True)
                with suppress(OSError):
                    connection.sendall(b"ok\n")

        self._ready.register(connection, selectors.EVENT_READ, read)
